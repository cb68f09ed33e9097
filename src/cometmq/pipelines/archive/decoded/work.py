"""Read, decode and write the messages of a batch with Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.batches import write_files
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.compaction import Compaction
from cometmq.pipelines.archive.layout import read_files
from cometmq.pipelines.archive.proving.figures import Found, figures
from cometmq.pipelines.archive.schemas import Schema
from cometmq.pipelines.archive.tables.columns import TABLE
from cometmq.pipelines.locations import Location
from cometmq.pipelines.small_tables import small_table
from cometmq.spark.decoding.batches import BodyDecoder, FittingIds, Sample, SchemaIds, Wire
from cometmq.spark.decoding.columns import REASON
from cometmq.spark.decoding.frames import decoded, mapped
from cometmq.spark.live.plan import Range

Ranges = Mapping[MessageQueue, Range]


class Work(Protocol):
    """The work on rows. Tests have one that needs no Spark.

    Its messages are those in `files` below `base` with offsets in `ranges`, all of one topic.
    """

    def sample(
        self, base: Location, files: Sequence[Location], ranges: Ranges, count: int
    ) -> list[bytes]:
        """Return so many bodies, as `Sample` takes them, or all if there are fewer."""

    def schema_ids(
        self, base: Location, files: Sequence[Location], ranges: Ranges, wire: Wire, most: int
    ) -> list[int]:
        """Return at most `most` ids of schemas, beginning with the ids that most messages name."""

    def reasons(
        self, base: Location, files: Sequence[Location], ranges: Ranges, fitting: FittingIds
    ) -> list[tuple[int, str | None]]:
        """Return the ids of schemas, each with the reason why a body of it cannot be read, or with None."""

    def write(
        self,
        base: Location,
        files: Sequence[Location],
        ranges: Ranges,
        decoder: BodyDecoder,
        staged: Location,
        fits: tuple[str, Schema],
        others: tuple[str, Schema],
    ) -> None:
        """Decode messages, and write the files of two tables to `staged`: `fits` and `others`.

        Each is the name and the schema of a table: for bodies that fit, and for the others.
        """

    def figures(self, base: Location, files: Sequence[Location], schema: Schema) -> Found:
        """Return the figures of files of decoded tables."""

    def compact(self, archive: Archive) -> Iterator[None]:
        """Join small files of an archive of decoded tables, and yield after each hour."""


class SparkWork:
    """The work in Spark's workers.

    compact_files: an hour with this many small files is compacted; 0 compacts nothing. target_bytes: the size
    of compacted files.
    """

    def __init__(self, spark: Any, *, compact_files: int, target_bytes: int) -> None:
        self._spark = spark
        self._compact_files = compact_files
        self._target_bytes = target_bytes

    def sample(
        self, base: Location, files: Sequence[Location], ranges: Ranges, count: int
    ) -> list[bytes]:
        rows = self._rows(base, files, ranges).select("body")
        # Each worker takes a sample, and the driver one of theirs, partition by partition.
        found = mapped(rows, Sample(count), "body binary").toLocalIterator()
        return list(Sample(count).taken(row.body for row in found))

    def schema_ids(
        self, base: Location, files: Sequence[Location], ranges: Ranges, wire: Wire, most: int
    ) -> list[int]:
        from pyspark.sql import functions as F

        rows = self._rows(base, files, ranges).select("body", "properties")
        found = mapped(rows, SchemaIds(wire), "id bigint, messages bigint")
        counts = found.groupBy("id").agg(F.sum("messages").alias("messages"))
        return [row.id for row in counts.orderBy(F.desc("messages"), "id").limit(most).collect()]

    def reasons(
        self, base: Location, files: Sequence[Location], ranges: Ranges, fitting: FittingIds
    ) -> list[tuple[int, str | None]]:
        rows = self._rows(base, files, ranges).select("body", "properties")
        found = mapped(rows, fitting, "id bigint, reason string").collect()
        return [(row.id, row.reason) for row in found]

    def write(
        self,
        base: Location,
        files: Sequence[Location],
        ranges: Ranges,
        decoder: BodyDecoder,
        staged: Location,
        fits: tuple[str, Schema],
        others: tuple[str, Schema],
    ) -> None:
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        frame = decoded(self._rows(base, files, ranges), decoder)
        # Both jobs read the frame, and each body is decoded once.
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for (name, schema), chosen in (
                (fits, F.col(REASON).isNull()),
                (others, F.col(REASON).isNotNull()),
            ):
                write_files(frame.where(chosen).withColumn("topic", F.lit(name)), staged, schema)
        finally:
            frame.unpersist()

    def figures(self, base: Location, files: Sequence[Location], schema: Schema) -> Found:
        return figures(read_files(self._spark, base, files, schema), schema, by_file=True)

    def compact(self, archive: Archive) -> Iterator[None]:
        if not self._compact_files:
            return
        compaction = Compaction(
            self._spark, archive, from_files=self._compact_files, target_bytes=self._target_bytes
        )
        for _ in compaction.run(compaction.due()):
            yield

    # Inside

    def _rows(self, base: Location, files: Sequence[Location], ranges: Ranges) -> Any:
        """Return archived messages with the columns of tables, and `hour`."""
        from pyspark.sql import functions as F

        messages = read_files(self._spark, base, files, Schema(0, TABLE)).drop("file")
        spans = small_table(
            self._spark,
            [(queue.broker_name, queue.queue_id, *span) for queue, span in ranges.items()],
            "of_broker string, of_queue int, from_offset bigint, to_offset bigint",
        )
        is_in = (
            messages.broker.eqNullSafe(spans.of_broker)
            & (messages.queue_id == spans.of_queue)
            & (messages.queue_offset >= spans.from_offset)
            & (messages.queue_offset < spans.to_offset)
        )
        # Spark then skips row groups below all of the offsets.
        low = min(start for start, _ in ranges.values())
        messages = messages.where(F.col("queue_offset") >= low)
        return messages.join(F.broadcast(spans), is_in, "leftsemi")

"""Find which messages differ between log and archive in hours whose figures differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import Hour, read_files
from cometmq.pipelines.archive.proving.figures import Place, row_checksum
from cometmq.pipelines.archive.proving.inventory import Problem
from cometmq.pipelines.archive.proving.spans import runs
from cometmq.pipelines.archive.schemas import Schema
from cometmq.pipelines.locations import Location

# Per hour and queue; of further differences only the first offset is reported.
_MOST: Final = 10_000
LENIENT: Final = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}


def differences(
    spark: Any, data: Location, place: Place, files: Mapping[Location, Schema], log: Any, low: int
) -> list[Problem]:
    """Compare an hour of a queue in the archive with `log`, message by message.

    files: their schemas; columns that messages do not have here are not compared. log: the rows that
        the log has of this queue for this hour, from the offset `low` on, with all columns.
    """
    from pyspark.sql import functions as F

    hour, queue = place
    schemas = {schema.number: schema.common() for schema in files.values()}
    sums = [f for at in schemas for f in (F.lit(at), row_checksum(schemas[at]))]
    of_schema = F.create_map(*sums) if sums else F.create_map().cast("map<int,bigint>")
    wanted = log.select("queue_offset", of_schema.alias("wanted"))
    rows = spark.createDataFrame([], "queue_offset bigint, file string, form int, checksum bigint")
    mine = (F.col("broker") == queue.broker_name) & (F.col("queue_id") == queue.queue_id)
    for number, schema in schemas.items():
        own = [path for path, one in files.items() if one.number == number]
        here = read_files(spark, data, own, files[own[0]], **LENIENT)
        rows = rows.union(
            here.where(mine & (F.col("queue_offset") >= low)).select(
                "queue_offset", "file", F.lit(number), row_checksum(schema)
            )
        )
    found = rows.groupBy("queue_offset").agg(
        F.count("*").alias("count"),
        F.min("file").alias("file"),
        F.max("file").alias("other"),
        F.min("checksum").alias("least"),
        F.max("checksum").alias("most"),
        F.max("form").alias("form"),
    )
    said = F.try_element_at("wanted", F.col("form"))
    kind = (
        F.when(F.col("count").isNull(), "messages missing")
        .when(F.col("wanted").isNull(), "strange messages")
        .when(F.col("count") > 1, "messages twice")
        .when((F.col("least") != said) | (F.col("most") != said), "messages differ")
    )
    joined = found.join(wanted, "queue_offset", "full_outer").withColumn("kind", kind)
    chosen = joined.where(F.col("kind").isNotNull()).select("kind", "file", "other", "queue_offset")
    rows = chosen.orderBy("queue_offset").limit(_MOST + 1).collect()
    return list(problems_of(hour, queue, rows))


def problems_of(hour: Hour, queue: MessageQueue, rows: Sequence[Any]) -> Iterable[Problem]:
    """Return the problems of rows (kind, file, other file, queue offset) in the order of offsets."""
    of_queue = (queue.broker_name, queue.queue_id)
    if len(rows) > _MOST:
        more_from = rows[_MOST][3]
        said = f"from offset {more_from:,} on; no more than {_MOST:,} are listed for a queue's hour"
        yield Problem("more differences", *hour, None, *of_queue, detail=said)
    by_cause: dict[tuple[str, str | None, str | None], list[int]] = {}
    for kind, file, other, offset in rows[:_MOST]:
        by_cause.setdefault((kind, file, other), []).append(offset)
    for (kind, file, other), offsets in by_cause.items():
        for start, end in runs(offsets):
            said = f"also in {other}" if other != file else ""
            yield Problem(kind, *hour, file, *of_queue, start, end - 1, said)

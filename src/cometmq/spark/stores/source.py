"""Read a store directory without a broker: the Spark source `rocketmq-store`.

spark.read.format("rocketmq-store").option("subscribe", "orders").load("/data/store")
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.errors import CometMQError, ConfigError, IllegalArgumentError
from cometmq.spark.gaps import DAMAGE, Gap
from cometmq.spark.options import Options
from cometmq.spark.ranges.pushdown import Bounds, push_where_allowed
from cometmq.spark.ranges.splitting import parts_of
from cometmq.spark.refusal import RefusedStream
from cometmq.spark.rows.record_batches import RecordBatches
from cometmq.spark.rows.schema import source_schema, wanted_columns
from cometmq.spark.secrets import refuse
from cometmq.spark.stores.options import KNOWN, NAME, SEVERAL, StoreOptions
from cometmq.spark.stores.plan import (
    LogRange,
    Nothing,
    QueueRange,
    log_ranges,
    queue_ranges,
)
from cometmq.spark.stores.reading import StoreReading, leave_out
from cometmq.spark.versions import HAS_ADMISSION, streams_refused
from cometmq.spark.workers import spare_collections
from cometmq.store.reading.files import LogFile, QueueFiles, StoreFiles, kept_from_brokers

if TYPE_CHECKING:
    from cometmq.spark.stores.following.stream import StoreStreamReader


class RocketMQStoreSource(DataSource):
    """The source `rocketmq-store`. See StoreOptions for the options, `cometmq.spark.rows.columns` for the
    columns.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # Checked here, when load is called, before the options appear in a plan that somebody sees.
        refuse(f"the source {NAME}", options)
        if SEVERAL not in options:
            Options(NAME, options, KNOWN)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        StoreOptions(self.options, streaming=None)  # `load` calls this, unless it has a schema
        return source_schema(Options(NAME, self.options, KNOWN))

    def reader(self, schema: Any) -> StoreReader:
        options = StoreOptions(self.options, streaming=False)
        return StoreReader(options, wanted_columns(schema, options.columns))

    def streamReader(self, schema: Any) -> StoreStreamReader | RefusedStream:  # noqa: N802 - Spark's name
        if not HAS_ADMISSION:
            return RefusedStream(ConfigError(streams_refused(NAME)))
        from cometmq.spark.stores.following.stream import StoreStreamReader

        try:
            options = StoreOptions(self.options, streaming=True)
            return StoreStreamReader(options, wanted_columns(schema, options.columns))
        except CometMQError as error:
            return RefusedStream(error)


class StoreReader(DataSourceReader):
    """Plans on the driver, then goes as a pickle to the workers and reads there."""

    def __init__(self, options: StoreOptions, names: list[str]) -> None:
        self._options = options
        self._names = names
        # Whether to read by consume queue, or by the files of the log.
        self._by_queue = options.by_topic
        self._topics: frozenset[str] | None = None
        self.bounds = Bounds()
        push_where_allowed(self, wanted=options.push_filters)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        options.gaps.check()
        files = StoreFiles(options.path, options.commit_log_paths)
        with kept_from_brokers(options.path):
            queues = files.queues()
            if options.by_topic:
                queues = self._chosen(queues)
                # After a crash, queues may lack messages of the log.
                self._by_queue = files.is_clean
                self._topics = frozenset(queue.topic for queue in queues)
            if self._by_queue:
                log = files.log_files()
                base = log[0].base if log else 2**63 - 1
                ranges = queue_ranges(queues, base, self.bounds, options.min_partitions)
                parts: list[InputPartition] = list(ranges)
            else:
                log = files.log_files()
                self._leave_out_missing_files(log)
                parts = list(log_ranges(log, queues, options.min_partitions))
        if options.only_jvm:
            # The JVM's reader leaves a read to this one where there is an error to raise, so this
            # comes behind all other errors.
            raise IllegalArgumentError(
                f"the option reader of the source {NAME} is jvm, and the JVM's reader does not take "
                "this read: the session has no jar of it (python -m cometmq.spark.jvm prints its path, "
                "for spark.jars), or the driver's log says why"
            )
        return parts or [Nothing()]

    def _leave_out_missing_files(self, log: list[LogFile]) -> None:
        """Leave out missing files between two files of the log. Retention has deleted those before
        the first.
        """
        options = self._options
        for before, behind in pairwise(log):
            if before.end < behind.base:
                gap = Gap(None, options.broker_name, None, before.end, behind.base, DAMAGE)
                leave_out(options.gaps, gap, before.path, before.end)

    def _chosen(self, queues: list[QueueFiles]) -> list[QueueFiles]:
        """Return the queues of the topics wanted. Raise IllegalArgumentError for a topic without
        queues.
        """
        topics = {queue.topic for queue in queues}
        options = self._options
        if options.pattern is not None:
            wanted = {topic for topic in topics if options.pattern.fullmatch(topic)}
            if not wanted:
                raise IllegalArgumentError(
                    f"no topic in {options.path} matches subscribePattern "
                    f"{options.pattern.pattern!r}; there are {_some(topics)}"
                )
        else:
            wanted = set(options.topics or ())
            if missing := wanted - topics:
                raise IllegalArgumentError(
                    f"{options.path} has no consume queue of {_some(missing)}; there are "
                    f"{_some(topics)}"
                )
        return [queue for queue in queues if queue.topic in wanted]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        batches = RecordBatches(
            self._names, broker=options.broker_name, decompress=options.decompress
        )
        reading = StoreReading(
            StoreFiles(options.path, options.commit_log_paths),
            batches,
            options.gaps,
            broker=options.broker_name,
            check_crc=options.check_crc,
            topics=None if self._by_queue else self._topics,
        )
        with kept_from_brokers(options.path):
            for part in parts_of(partition):
                if isinstance(part, QueueRange):
                    yield from reading.queue_range(part)
                elif isinstance(part, LogRange):
                    yield from reading.log_range(part)
        spare_collections()


def _some(names: Any) -> str:
    """Name the items, or the first twenty of many."""
    listed = sorted(names)
    more = f" and {len(listed) - 20} more" if len(listed) > 20 else ""
    return (", ".join(listed[:20]) or "none") + more

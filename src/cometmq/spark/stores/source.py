"""Read a store directory without a broker: the Spark source `rocketmq-store`.

spark.read.format("rocketmq-store").option("subscribe", "orders").load("/data/store")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.errors import IllegalArgumentError
from cometmq.spark.gaps import DAMAGE, Gap
from cometmq.spark.options import (
    MAX_PARTITIONS,
    Options,
    gap_log,
    topic_names,
    topic_pattern,
)
from cometmq.spark.ranges.pushdown import Bounds, push_where_allowed
from cometmq.spark.ranges.splitting import parts_of
from cometmq.spark.rows.columns import named_columns
from cometmq.spark.rows.record_batches import RecordBatches
from cometmq.spark.rows.schema import source_schema, wanted_columns
from cometmq.spark.secrets import refuse
from cometmq.spark.stores.plan import (
    LogRange,
    Nothing,
    QueueRange,
    log_ranges,
    queue_ranges,
)
from cometmq.spark.stores.reading import StoreReading, leave_out
from cometmq.spark.workers import spare_collections
from cometmq.store.reading.files import LogFile, QueueFiles, StoreFiles, kept_from_brokers

NAME: Final = "rocketmq-store"
KNOWN: Final = (
    "path",
    "commitLogPath",
    "subscribe",
    "subscribePattern",
    "minPartitions",
    "checkCrc",
    "columns",
    "decompress",
    "brokerName",
    "failOnDataLoss",
    "pushFilters",
    "gapLog",
    "reader",
)
_AUTO: Final = "auto"
_JVM: Final = "jvm"
_READERS: Final = (_AUTO, "python", _JVM)
# Spark turns load(["/data/a", "/data/b"]) into this option.
_SEVERAL: Final = "paths"


class StoreOptions:
    """The options of a read of a store. Raises IllegalArgumentError for values that do not fit.

    path: the store directory (storePathRootDir), which driver and workers see; `load` sets it.
    commitLogPath: storePathCommitLog, if it is elsewhere; several directories separated by commas.
    subscribe: topics, separated by commas; subscribePattern: a regular expression that whole topic
        names match. Without either, the rows are all records of the log, in its order.
    minPartitions: into how many tasks the reading is split at least, if there is enough to read.
    checkCrc: check the checksum of every body.
    columns: which columns the rows have; see `cometmq.spark.rows.columns`.
    decompress: return bodies as they were sent (default), not as they are stored.
    pushFilters: let Spark's filters narrow the read (see docs/spark.md, Filters, before you do).
    brokerName: the value of the column broker, which a store does not know.
    failOnDataLoss: fail where bytes are no record (default). With false they are left out, and
        gapLog must name a directory in which every gap is noted.
    reader: `auto` (default) reads in the JVM where the session has the jar (`cometmq.spark.jvm`) and
        the jar can, else here; `python` always reads here; `jvm` refuses to.
    """

    def __init__(self, given: Any) -> None:
        if _SEVERAL in given:
            raise IllegalArgumentError(
                f"the source {NAME} reads one store, and load was given several: read each one and "
                "put the rows together by union"
            )
        options = Options(NAME, given, KNOWN)
        self.path = options.need_path("path", "/data/store")
        self.commit_log_paths = options.paths("commitLogPath")
        self.topics: frozenset[str] | None = None
        self.pattern: re.Pattern[str] | None = None
        chosen = options.one_of("subscribe", "subscribePattern")
        if chosen == "subscribe":
            self.topics = topic_names(options)
        elif chosen is not None:
            self.pattern = topic_pattern(options)
        self.min_partitions = options.number("minPartitions", 1, MAX_PARTITIONS) or 1
        self.check_crc = options.flag("checkCrc", False)
        self.columns = named_columns(options)
        self.decompress = options.flag("decompress", True)
        self.push_filters = options.flag("pushFilters", False)
        self.broker_name = options.text("brokerName")
        self.gaps = gap_log(options)
        reader = options.text("reader") or _AUTO
        if reader not in _READERS:
            raise options.error("reader", f"is {reader!r}, it must be one of {', '.join(_READERS)}")
        self.only_jvm = reader == _JVM

    @property
    def by_topic(self) -> bool:
        return self.topics is not None or self.pattern is not None


class RocketMQStoreSource(DataSource):
    """The source `rocketmq-store`. See StoreOptions for the options, `cometmq.spark.rows.columns` for the
    columns.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # Checked here, when load is called, before the options appear in a plan that somebody sees.
        refuse(f"the source {NAME}", options)
        if _SEVERAL not in options:
            Options(NAME, options, KNOWN)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        StoreOptions(self.options)  # `load` asks for this, unless it has a schema
        return source_schema(Options(NAME, self.options, KNOWN))

    def reader(self, schema: Any) -> StoreReader:
        options = StoreOptions(self.options)
        return StoreReader(options, wanted_columns(schema, options.columns))


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

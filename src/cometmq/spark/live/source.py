"""The Spark source and sink `rocketmq`: topics of live brokers. The sink is in `sink.writer`.

spark.read.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders")
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import (
    CometMQError,
    ConfigError,
    IllegalArgumentError,
    RouteNotFoundError,
)
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL
from cometmq.spark.gaps import RETENTION
from cometmq.spark.live.options import KNOWN, NAME, SINK_ONLY, TABLES_REMEDY, LiveOptions
from cometmq.spark.live.plan import (
    LiveRange,
    Range,
    check_selection,
    find_queues,
    first_offsets,
    gone,
    last_offsets,
    live_ranges,
    lost,
    narrowed,
)
from cometmq.spark.live.reading import LiveReading, leave_out
from cometmq.spark.live.unknown_topics import unknown_topics
from cometmq.spark.options import Options
from cometmq.spark.patience import patiently
from cometmq.spark.ranges.pushdown import Bounds, push_where_allowed
from cometmq.spark.ranges.splitting import parts_of
from cometmq.spark.refusal import RefusedStream
from cometmq.spark.rows.schema import source_schema, wanted_columns
from cometmq.spark.secrets import refuse
from cometmq.spark.versions import HAS_ADMISSION, streams_refused

if TYPE_CHECKING:
    from cometmq.spark.live.stream import LiveStreamReader
    from cometmq.spark.sink.writer import SinkStreamWriter, SinkWriter

# More tags than this would make every pull too long, and are not sent to the broker.
_MAX_PUSHED_TAGS: Final = 64


class RocketMQSource(DataSource):
    """The source and sink `rocketmq`. See LiveOptions and SinkOptions for the options,
    `cometmq.spark.rows.columns` and `cometmq.spark.sink.columns` for the columns.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if "provider" in options:
            # Spark adds this option for a table of its catalog.
            raise IllegalArgumentError(
                f"the source or sink {NAME} has no tables in Spark's catalog: {TABLES_REMEDY}"
            )
        if not options:
            # For statements with tables, Spark leaves out the options that the table was made with.
            raise IllegalArgumentError(
                f"the source or sink {NAME} is given no options; it needs namesrv and more. If this is "
                "about a table of Spark's catalog (INSERT INTO, SELECT, CREATE TABLE … AS SELECT): it "
                f"has none, {TABLES_REMEDY}"
            )
        # Checked here, when load is called, before the options appear in a plan that somebody sees.
        # Whether they are for the source or the sink is not known yet.
        refuse(f"the source or sink {NAME}", options)
        Options(NAME, options, {*KNOWN, *SINK_ONLY}, kind="source or sink")

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        # `load` asks for this, unless it has a schema; whether for a stream is not known yet.
        LiveOptions(self.options, streaming=None)
        return source_schema(Options(NAME, self.options, KNOWN))

    def reader(self, schema: Any) -> LiveReader:
        options = LiveOptions(self.options, streaming=False)
        return LiveReader(options, wanted_columns(schema, options.columns))

    def streamReader(self, schema: Any) -> LiveStreamReader | RefusedStream:  # noqa: N802 - Spark's name
        if not HAS_ADMISSION:
            return RefusedStream(ConfigError(streams_refused()))
        from cometmq.spark.live.stream import LiveStreamReader

        try:
            options = LiveOptions(self.options, streaming=True)
            return LiveStreamReader(options, wanted_columns(schema, options.columns))
        except CometMQError as error:
            return RefusedStream(error)

    # Only writing imports the sink, because Spark loads this module for every table that is read.

    def writer(self, schema: Any, overwrite: bool) -> SinkWriter:
        from cometmq.spark.sink.writer import SinkWriter

        return SinkWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> SinkStreamWriter:  # noqa: N802 - Spark's name
        from cometmq.spark.sink.writer import SinkStreamWriter

        return SinkStreamWriter(self.options, schema, overwrite=overwrite)


class LiveReader(DataSourceReader):
    """Plans on the driver, then goes as a pickle to the workers and reads there."""

    def __init__(self, options: LiveOptions, names: list[str]) -> None:
        self._options = options
        self._names = names
        self.bounds = Bounds()
        push_where_allowed(self, wanted=options.push_filters)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        options.gaps.check()
        with options.new_reader() as reader:
            queues = self._queues(reader)
            if not queues and options.pattern is not None:
                raise IllegalArgumentError(
                    f"no topic matches subscribePattern {options.pattern.pattern!r}: whole names have "
                    "to match, and RocketMQ's own topics are left out"
                )
            check_selection(reader, options, queues)
            bounds = reader.offsets(queues)
            starts = first_offsets(reader, options, bounds)
            ends = last_offsets(reader, options, bounds)
            by_time = options.start_times is not None or options.end_times is not None
            for queue in queues:
                if starts[queue] > ends[queue] and not by_time:
                    raise IllegalArgumentError(
                        f"{queue} is to be read from offset {starts[queue]} to below {ends[queue]}: "
                        "it would end before it starts; change startingOffsets or endingOffsets"
                    )
                starts[queue] = self._start_of_what_is_there(
                    queue, starts[queue], ends[queue], bounds[queue]
                )
            ranges = {queue: (starts[queue], ends[queue]) for queue in queues}
            options.gaps.forget(ranges)
            parts = live_ranges(narrowed(reader, ranges, self.bounds), options)
        return list(parts) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        tags = pushed_tags(self._options, self.bounds)
        for part in parts_of(partition):
            if isinstance(part, LiveRange):
                yield from LiveReading(self._options, self._names, tags).rows(part)

    # Inside

    def _queues(self, reader: BlockingRangeReader) -> list[MessageQueue]:
        options = self._options
        # If all offsets are numbers, somebody has read them from the brokers: a queue without a route
        # then belongs to a broker that is away. Otherwise the name may be misspelt, and is refused at once.
        patience_s = options.timeout_ms / 1000 if options.names_each_offset else 0.0
        try:
            return patiently(partial(find_queues, reader, options), patience_s)
        except RouteNotFoundError as error:
            raise unknown_topics(reader, options.namesrv, options.named_topics, error) from error

    def _start_of_what_is_there(
        self, queue: MessageQueue, start: int, end: int, bound: Range
    ) -> int:
        """Return the first offset that retention has not deleted. Raise DataLossError if gaps are
        not allowed.
        """
        gap = gone(queue, start, bound)
        # The tasks find out about a queue that has become shorter.
        if gap is None or gap.cause != RETENTION or start >= end:
            return start
        # If all of the range is gone, the gap still ends with the range.
        leave_out(self._options, queue, lost(queue, start, min(gap.end, end), RETENTION))
        return gap.end


def pushed_tags(options: LiveOptions, bounds: Bounds) -> str:
    """Return the tags of Spark's filters as a subscription, or SUB_ALL if a subscription cannot
    express them.
    """
    tags = bounds.tags
    if options.sql is not None or not tags or len(tags) > _MAX_PUSHED_TAGS:
        return SUB_ALL
    if any("|" in tag or tag != tag.strip() or tag in ("", SUB_ALL) for tag in tags):
        return SUB_ALL
    return " || ".join(sorted(tags))

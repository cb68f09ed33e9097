"""The Spark source and sink `rocketmq`: topics of live brokers. The sink is in `sink_writer`.

spark.read.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.errors import IllegalArgumentError
from cometmq.model.subscription import SUB_ALL
from cometmq.spark.gaps import RETENTION
from cometmq.spark.live_options import NAME, LiveOptions
from cometmq.spark.live_plan import (
    LiveRange,
    check_selection,
    find_queues,
    first_offsets,
    gone,
    last_offsets,
    live_ranges,
    narrowed,
)
from cometmq.spark.live_reading import LiveReading, leave_out
from cometmq.spark.live_stream import LiveStreamReader
from cometmq.spark.pushdown import Bounds, PushesWhereAllowed
from cometmq.spark.schema import spark_schema, wanted_columns
from cometmq.spark.sink_writer import SinkStreamWriter, SinkWriter

# More tags than this are not sent to the broker with every pull.
_MAX_PUSHED_TAGS: Final = 64


class RocketMQSource(DataSource):
    """See LiveOptions and SinkOptions for the options, `cometmq.spark.schema` and
    `cometmq.spark.sink_columns` for the columns."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        return spark_schema()

    def reader(self, schema: Any) -> LiveReader:
        return LiveReader(LiveOptions(self.options, streaming=False), wanted_columns(schema))

    def streamReader(self, schema: Any) -> LiveStreamReader:  # noqa: N802 - Spark's name
        options = LiveOptions(self.options, streaming=True)
        return LiveStreamReader(options, wanted_columns(schema))

    def writer(self, schema: Any, overwrite: bool) -> SinkWriter:
        return SinkWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> SinkStreamWriter:  # noqa: N802 - Spark's name
        return SinkStreamWriter(self.options, schema, overwrite=overwrite)


class LiveReader(DataSourceReader):
    """Plans on the driver, reads in workers; goes from one to the other as a pickle."""

    def __init__(self, options: LiveOptions, names: list[str]) -> None:
        self._options = options
        self._names = names
        self.bounds = Bounds()
        self.pushFilters = PushesWhereAllowed(self)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        options.gaps.check()
        with options.new_reader() as reader:
            queues = find_queues(reader, options)
            if not queues and options.pattern is not None:
                raise IllegalArgumentError(
                    f"no topic matches subscribePattern {options.pattern.pattern!r}"
                )
            check_selection(reader, options, queues)
            bounds = reader.offsets(queues)
            starts = first_offsets(reader, options, bounds)
            ends = last_offsets(reader, options, bounds)
            for queue in queues:
                # What ended in the meantime is for the tasks to find.
                gap = gone(queue, starts[queue], bounds[queue])
                if gap is not None and gap.cause == RETENTION:
                    leave_out(options, queue, gap)
                    starts[queue] = gap.end
                by_time = options.start_time_ms is not None or options.end_time_ms is not None
                if starts[queue] > ends[queue] and not by_time:
                    raise IllegalArgumentError(
                        f"{queue} is to be read from offset {starts[queue]} to below {ends[queue]}: "
                        "it would end before it starts"
                    )
            ranges = {queue: (starts[queue], ends[queue]) for queue in queues}
            options.gaps.forget(ranges)
            parts = live_ranges(narrowed(reader, ranges, self.bounds), options.min_partitions)
        return list(parts) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, LiveRange):
            tags = pushed_tags(self._options, self.bounds)
            yield from LiveReading(self._options, self._names, tags).rows(partition)


def pushed_tags(options: LiveOptions, bounds: Bounds) -> str:
    """The tags of Spark's filters as a subscription, where one can say them."""
    tags = bounds.tags
    if options.sql is not None or not tags or len(tags) > _MAX_PUSHED_TAGS:
        return SUB_ALL
    if any("|" in tag or tag != tag.strip() or tag in ("", SUB_ALL) for tag in tags):
        return SUB_ALL
    return " || ".join(sorted(tags))

"""Which offsets of which queues a read of live brokers covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import IllegalArgumentError, RemotingError, RouteNotFoundError
from cometmq.model.names import is_system_topic
from cometmq.model.queue import MessageQueue
from cometmq.spark.gaps import BEYOND_THE_END, RETENTION, Gap
from cometmq.spark.live_options import EARLIEST, LiveOptions, Position
from cometmq.spark.pushdown import Bounds
from cometmq.spark.splitting import split

Range = tuple[int, int]


@dataclass
class LiveRange(InputPartition):
    """Offsets of a queue from `start` to below `end`."""

    queue: MessageQueue
    start: int
    end: int


def find_queues(
    reader: BlockingRangeReader, options: LiveOptions, known: Iterable[MessageQueue] = ()
) -> list[MessageQueue]:
    """The queues that the options name, as far as they are there now; of a topic without a route
    those `known`.

    Raises IllegalArgumentError for assigned queues that are not, RouteNotFoundError for a topic that
    no name server knows, RemotingError when none of them answers.
    """
    topics = options.topics or {queue.topic for queue in options.assigned}
    try:
        if options.pattern is not None:
            return _matching(reader, options.pattern)
        queues = sorted(
            queue for topic in sorted(topics) for queue in _queues_of(reader, topic, known)
        )
    except RemotingError as error:
        raise options.connecting.unreachable(error) from error
    if not options.assigned:
        return queues
    if missing := options.assigned - set(queues):
        raise IllegalArgumentError(
            f"the option assign names {listed(missing)}, which are not in the routes of their topics; "
            f"there are {listed(queues)}"
        )
    return sorted(options.assigned)


def _queues_of(
    reader: BlockingRangeReader, topic: str, known: Iterable[MessageQueue]
) -> list[MessageQueue]:
    try:
        return reader.queues(topic)
    except RouteNotFoundError:
        # Its brokers may be away just now.
        queues = [queue for queue in known if queue.topic == topic]
        if not queues:
            raise
        return queues


def check_selection(
    reader: BlockingRangeReader, options: LiveOptions, queues: Iterable[MessageQueue]
) -> None:
    """Raise RemoteError unless brokers can select as the options say."""
    for topic in sorted({queue.topic for queue in queues}):
        reader.check_selection(topic, options.tags, sql=options.sql)


def _matching(reader: BlockingRangeReader, pattern: re.Pattern[str]) -> list[MessageQueue]:
    """The queues of topics that match, but for RocketMQ's own."""
    queues: list[MessageQueue] = []
    for topic in reader.topics():
        if pattern.fullmatch(topic) and not is_system_topic(topic):
            with suppress(RouteNotFoundError):  # deleted meanwhile
                queues += reader.queues(topic)
    return sorted(queues)


def first_offsets(
    reader: BlockingRangeReader, options: LiveOptions, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    """Where the options have the reading of each queue begin, or somewhat in front of it."""
    if options.start_time_ms is not None:
        return not_before(reader, bounds, options.start_time_ms)
    return _positions("startingOffsets", options.start, bounds)


def last_offsets(
    reader: BlockingRangeReader, options: LiveOptions, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    """Below which offset it ends, or somewhat behind it."""
    if options.end_time_ms is not None:
        found = not_behind(reader, bounds, options.end_time_ms)
        return {queue: min(offset, bounds[queue][1]) for queue, offset in found.items()}
    return _positions("endingOffsets", options.end, bounds)


def _positions(
    name: str, position: Position, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    if isinstance(position, str):
        at = 0 if position == EARLIEST else 1
        return {queue: bound[at] for queue, bound in bounds.items()}
    if unknown := position.keys() - bounds.keys():
        raise IllegalArgumentError(
            f"the option {name} names {listed(unknown)}, which are not among the queues to read"
        )
    if missing := bounds.keys() - position.keys():
        raise IllegalArgumentError(
            f"the option {name} says nothing of {listed(missing)}; give every queue an offset, "
            "-2 for earliest or -1 for latest"
        )
    offsets = {}
    for queue, offset in position.items():
        low, high = bounds[queue]
        if isinstance(offset, str):
            offsets[queue] = low if offset == EARLIEST else high
            continue
        if offset > high:
            raise IllegalArgumentError(
                f"the option {name} gives {queue} the offset {offset}, its queue ends at {high}: "
                "give that at most, or -1 for latest"
            )
        offsets[queue] = offset
    return offsets


def narrowed(
    reader: BlockingRangeReader, ranges: Mapping[MessageQueue, Range], bounds: Bounds
) -> dict[MessageQueue, Range]:
    """The ranges without what Spark's filters would throw away again."""
    kept = {
        queue: (max(start, bounds.min_offset), min(end, bounds.end_offset))
        for queue, (start, end) in ranges.items()
        if bounds.takes(queue.topic, queue.broker_name, queue.queue_id)
    }
    low = not_before(reader, kept, bounds.earliest_ms)
    high = not_behind(reader, kept, bounds.latest_ms)
    return {
        queue: (max(start, low.get(queue, start)), min(end, high.get(queue, end)))
        for queue, (start, end) in kept.items()
    }


def not_before(
    reader: BlockingRangeReader, queues: Iterable[MessageQueue], time_ms: int | None
) -> dict[MessageQueue, int]:
    """Offsets in front of which nothing was stored at `time_ms` or later; {} for None.

    Brokers before 5.0 give the nearest message, or any of several of the same millisecond. So the
    moment before is asked for, and the offset may be too low.
    """
    if time_ms is None:
        return {}
    return reader.offsets_for_timestamp(queues, max(0, time_ms - 1))


def not_behind(
    reader: BlockingRangeReader, queues: Iterable[MessageQueue], time_ms: int | None
) -> dict[MessageQueue, int]:
    """Offsets from which on nothing was stored before `time_ms`; {} for None. They may be too high."""
    if time_ms is None:
        return {}
    found = reader.offsets_for_timestamp(queues, time_ms)
    return {queue: offset + 1 for queue, offset in found.items()}


def live_ranges(ranges: Mapping[MessageQueue, Range], min_partitions: int) -> list[LiveRange]:
    """One task for each queue that has something to read, or more for long ranges."""
    total = sum(max(0, end - start) for start, end in ranges.values())
    return [
        LiveRange(queue, low, high)
        for queue, (start, end) in sorted(ranges.items())
        for low, high in split(start, end, total, min_partitions)
    ]


def lost(queue: MessageQueue, start: int, end: int, cause: str) -> Gap:
    return Gap(queue.topic, queue.broker_name, queue.queue_id, start, end, cause)


def gone(queue: MessageQueue, start: int, bound: Range) -> Gap | None:
    """What is not there any more, or not yet, of a queue that is to be read from `start` on."""
    low, high = bound
    if start < low:
        return lost(queue, start, low, RETENTION)
    if start > high:
        return lost(queue, high, start, BEYOND_THE_END)
    return None


def listed(queues: Iterable[MessageQueue]) -> str:
    """The queues, or the first of many."""
    names = sorted(map(str, queues))
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")

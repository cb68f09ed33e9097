"""Decide which offsets of which queues a read of live brokers covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from cometmq.client.range_reader import BlockingRangeReader
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
    """Return the queues that the options name and that exist now; for a topic without a route,
    those in `known`.

    Raise IllegalArgumentError for assigned queues that do not exist, RouteNotFoundError for a topic
    that no name server knows, and RemotingError when no name server answers.
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
        # The topic's brokers may be away for a moment.
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
    """Return the queues of topics that match, without RocketMQ's own topics."""
    queues: list[MessageQueue] = []
    for topic in reader.topics():
        if pattern.fullmatch(topic) and not is_system_topic(topic):
            with suppress(RouteNotFoundError):  # deleted in between
                queues += reader.queues(topic)
    return sorted(queues)


def first_offsets(
    reader: BlockingRangeReader, options: LiveOptions, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    """Return the offset at which reading each queue begins by the options, or a somewhat lower
    one.
    """
    if options.start_time_ms is not None:
        return not_before(reader, bounds, options.start_time_ms)
    return _positions("startingOffsets", options.start, bounds)


def last_offsets(
    reader: BlockingRangeReader, options: LiveOptions, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    """Return the offset below which reading each queue ends by the options, or a somewhat higher
    one.
    """
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
    """Return the ranges without what Spark's filters would drop anyway."""
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
    """Return offsets before which nothing was stored at `time_ms` or later; {} for None.

    Brokers before 5.0 return the nearest message, or any of several of the same millisecond. So
    this asks for the millisecond before, and an offset may be too low.
    """
    if time_ms is None:
        return {}
    return reader.offsets_for_timestamp(queues, max(0, time_ms - 1))


def not_behind(
    reader: BlockingRangeReader, queues: Iterable[MessageQueue], time_ms: int | None
) -> dict[MessageQueue, int]:
    """Return offsets from which on nothing was stored before `time_ms`; {} for None. An offset may
    be too high.
    """
    if time_ms is None:
        return {}
    found = reader.offsets_for_timestamp(queues, time_ms)
    return {queue: offset + 1 for queue, offset in found.items()}


def live_ranges(ranges: Mapping[MessageQueue, Range], min_partitions: int) -> list[LiveRange]:
    """Return one range for each queue that has something to read, or several for long ranges."""
    total = sum(max(0, end - start) for start, end in ranges.values())
    return [
        LiveRange(queue, low, high)
        for queue, (start, end) in sorted(ranges.items())
        for low, high in split(start, end, total, min_partitions)
    ]


def lost(queue: MessageQueue, start: int, end: int, cause: str) -> Gap:
    return Gap(queue.topic, queue.broker_name, queue.queue_id, start, end, cause)


def gone(queue: MessageQueue, start: int, bound: Range) -> Gap | None:
    """Return the part of a queue that a read from `start` on cannot get, or None if there is none.

    Messages from `start` on may be gone already, or `start` may lie beyond the queue's end.
    """
    low, high = bound
    if start < low:
        return lost(queue, start, low, RETENTION)
    if start > high:
        return lost(queue, high, start, BEYOND_THE_END)
    return None


def listed(queues: Iterable[MessageQueue]) -> str:
    """Name the queues, or the first ten of many."""
    names = sorted(map(str, queues))
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")

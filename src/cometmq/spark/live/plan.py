"""Decide which offsets of which queues a read of live brokers covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import IllegalArgumentError, RemotingError, RouteNotFoundError
from cometmq.model.names import LMQ_PREFIX, is_system_topic
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.record_columns import read_columns
from cometmq.spark.gaps import BEYOND_THE_END, RETENTION, Gap
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.options import MAX_PARTITIONS
from cometmq.spark.ranges.by_queue import EARLIEST, ByQueue
from cometmq.spark.ranges.pushdown import Bounds
from cometmq.spark.ranges.splitting import Several, grouped, split

Range = tuple[int, int]


@dataclass
class LiveRange(InputPartition):
    """Offsets of a queue from `start` to below `end`."""

    queue: MessageQueue
    start: int
    end: int


class UnknownQueuesError(IllegalArgumentError):
    """Some assigned queues are in no route; they may come back with their broker."""

    retriable = True


def find_queues(
    reader: BlockingRangeReader, options: LiveOptions, known: Iterable[MessageQueue] = ()
) -> list[MessageQueue]:
    """Return the queues that the options name and that exist now; for a topic without a route,
    those in `known`.

    Raise UnknownQueuesError for assigned queues that do not exist, RouteNotFoundError for a topic
    that no name server knows, and RemotingError when no name server answers.
    """
    try:
        if options.pattern is not None:
            return _matching(reader, options.pattern)
        queues = sorted(
            queue
            for topic in sorted(options.named_topics)
            for queue in _queues_of(reader, topic, known)
        )
    except RemotingError as error:
        raise options.connecting.unreachable(error) from error
    if not options.assigned:
        return queues
    if missing := options.assigned - set(queues):
        raise UnknownQueuesError(
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
    if options.start_times is not None:
        times = _times("startingOffsetsByTimestamp", options.start_times, bounds)
        starts: dict[MessageQueue, int] = {}
        for time_ms, queues in _by_time(times).items():
            starts |= not_before(reader, queues, time_ms)
        if options.fails_without_match:
            _check_matches(reader, times, bounds)
        return starts
    return _positions("startingOffsets", options.start, bounds)


def last_offsets(
    reader: BlockingRangeReader, options: LiveOptions, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    """Return the offset below which reading each queue ends by the options, or a somewhat higher
    one.
    """
    if options.end_times is not None:
        times = _times("endingOffsetsByTimestamp", options.end_times, bounds)
        found: dict[MessageQueue, int] = {}
        for time_ms, queues in _by_time(times).items():
            found |= not_behind(reader, queues, time_ms)
        return {queue: min(offset, bounds[queue][1]) for queue, offset in found.items()}
    return _positions("endingOffsets", options.end, bounds)


def _positions(
    name: str, position: ByQueue, bounds: Mapping[MessageQueue, Range]
) -> dict[MessageQueue, int]:
    offsets = {}
    given = _of_each(name, position, bounds, "an offset, -2 for earliest or -1 for latest")
    for queue, offset in given.items():
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


def _of_each(
    name: str, given: ByQueue, queues: Iterable[MessageQueue], what: str
) -> dict[MessageQueue, int | str]:
    """Return the value for each queue. Raise IllegalArgumentError for values of no queue, and for
    queues without one.
    """
    queues = list(queues)
    if unknown := given.unknown(queues):
        raise IllegalArgumentError(
            f"the option {name} names {listed(unknown)}, which are not among the queues to read"
        )
    values = {queue: given.of(queue) for queue in queues}
    if missing := [queue for queue, value in values.items() if value is None]:
        raise IllegalArgumentError(
            f"the option {name} says nothing of {listed(missing)}; give every queue {what}"
        )
    return {queue: value for queue, value in values.items() if value is not None}


def _times(name: str, given: ByQueue, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
    return {queue: int(ms) for queue, ms in _of_each(name, given, queues, "a time").items()}


def _by_time(times: Mapping[MessageQueue, int]) -> dict[int, list[MessageQueue]]:
    groups: dict[int, list[MessageQueue]] = {}
    for queue, time_ms in times.items():
        groups.setdefault(time_ms, []).append(queue)
    return groups


def _check_matches(
    reader: BlockingRangeReader,
    times: Mapping[MessageQueue, int],
    bounds: Mapping[MessageQueue, Range],
) -> None:
    """Raise IllegalArgumentError for queues without a message of their starting time or later.

    The last message of each queue decides: offsets by time are not exact with brokers before 5.0.
    """
    without = []
    for queue, time_ms in times.items():
        low, high = bounds[queue]
        last_ms = _last_stored_ms(reader, queue, high) if low < high else None
        if last_ms is None or last_ms < time_ms:
            without.append(queue)
    if without:
        raise IllegalArgumentError(
            f"no message of {listed(without)} is as new as where reading is to start, and "
            "startingOffsetsByTimestampStrategy is error; with latest they start at their ends"
        )


def _last_stored_ms(reader: BlockingRangeReader, queue: MessageQueue, end: int) -> int | None:
    for chunk in reader.read(queue, end - 1, end):
        columns = read_columns(chunk.records, 0, len(chunk.records), None)
        if len(columns):
            return int(columns.store_timestamps[-1])
    return None


def narrowed(
    reader: BlockingRangeReader, ranges: Mapping[MessageQueue, Range], bounds: Bounds
) -> dict[MessageQueue, Range]:
    """Return the ranges without messages that Spark's filters would drop anyway."""
    # Their rows have the topic, queue and offset of another queue.
    light = {queue: found for queue, found in ranges.items() if queue.topic.startswith(LMQ_PREFIX)}
    kept = {
        queue: (max(start, bounds.min_offset), min(end, bounds.end_offset))
        for queue, (start, end) in ranges.items()
        if queue not in light and bounds.takes(queue.topic, queue.broker_name, queue.queue_id)
    } | light
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


def live_ranges(
    ranges: Mapping[MessageQueue, Range], options: LiveOptions
) -> list[LiveRange | Several]:
    """Return one range for each queue that has something to read, or several for long ranges; those
    of many queues together where each has little.

    Raise IllegalArgumentError for a maxMessagesPerPartition that would make too many.
    """
    total = sum(max(0, end - start) for start, end in ranges.values())
    most = options.max_per_partition
    min_partitions = options.min_partitions
    if most is not None:
        count = sum(-(-max(0, end - start) // most) for start, end in ranges.values())
        if count > MAX_PARTITIONS:
            raise IllegalArgumentError(
                f"the option maxMessagesPerPartition, {most}, would divide {total} messages into "
                f"{count} tasks, and {MAX_PARTITIONS} is the limit: give it at least "
                f"{-(-total // MAX_PARTITIONS)}, or bound what is read, a stream's batches by "
                "maxMessagesPerTrigger"
            )
    parts = [
        LiveRange(queue, low, high)
        for queue, (start, end) in sorted(ranges.items())
        for low, high in split(start, end, total, min_partitions, most)
    ]
    return grouped(parts, min_partitions, most)


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


def listed(queues: Iterable[MessageQueue | str]) -> str:
    """Name the queues, or the first ten of many."""
    names = sorted(map(str, queues))
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")

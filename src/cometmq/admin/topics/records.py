"""Define the records of a topic's queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.inspection import TopicOffset


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Says where a queue begins and ends, in offsets; the next message gets `max_offset`.

    `last_stored_ms` is the time of the newest message in ms since the epoch, 0 if there is none.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Shows a topic's queues, and its messages per second in the last minute (0 before 5.0)."""

    topic: str
    put_per_s: float
    queues: tuple[QueueStats, ...]

    @property
    def messages(self) -> int:
        """Return how many messages lie in all queues, by their offsets."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)

    @property
    def last_stored_ms(self) -> int:
        """Return the time of the newest message in ms since the epoch, 0 if there is none."""
        return max((queue.last_stored_ms for queue in self.queues), default=0)


def stats_of(
    topic: str, found: Mapping[str, tuple[dict[MessageQueue, TopicOffset], float]]
) -> TopicStats:
    """Join the statistics of a topic from several brokers, each with its own queues and rate."""
    queues = {queue: offset for table, _ in found.values() for queue, offset in table.items()}
    return TopicStats(
        topic,
        sum(rate for _, rate in found.values()),
        tuple(
            QueueStats(queue, at.min_offset, at.max_offset, at.last_update_timestamp)
            for queue, at in sorted(queues.items(), key=lambda item: item[0])
        ),
    )

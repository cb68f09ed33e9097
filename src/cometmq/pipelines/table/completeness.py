"""Find the time up to which the tables have all stored messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import QueueState


class Completeness:
    """Remembers for each queue the time up to which the tables have its messages.

    A queue that was archived up to its end is complete up to the look that found this end. Any other queue is
    complete up to the store time of its last archived message, by the clock of its broker. While a broker is
    away, or a table cannot be published, the times stay as they are.
    """

    def __init__(self) -> None:
        self._until_ms: dict[MessageQueue, int] = {}

    def until_ms(
        self,
        queues: Sequence[QueueState],
        ends: Mapping[MessageQueue, int],
        looked_ms: int,
        *,
        are_published: bool,
    ) -> dict[str, int]:
        """Return the time for each topic, in ms since the epoch: that of its least complete queue.

        It is 0 for a topic with a queue that has no known time.
        """
        topics: dict[str, int] = {}
        for state in queues:
            queue = state.queue
            marked_ms = state.mark[1] if state.mark else 0
            found_ms = self._until_ms.get(queue, marked_ms)
            if are_published and queue in ends:
                is_whole = state.to >= ends[queue]
                found_ms = max(found_ms, looked_ms if is_whole else marked_ms)
            self._until_ms[queue] = found_ms
            topics[state.topic] = min(found_ms, topics.get(state.topic, found_ms))
        return topics

"""Say until when the tables have all messages that were stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import QueueState


class Completeness:
    """Remembers of each queue until when the tables have its messages.

    A queue that was archived up to its end is complete until the look that found this end; another one
    until its last archived message was stored, by the clock of its broker. While a broker is away, or a
    table cannot be published, the times stay as they are.
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
        """Return the time of each topic: that of its least complete queue, in ms since the epoch; 0 for a
        topic with a queue of which it is unknown.
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

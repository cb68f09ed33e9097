"""Define the message queue, one ordered part of a topic on one broker (Java: MessageQueue)."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Names one queue of a topic on one broker.

    As in Java, queues are ordered by topic, then broker name, then queue id.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

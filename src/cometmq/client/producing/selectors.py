"""Choose the queue by a key (Java: MessageQueueSelector, SelectMessageQueueByHash)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cometmq.errors import IllegalArgumentError
from cometmq.model.java.hashing import java_hash
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue

# Called with the topic's queues in order, the message and the caller's key.
QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def select_by_hash(queues: Sequence[MessageQueue], _message: Message, key: Any) -> MessageQueue:
    """Return the same queue for the same key, as long as the number of queues stays the same.

    Text keys and 32-bit integers choose the queue that they choose in a Java producer. The text of
    any other key chooses its queue.
    """
    return queue_of_key(queues, key)


def queue_of_key(queues: Sequence[MessageQueue], key: Any) -> MessageQueue:
    """Return the queue that `select_by_hash` returns."""
    if isinstance(key, int) and -(2**31) <= key < 2**31:
        value = key
    else:
        value = java_hash(key if isinstance(key, str) else str(key))
    return queues[abs(value) % len(queues)]


def select_queue(
    selector: QueueSelector | None, queues: Sequence[MessageQueue], message: Message, key: Any
) -> MessageQueue:
    """Return the selector's choice. Raises IllegalArgumentError when it is none of `queues`."""
    queue = (selector or select_by_hash)(queues, message, key)
    if queue not in queues:
        raise IllegalArgumentError(
            f"the queue selector returned {queue!r}, which is none of the {len(queues)} queues of "
            f"topic {message.topic}"
        )
    return queue

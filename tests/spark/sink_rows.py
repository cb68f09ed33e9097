"""Topics and what lies in them, for the tests of the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import LitePullConsumer, Message, MessageQueue, Producer, PullStatus
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError
from cometmq.model.message import MessageExt

_MADE = b"made"


def make_topic(namesrv: str, topic: str, brokers: tuple[str, ...] = ("broker-a",)) -> None:
    """Have brokers create the topic, each with a message that `messages_of` leaves out."""
    with Producer("maker", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for broker in brokers:
            producer.send(Message(topic, _MADE), queue=MessageQueue(topic, broker, 0))

    def queues() -> list[MessageQueue]:
        with Producer("looker", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            return producer.queues(topic)

    eventually(
        queues,
        lambda found: {queue.broker_name for queue in found} >= set(brokers),
        wait_s=JVM_WAIT_S,
        passing=(CometMQError,),
    )


def messages_of(namesrv: str, topic: str) -> list[MessageExt]:
    """All messages of a topic, queue by queue in the order of the queues."""
    found: list[MessageExt] = []
    with (
        LitePullConsumer("sink-reader", namesrv=namesrv) as consumer,
        Producer("sink-reader", namesrv=namesrv) as producer,
    ):
        for queue in producer.queues(topic):
            found += _of_queue(consumer, queue)
    return [message for message in found if message.body != _MADE]


def wait_for(
    namesrv: str, topic: str, count: int, ended: Callable[[], bool] = lambda: False
) -> None:
    """Until so many messages are there, or what sends them has ended."""
    with BlockingRangeReader(namesrv=namesrv) as reader:

        def there() -> int:
            bounds = reader.offsets(reader.queues(topic))
            return sum(high - low for low, high in bounds.values())

        eventually(
            there,
            lambda found: found >= count or ended(),
            wait_s=JVM_WAIT_S,
            passing=(CometMQError,),
        )


def awaited_messages(namesrv: str, topic: str, count: int) -> list[MessageExt]:
    """When so many are there; delayed ones come later than they were sent."""
    return eventually(
        lambda: messages_of(namesrv, topic),
        lambda found: len(found) >= count,
        wait_s=JVM_WAIT_S,
        passing=(CometMQError,),
    )


def _of_queue(consumer: LitePullConsumer, queue: MessageQueue) -> Iterator[MessageExt]:
    offset = 0
    while True:
        answer = consumer.pull(queue, offset, 1024)
        if answer.status is PullStatus.NO_NEW_MSG:
            return
        yield from answer.messages
        offset = answer.next_begin_offset


def by_key(
    messages: list[MessageExt], key: Callable[[MessageExt], str | None]
) -> dict[str, list[str]]:
    """Of each key the bodies in the order of their queue; fails for a key in two queues."""
    bodies: dict[str, list[str]] = {}
    places: dict[str, tuple[str, int]] = {}
    for message in messages:
        name = key(message) or ""
        place = message.broker_name, message.queue_id
        assert places.setdefault(name, place) == place, f"{name} is in {place} too"
        bodies.setdefault(name, []).append(message.body.decode())
    return bodies

"""Several handlers in one consumer, and batches that wait for more messages."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.test_positions import FIRST, fill, queue_of
from tests.waits import CLOCK, eventually

from cometmq import ConsumeResult, Message, MessageExt, PushConsumer
from cometmq.errors import ClientStateError, IllegalArgumentError

pytestmark = [
    pytest.mark.faces("virtual", "blocking"),
    pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"}),
]
NOBODY = "127.0.0.1:1"


class Bills(Received):
    """Keeps the sizes of the lists, too."""

    def __init__(self, answer: ConsumeResult | None = ConsumeResult.SUCCESS) -> None:
        super().__init__(answer)
        self.sizes: list[int] = []

    def handle(self, messages: list[MessageExt]) -> ConsumeResult | None:
        self.sizes.append(len(messages))
        return super().handle(messages)


def send(face: Face, topic: str, *tags: str | None) -> None:
    """Send a message for each tag, whose body is the tag, to one queue."""
    producer = face.producer(f"{topic}-send-{len(tags)}")
    for tag in tags:
        message = Message(topic, (tag or "none").encode(), tags=tag)
        result = producer.send(message, queue=queue_of(topic))
    face.until_readable(result)
    producer.close()


@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"mode": "pop"}], ids=str)
def test_each_message_goes_to_its_handler(face: Face, name: str, options: dict[str, Any]) -> None:
    other = f"{name}-other"
    send(face, name, "paid", "sent", "lost", "refunded", "paid", None)
    send(face, other, "paid", None)
    bills, parcels, others = Bills(), Bills(), Bills()
    consumer = face.new_consumer(
        name, consume_from=FIRST, consume_message_batch_max_size=8, **options
    )
    consumer.on(name, tags=["paid", "refunded"])(face.listener(bills.handle))
    consumer.on(name, "sent")(face.listener(parcels.handle))
    consumer.on(other)(face.listener(others.handle))
    face.started(consumer)
    assert sorted(m.body for m in bills.wait_for(3)) == [b"paid", b"paid", b"refunded"]
    assert [m.body for m in parcels.wait_for(1)] == [b"sent"]
    assert sorted(m.body for m in others.wait_for(2)) == [b"none", b"paid"]
    if not options:
        eventually(lambda: consumer.committed(queue_of(name)) == 6)
    assert len(bills.bodies) == 3


def test_a_failed_message_comes_again_to_its_handler_alone(face: Face, name: str) -> None:
    send(face, name, "paid", "sent")
    bills, parcels = Received(ConsumeResult.RECONSUME_LATER), Received()
    consumer = face.new_consumer(name, consume_from=FIRST)
    consumer.on(name, ["paid"])(face.listener(bills.handle))
    consumer.on(name, ["sent"])(face.listener(parcels.handle))
    face.started(consumer)
    [first, again] = bills.wait_for(2)
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    assert parcels.bodies == [b"sent"]


@pytest.mark.faces("virtual")
def test_a_retry_without_a_handler_fails_by_name(face: Face, name: str) -> None:
    """The program that failed had a handler for the tag, this one has none."""
    send(face, name, "old")
    failing = Received(ConsumeResult.RECONSUME_LATER)
    before = face.new_consumer(name, consume_from=FIRST)
    before.on(name, ["old"])(face.listener(failing.handle))
    face.started(before)
    failing.wait_for(1)
    before.close()
    dead = Received()
    now = face.new_consumer(name, max_reconsume_times=1)
    now.on(name, ["new"])(face.listener(Received().handle))
    face.started(now)
    face.consumer(f"{name}-dead", f"%DLQ%{name}", dead.handle, consume_from=FIRST)
    [letter] = dead.wait_for(1)
    assert letter.body == b"old"
    assert "no handler takes messages of" in str(letter.failure)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_batch_waits_for_its_size_or_its_age(face: Face, name: str, *, orderly: bool) -> None:
    fill(face, name, b"first")
    bills = Bills()
    consumer = face.consumer(
        name,
        name,
        bills.handle,
        consume_from=FIRST,
        consume_message_batch_max_size=3,
        consume_message_batch_max_age_ms=700,
        orderly=orderly,
    )
    bills.wait_for(1)
    assert bills.sizes == [1]  # of age
    for number in range(4):
        fill(face, name, b"%d" % number)
    bills.wait_for(5)
    assert (sum(bills.sizes), max(bills.sizes)) == (5, 3)  # three were enough, one was of age
    eventually(lambda: consumer.committed(queue_of(name)) == 5)


@pytest.mark.faces("virtual")
def test_a_message_waits_no_longer_than_the_age(face: Face, name: str) -> None:
    bills = Bills()
    face.consumer(
        name,
        name,
        bills.handle,
        consume_from=FIRST,
        consume_message_batch_max_size=100,
        consume_message_batch_max_age_ms=5000,
    )
    CLOCK.sleep(60)
    fill(face, name, b"0")
    sent = CLOCK.monotonic()
    CLOCK.sleep(2)
    fill(face, name, b"1")
    bills.wait_for(2)
    assert bills.sizes == [2]
    assert CLOCK.monotonic() - sent < 8  # eventually looks now and then


def test_messages_that_wait_at_the_close_come_again(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1")
    bills, again = Bills(), Received()
    options: dict[str, Any] = {
        "consume_from": FIRST,
        "consume_message_batch_max_size": 100,
        "consume_message_batch_max_age_ms": 60_000,
    }
    consumer = face.consumer(name, name, bills.handle, **options)
    eventually(lambda: consumer.load().cached.get(name, (0, 0, 0))[1] == 2)
    consumer.close()
    assert bills.sizes == []
    face.consumer(name, name, again.handle, consume_from=FIRST)
    assert [m.body for m in again.wait_for(2)] == [b"0", b"1"]


def test_handlers_that_contradict_each_other_are_refused_by_name() -> None:
    consumer = PushConsumer("g", namesrv=NOBODY)

    @consumer.on("orders", tags=["paid", "refunded"])
    def bill(_messages: list[MessageExt]) -> None: ...

    overlapping = r"bill and .*other both take messages of orders with tag refunded; .*not shared"
    with pytest.raises(IllegalArgumentError, match=overlapping):

        @consumer.on("orders", "refunded || sent")
        def other(_messages: list[MessageExt]) -> None: ...

    with pytest.raises(IllegalArgumentError, match="both take messages of orders;"):
        consumer.on("orders")(lambda _messages: None)

    async def on_loop(_messages: list[MessageExt]) -> None: ...

    with pytest.raises(IllegalArgumentError, match=r"all handlers of a consumer are of one kind"):
        consumer.on("parcels")(on_loop)
    with pytest.raises(IllegalArgumentError, match=r"the tag '\*' of topic parcels is no tag"):
        consumer.on("parcels", ["*"])(bill)
    with pytest.raises(IllegalArgumentError, match="tags of topic parcels are empty"):
        consumer.on("parcels", [])(bill)
    with pytest.raises(IllegalArgumentError, match="the handler 7 cannot be called"):
        consumer.on("parcels")(7)  # type: ignore[type-var]  # that is the mistake
    with pytest.raises(ClientStateError, match=r"has handlers by on\(\)"):
        consumer.listen(bill)
    with pytest.raises(ClientStateError, match=r"add on\('parcels'\) instead"):
        consumer.subscribe("parcels")
    listening = PushConsumer("g", bill, namesrv=NOBODY)
    with pytest.raises(ClientStateError, match="has a listener for all messages"):
        listening.on("orders")(bill)
    half = PushConsumer("g", namesrv=NOBODY)
    half.subscribe("parcels")
    half.on("orders")(bill)
    with pytest.raises(ClientStateError, match="subscribes to parcels, of which no handler"):
        half.start()
    for one in (consumer, listening, half):
        one.close()


def test_an_age_without_a_size_is_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="set consume_message_batch_max_size, too"):
        PushConsumer("g", namesrv=NOBODY, consume_message_batch_max_age_ms=100)
    with pytest.raises(IllegalArgumentError, match="means nothing to a consumer of mode='pop'"):
        PushConsumer(
            "g",
            namesrv=NOBODY,
            mode="pop",
            consume_message_batch_max_size=2,
            consume_message_batch_max_age_ms=100,
        )

"""Values as payloads by both faces: producers encode them, consumers decode them, what does not fit goes where
the user says.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.test_failure_notes import letters_of
from tests.integration.test_lite_pull import queue_of
from tests.waits import eventually

from cometmq import (
    ConsumeFromWhere,
    ConsumeReport,
    LocalTransactionState,
    Message,
    MessageExt,
    SendResult,
)
from cometmq.aio import SimpleConsumer, TransactionProducer
from cometmq.errors import (
    RouteNotFoundError,
    SchemaRegistryError,
    UndecodableError,
    UnencodableError,
)
from cometmq.payloads import Avro, Json, Registered, Schema
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s"}
    ),
    pytest.mark.faces("virtual", "blocking"),
]


class Order(msgspec.Struct):
    id: str
    quantity: int


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "quantity", "type": "int"}],
}


class Values:
    """Is a listener that keeps the values of what came, in the order in which it came."""

    def __init__(self) -> None:
        self.received = Received()
        self.values: list[Any] = []

    def handle(self, messages: list[MessageExt]) -> None:
        self.values += [message.value for message in messages]
        self.received.handle(messages)


def send_with_a_bad_one(face: Face, topic: str) -> None:
    """Send three messages to one queue, of which the second does not fit."""
    producer = face.producer(topic, codecs={topic: Json(Order)})
    queue = queue_of(topic)
    producer.send(Message(topic, value=Order("O-1", 1), keys="O-1"), queue=queue)
    producer.send(Message(topic, b'{"id":"O-2","quantity":"two"}', keys="O-2"), queue=queue)
    producer.send(Message(topic, value=Order("O-3", 3), keys="O-3"), queue=queue)


def options_of(mode: str) -> dict[str, Any]:
    return {"orderly": True} if mode == "orderly" else {"mode": mode}


def test_each_way_to_send_encodes_a_value(face: Face, name: str) -> None:
    listener = Values()
    codecs = {f"{name[:-1]}?": Json(Order)}
    producer = face.producer(name, codecs=codecs)
    face.consumer(name, name, listener.handle, consume_from=FIRST, codecs=codecs)
    producer.send(Message(name, value=Order("send", 1), keys="O-1", tags="paid"))
    sent = producer.send_async(Message(name, value=Order("async", 1)))
    if not isinstance(sent, SendResult):  # the blocking face's future
        sent.result()
    producer.send_oneway(Message(name, value=Order("oneway", 1)))
    producer.send_batch([Message(name, value=Order(f"batch-{n}", 1)) for n in range(2)])
    listener.received.wait_for(5)
    assert sorted(value.id for value in listener.values) == [
        "async", "batch-0", "batch-1", "oneway", "send",
    ]  # fmt: skip
    with pytest.raises(UnencodableError, match=rf"topic {name} .*`\$\.quantity`"):
        producer.send(Message(name, value=Order("O-1", "two")))  # type: ignore[arg-type]  # a wrong one
    with pytest.raises(UnencodableError, match="no codec is for this topic"):
        producer.send(Message("elsewhere", value=1))


@pytest.mark.parametrize("mode", ["pull", "pop", "orderly"])
def test_a_dead_letter_has_the_reason_and_the_others_are_consumed(
    face: Face, name: str, mode: str, keeps_notes: bool
) -> None:
    send_with_a_bad_one(face, name)
    listener = Values()
    face.consumer(
        name, name, listener.handle, consume_from=FIRST, codecs={name: Json(Order)},
        on_undecodable="dead-letter", **options_of(mode),
    )  # fmt: skip
    listener.received.wait_for(2)
    letter = letters_of(face, name)
    assert (letter.keys, letter.body) == (("O-2",), b'{"id":"O-2","quantity":"two"}')
    assert letter.origin_topic == name
    assert (letter.failure is not None) == (keeps_notes or mode == "orderly")
    if letter.failure is not None:
        assert letter.failure.type == "UndecodableError"
        assert letter.failure.text.startswith(f"topic {name}: does not fit Json(Order)")
        assert "`$.quantity`" in letter.failure.text
    assert sorted(value.id for value in listener.values) == ["O-1", "O-3"]


@pytest.mark.parametrize("mode", ["pull", "pop", "orderly"])
def test_a_retry_comes_again_and_ends_among_the_dead_letters(
    face: Face, name: str, mode: str, keeps_notes: bool
) -> None:
    send_with_a_bad_one(face, name)
    listener = Values()
    face.consumer(
        name, name, listener.handle, consume_from=FIRST, codecs={name: Json(Order)},
        on_undecodable="retry", max_reconsume_times=1, consume_message_batch_max_size=3,
        **options_of(mode),
    )  # fmt: skip
    listener.received.wait_for(2)
    letter = letters_of(face, name)
    assert letter.keys == ("O-2",)
    assert (letter.failure is not None) == (keeps_notes or mode == "orderly")
    if letter.failure is not None:
        assert letter.failure.type == "UndecodableError"
    assert letter.reconsume_times == 2
    assert sorted(value.id for value in listener.values) == ["O-1", "O-3"]


def test_without_a_choice_the_listener_meets_the_error_where_it_reads_the_value(
    face: Face, name: str
) -> None:
    send_with_a_bad_one(face, name)
    met: dict[tuple[str, ...], str] = {}
    received = Received()

    def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            try:
                met[message.keys] = message.value.id
            except UndecodableError as error:
                met[message.keys] = error.topic
        received.handle(messages)

    face.consumer(name, name, handle, consume_from=FIRST, codecs={name: Json(Order)})
    received.wait_for(3)
    assert met == {("O-1",): "O-1", ("O-2",): name, ("O-3",): "O-3"}


def test_a_function_says_where_a_message_goes_or_that_it_is_done(face: Face, name: str) -> None:
    send_with_a_bad_one(face, name)
    producer = face.producer(f"{name}-more")
    producer.send(Message(name, b"letter", keys="letter"))
    kept: list[tuple[str, ...]] = []

    def judge(message: MessageExt, error: UndecodableError) -> Any:
        assert error.topic == name
        kept.append(message.keys)
        return "dead-letter" if message.body == b"letter" else None

    listener = Values()
    consumer = face.consumer(
        name, name, listener.handle, consume_from=FIRST, codecs={name: Json(Order)},
        on_undecodable=judge, consume_message_batch_max_size=8,
    )  # fmt: skip
    listener.received.wait_for(2)
    assert letters_of(face, name).keys == ("letter",)
    eventually(lambda: sorted(kept) == [("O-2",), ("letter",)])
    eventually(lambda: all(each.messages == 0 for each in consumer.load().cached.values()))


def test_a_part_of_a_batch_is_acknowledged_although_one_of_it_does_not_fit(
    face: Face, name: str
) -> None:
    send_with_a_bad_one(face, name)
    seen: list[list[str]] = []
    received = Received()

    def handle(messages: list[MessageExt]) -> Any:
        seen.append([message.value.id for message in messages])
        received.handle(messages)
        return ConsumeReport(ack_index=0)

    face.consumer(
        name, name, handle, consume_from=FIRST, codecs={name: Json(Order)},
        on_undecodable="dead-letter", consume_message_batch_max_size=8,
    )  # fmt: skip
    received.wait_for(2)
    assert letters_of(face, name).keys == ("O-2",)
    assert {"O-1", "O-3"} == {each for batch in seen for each in batch}
    if ["O-1", "O-3"] in seen:  # they came in one batch, whose second part comes again
        eventually(lambda: ["O-3"] in seen)


def test_a_poll_returns_what_fits(face: Face, name: str) -> None:
    send_with_a_bad_one(face, name)
    consumer = face.new_lite_pull_consumer(
        name, consume_from=FIRST, codecs={name: Json(Order)}, on_undecodable="dead-letter"
    )
    consumer.subscribe(name)
    face.started(consumer)
    values: list[str] = []

    def polled() -> bool:
        values.extend(message.value.id for message in consumer.poll(1000))
        return values == ["O-1", "O-3"]

    eventually(polled)
    assert letters_of(face, name).keys == ("O-2",)


def test_a_poll_of_assigned_queues_returns_what_nobody_can_take_back(face: Face, name: str) -> None:
    send_with_a_bad_one(face, name)
    consumer = face.new_lite_pull_consumer(
        name, consume_from=FIRST, codecs={name: Json(Order)}, on_undecodable="dead-letter"
    )
    consumer.assign([queue_of(name)])
    face.started(consumer)
    polled: list[MessageExt] = []

    def all_came() -> bool:
        polled.extend(consumer.poll(1000))
        return len(polled) == 3

    eventually(all_came)
    with pytest.raises(UndecodableError, match=name):
        _ = polled[1].value
    assert [polled[0].value.id, polled[2].value.id] == ["O-1", "O-3"]


@pytest.mark.parametrize("place", ["dead-letter", "retry"])
def test_an_iteration_skips_what_does_not_fit(face: Face, name: str, place: str) -> None:
    send_with_a_bad_one(face, name)
    consumer = face.new_lite_pull_consumer(
        name, consume_from=FIRST, codecs={name: Json(Order)}, on_undecodable=place
    )
    consumer.subscribe(name)
    following = face.following(face.started(consumer))
    for expected in ("O-1", "O-3"):
        with next(following) as message:
            assert message.value.id == expected
    if place == "dead-letter":
        assert letters_of(face, name).keys == ("O-2",)


def test_a_simple_consumer_receives_what_fits(face: Face, name: str, keeps_notes: bool) -> None:
    send_with_a_bad_one(face, name)
    consumer = face.new_simple_consumer(
        name, codecs={name: Json(Order)}, on_undecodable="dead-letter"
    )
    consumer.subscribe(name)
    face.started(consumer)
    values: list[str] = []

    def received() -> bool:
        for message in face.received(consumer.receive(wait_ms=1000)):
            values.append(message.value.id)
            message.ack()
        return sorted(values) == ["O-1", "O-3"]

    eventually(received, passing=(RouteNotFoundError,))
    letter = letters_of(face, name)
    assert letter.keys == ("O-2",)
    assert (letter.failure is not None) == keeps_notes
    if letter.failure is not None:
        assert letter.failure.type == "UndecodableError"


class Outage:
    """Is a registry that does not answer the first two questions for a schema."""

    def __init__(self) -> None:
        self.left = 2

    async def schema(self, _schema_id: int) -> Schema | None:
        if self.left:
            self.left -= 1
            raise SchemaRegistryError("the registry does not answer", retriable=True)
        return Schema("AVRO", json.dumps(SCHEMA))

    async def id_of(self, _subject: str, _schema: Schema) -> int:
        return 7

    async def register(self, _subject: str, _schema: Schema) -> int:
        return 7


@pytest.mark.parametrize("mode", ["pull", "pop", "orderly"])
def test_a_registry_that_does_not_answer_makes_no_message_a_dead_letter(
    face: Face, name: str, mode: str
) -> None:
    registry = Outage()
    codecs = {name: Registered(Avro(SCHEMA, Order), registry)}
    face.producer(name, codecs=codecs).send(Message(name, value=Order("O-1", 1)))
    listener = Values()
    face.consumer(
        name, name, listener.handle, consume_from=FIRST, codecs=codecs,
        on_undecodable="dead-letter", **options_of(mode),
    )  # fmt: skip
    (message,) = listener.received.wait_for(1)
    assert (message.value, message.properties["SCHEMA_ID"]) == (Order("O-1", 1), "7")
    assert registry.left == 0


def test_a_poll_during_an_outage_returns_the_message_and_its_value_says_so(
    face: Face, name: str
) -> None:
    registry = Outage()
    codecs = {name: Registered(Avro(SCHEMA, Order), registry)}
    face.producer(name, codecs=codecs).send(Message(name, value=Order("O-1", 1)))
    consumer = face.new_lite_pull_consumer(
        name, consume_from=FIRST, codecs=codecs, on_undecodable="dead-letter"
    )
    consumer.subscribe(name)
    face.started(consumer)
    polled: list[MessageExt] = []

    def came() -> bool:
        polled.extend(consumer.poll(1000))
        return bool(polled)

    eventually(came)
    with pytest.raises(SchemaRegistryError, match="schema 7 is not fetched"):
        _ = polled[0].value


@pytest.mark.parametrize("given", ["skip", 5, ""])
def test_a_place_that_is_none_is_refused(face: Face, name: str, given: Any) -> None:
    for new in (face.new_lite_pull_consumer, face.new_simple_consumer, face.new_consumer):
        with pytest.raises(ValueError, match="'raise', 'retry', 'dead-letter'"):
            new(name, on_undecodable=given)


def test_a_transaction_a_request_and_a_simple_retry_carry_values() -> None:
    """The faces have no common form of these, so asyncio has them in virtual time."""
    codecs = {"orders": Json(Order)}
    executed: list[Any] = []

    class Committing:
        def execute(self, message: Message, _arg: Any) -> LocalTransactionState:
            executed.append(message.value)
            return LocalTransactionState.COMMIT

        def check(self, _message: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.COMMIT

    async def scenario(namesrv: str) -> None:
        producer = TransactionProducer("shop", Committing(), namesrv=namesrv, codecs=codecs)
        consumer = SimpleConsumer(
            "billing", namesrv=namesrv, codecs=codecs, on_undecodable="retry", wait_ms=60_000
        )
        consumer.subscribe("orders")
        async with producer, consumer:
            with pytest.raises(UnencodableError):
                await producer.send_in_transaction(Message("orders", value="no order"))
            with pytest.raises(UnencodableError):
                await producer.request(Message("orders", value="no order"))
            assert executed == []
            await producer.send_in_transaction(Message("orders", value=Order("O-1", 1)))
            await producer.send(Message("orders", b"no order"))
            await producer.send(Message("orders", value=Order("O-2", 1)))
            values: list[str] = []
            while len(values) < 2:
                for message in await consumer.receive():
                    values.append(message.value.id)
                    await message.ack()
            assert sorted(values) == ["O-1", "O-2"]
            plain = SimpleConsumer("billing", namesrv=namesrv, wait_ms=60_000)
            plain.subscribe("orders")
            await consumer.close()
            async with plain:
                (again,) = await plain.receive()
                assert (again.body, again.reconsume_times > 0) == (b"no order", True)
                await again.ack()

    with Cluster(clock="virtual", seed=3) as cluster:
        cluster.run(scenario(cluster.namesrv))
    assert executed == [Order("O-1", 1)]

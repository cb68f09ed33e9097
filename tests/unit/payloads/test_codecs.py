"""Values become bodies and come back; what does not fit is named before it is sent and when it is read."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from cometmq.errors import IllegalArgumentError, UndecodableError, UnencodableError
from cometmq.model.message import Message, MessageExt
from cometmq.payloads import Avro, Codec, Codecs, Custom, Json, OneOf, Protobuf
from cometmq.payloads.avro_walk import MAX_AVRO_DECIMAL_BYTES, MAX_AVRO_DEPTH, MAX_AVRO_VALUES


class Order(msgspec.Struct):
    id: str
    quantity: int


class Refund(msgspec.Struct):
    id: str
    cents: int


@dataclass
class Customer:
    name: str
    orders: list[Order]


class Address(TypedDict):
    street: str
    number: int


class Invoice(pydantic.BaseModel):
    id: str
    cents: int = pydantic.Field(alias="amount")


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "quantity", "type": "int"}],
}


async def sent(codecs: Codecs, message: Message) -> MessageExt:
    """Return the message as a consumer gets it."""
    await codecs.encode(message)
    return MessageExt(message.topic, message.body, properties=message.properties)


@pytest.mark.parametrize(
    ("codec", "value", "body"),
    [
        (Json(Order), Order("O-1", 2), b'{"id":"O-1","quantity":2}'),
        (Json(Customer), Customer("Bo", [Order("O-1", 2)]), None),
        (Json(Address), {"street": "Main", "number": 7}, b'{"street":"Main","number":7}'),
        (Json(list[Order]), [Order("O-1", 2)], b'[{"id":"O-1","quantity":2}]'),
        (Json(Invoice), Invoice(id="I-1", amount=5), b'{"id":"I-1","amount":5}'),
        (Avro(SCHEMA), {"id": "O-1", "quantity": 2}, b"\x06O-1\x04"),
        (Avro(SCHEMA, Order), Order("O-1", 2), b"\x06O-1\x04"),
        (Protobuf(Timestamp), Timestamp(seconds=5), b"\x08\x05"),
        (Custom(str.encode, bytes.decode, str), "plain", b"plain"),
    ],
)
async def test_a_value_becomes_a_body_and_comes_back(
    codec: Codec[Any], value: Any, body: bytes | None
) -> None:
    codecs = Codecs({"orders": codec})
    received = await sent(codecs, Message("orders", value=value, keys="O-1"))
    assert body is None or received.body == body
    await codecs.decode(received)
    assert received.value == value
    assert received.value is received.value  # decoded once
    assert codec.value(received) == value
    assert received.keys == ("O-1",)


@pytest.mark.parametrize(
    ("codec", "value", "fault"),
    [
        (Json(Order), {"id": "O-1"}, r"dict for topic orders does not fit Json\(Order\): .*Order"),
        (Json(Order), Order("O-1", "two"), r"`\$\.quantity`"),  # type: ignore[arg-type]  # a wrong one
        (Json(Address), {"street": "Main"}, "missing required field `number`"),
        (Avro(SCHEMA), {"id": "O-1", "quantity": 2**40}, r"Order\.quantity is <1099511627776>"),
        (Avro(SCHEMA), {"id": "O-1", "quantity": 1, "more": 1}, "more"),
        (Avro(SCHEMA, Order), Order("O-1", "two"), r"Order\.quantity"),  # type: ignore[arg-type]  # a wrong one
        (Protobuf(Timestamp), StringValue(value="x"), "Expected Timestamp, got StringValue"),
        (Custom(str.encode, bytes.decode, str), b"bytes", "Expected str, got bytes"),
    ],
)
async def test_a_value_that_does_not_fit_is_not_sent_and_names_topic_type_and_field(
    codec: Codec[Any], value: Any, fault: str
) -> None:
    message = Message("orders", value=value)
    with pytest.raises(UnencodableError, match=fault) as caught:
        await Codecs({"orders": codec}).encode(message)
    assert "topic orders" in str(caught.value)
    assert message.body == b""


async def test_a_model_whose_field_was_set_wrong_is_not_sent() -> None:
    invoice = Invoice(id="I-1", amount=5)
    object.__setattr__(invoice, "cents", "five")
    with (
        pytest.warns(UserWarning, match="serializer"),
        pytest.raises(UnencodableError, match="amount"),
    ):
        await Codecs({"t": Json(Invoice)}).encode(Message("t", value=invoice))


@pytest.mark.parametrize(
    ("codec", "body", "fault"),
    [
        (Json(Order), b'{"id":"O-1","quantity":"x"}', r"`\$\.quantity`"),
        (Json(Order), b"\xff", "malformed"),
        (Json(Any), b"[" * 100_000, "recursion limit"),
        (Avro(SCHEMA), b"\x06O", "EOFError"),
        (Avro(SCHEMA), b"\x06O-1\x04more", "4 bytes are left"),
        (Avro(SCHEMA), b"\xfe\xff\xff\xff\xff\xff\xff\x7f", "EOFError"),
        (Protobuf(Timestamp), b"\xff", "DecodeError"),
        (Custom(str.encode, bytes.decode, str), b"\xff", "UnicodeDecodeError"),
    ],
)
async def test_a_body_that_does_not_fit_names_topic_and_fault(
    codec: Codec[Any], body: bytes, fault: str
) -> None:
    message = MessageExt("orders", body)
    with pytest.raises(UndecodableError, match=fault) as caught:
        await Codecs({"orders": codec}).decode(message)
    assert caught.value.topic == "orders"
    with pytest.raises(UndecodableError):
        _ = message.value  # the same again, without decoding


def test_a_message_has_a_body_or_a_value_and_says_what_is_missing() -> None:
    with pytest.raises(IllegalArgumentError, match="neither body nor value"):
        Message("orders")
    with pytest.raises(IllegalArgumentError, match="a body and a value"):
        Message("orders", b"x", value=1)
    with pytest.raises(UndecodableError, match=r"codecs=\{'orders'"):
        _ = MessageExt("orders", b"x").value
    copied = pickle.loads(pickle.dumps(MessageExt("orders", b"x")))
    with pytest.raises(UndecodableError):
        _ = copied.value
    assert Message("orders", value=None).value is None


async def test_the_codec_of_a_topic_is_the_exact_one_then_the_first_pattern() -> None:
    exact, first, second = Json(Order), Json(Refund), Json(int)
    codecs = Codecs({"shop-*": first, "shop-orders": exact, "shop-order?": second, "x%y-*": second})
    assert codecs.of("shop-orders") is exact
    assert codecs.of("shop-orderz") is first
    assert codecs.of("x%y-1") is second
    assert codecs.of("shop") is None
    with pytest.raises(UnencodableError, match=r"codecs=\{'shop'"):
        await codecs.encode(Message("shop", value=1))
    plain = MessageExt("shop", b"x")
    await codecs.decode(plain)  # nothing to do


async def test_a_retry_is_decoded_by_the_codec_of_its_first_topic() -> None:
    message = MessageExt(
        "%RETRY%billing", b'{"id":"O-1","quantity":2}', properties={"RETRY_TOPIC": "orders"}
    )
    await Codecs({"orders": Json(Order)}).decode(message)
    assert message.value == Order("O-1", 2)


async def test_one_topic_has_values_of_several_types() -> None:
    codecs = Codecs({"events": OneOf(Json(Order), Json(Refund), Protobuf(Int32Value))})
    for value in (Order("O-1", 2), Refund("R-1", 3), Int32Value(value=4)):
        received = await sent(codecs, Message("events", value=value))
        await codecs.decode(received)
        assert received.value == value
    with pytest.raises(
        UnencodableError, match=r"one of Order, Refund, google\.protobuf\.Int32Value"
    ):
        await codecs.encode(Message("events", value="text"))
    unknown = MessageExt("events", b"{}", properties={"PAYLOAD_TYPE": "Return"})
    with pytest.raises(UndecodableError, match="PAYLOAD_TYPE is 'Return', none of Order"):
        await codecs.decode(unknown)
    with pytest.raises(IllegalArgumentError, match="another name"):
        OneOf(Json(Order), Json(Order))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([Json(Order)], "pass a dict"),
        ({"a b": Json(Order)}, "neither a topic nor a pattern"),
        ({"orders": Order}, "pass a Codec"),
        ({f"t{n}": Json(Order) for n in range(1001)}, "MAX_CODECS"),
    ],
)
def test_wrong_codecs_are_refused_when_they_are_given(given: Any, fault: str) -> None:
    with pytest.raises(IllegalArgumentError, match=fault):
        Codecs(given)


async def test_a_body_above_the_limit_is_not_decoded() -> None:
    codecs = Codecs({"orders": Json(list[int])}, max_payload_bytes=10)
    with pytest.raises(
        UndecodableError, match="11 bytes, the limit max_payload_bytes is 10"
    ) as caught:
        await codecs.decode(MessageExt("orders", b"[1,2,3,4,5]"))
    assert caught.value.limit == "max_payload_bytes"


NODE = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
NOTHINGS = {"type": "array", "items": "null"}
EMPTY = {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}


@pytest.mark.parametrize(
    ("schema", "body", "fault"),
    [
        # fastavro itself ends the process at these two, by its stack and by its memory.
        (NODE, b"\x02" * 3_000_000 + b"\x00", f"MAX_AVRO_DEPTH is {MAX_AVRO_DEPTH}"),
        (NOTHINGS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", f"{MAX_AVRO_VALUES} values"),
        (EMPTY, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", f"{MAX_AVRO_VALUES} values"),
        (NODE, b"\x04", "none of the number 2"),
        (NODE, b"\x02", "ends in the middle"),
        (NODE, b"\x80" * 20, "more than 10 bytes"),
    ],
)
async def test_a_hostile_avro_body_harms_only_itself(schema: Any, body: bytes, fault: str) -> None:
    with pytest.raises(UndecodableError, match=fault):
        await Codecs({"t": Avro(schema)}).decode(MessageExt("t", body))


TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "key", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "data", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "by_name", "type": {"type": "map", "values": "Tree"}},
        {"name": "children", "type": {"type": "array", "items": "Tree"}},
        {"name": "weight", "type": "double"},
        {"name": "flag", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
    ],
}


async def test_values_of_a_schema_that_refers_to_itself_come_back() -> None:
    leaf = {"key": "A", "data": b"xy", "by_name": {}, "children": [], "weight": 1.5, "flag": True}
    leaf["note"] = None
    tree = {**leaf, "by_name": {"left": leaf}, "children": [leaf, {**leaf, "note": "right"}]}
    codecs = Codecs({"t": Avro(TREE), "n": Avro(NOTHINGS)})
    for topic, value in (("t", tree), ("n", [None] * 5)):
        received = await sent(codecs, Message(topic, value=value))
        await codecs.decode(received)
        assert received.value == value


def test_a_schema_that_is_none_is_refused_when_it_is_given() -> None:
    with pytest.raises(IllegalArgumentError, match="no Avro schema"):
        Avro({"type": "nonsense"})
    with pytest.raises(IllegalArgumentError, match="MAX_SCHEMA_BYTES"):
        Avro(base64.b64encode(bytes(300_000)).decode())


def test_type_checkers_know_the_values_of_a_codec() -> None:
    """The comments name the mistakes that mypy has to find; it fails over one that it does not."""
    orders = Json(Order)
    message = MessageExt("orders", b'{"id":"O-1","quantity":2}')
    Codecs({"orders": orders}).prepare_now(message)
    assert_type(orders.value(message), Order)
    assert_type(Avro(SCHEMA, Order), Avro[Order])
    assert_type(Protobuf(Timestamp), Protobuf[Timestamp])
    assert_type(Custom(str.encode, bytes.decode), Custom[str])
    with pytest.raises(AttributeError):
        _ = orders.value(message).price  # type: ignore[attr-defined]  # a planted mistake
    with pytest.raises(TypeError):
        orders.encode("orders", Refund("R-1", 3))  # type: ignore[arg-type]  # a planted mistake
    with pytest.raises(TypeError):
        Json(5)  # type: ignore[arg-type]  # a planted mistake


def _decimal(kind: dict[str, Any]) -> dict[str, Any]:
    decimal = {**kind, "logicalType": "decimal", "precision": 38, "scale": 2}
    fields = [{"name": "price", "type": ["null", decimal]}, {"name": "note", "type": "string"}]
    return {"type": "record", "name": "Priced", "fields": fields}


@pytest.mark.parametrize(
    ("kind", "length"),
    # A length of 2,000,000 as a varint; fixed has none.
    [
        ({"type": "bytes"}, b"\x80\x92\xf4\x01"),
        ({"type": "fixed", "name": "F", "size": 2_000_000}, b""),
    ],
    ids=["bytes", "fixed"],
)
async def test_a_decimal_of_megabytes_is_refused_before_it_is_made(
    kind: dict[str, Any], length: bytes
) -> None:
    """The time to decode a decimal grows with the square of its bytes: two million would take minutes."""
    codecs = Codecs({"orders": Avro(_decimal(kind))})
    message = MessageExt("orders", b"\x02" + length + b"\x7f" * 2_000_000 + b"\0")
    with pytest.raises(
        UndecodableError, match=f"MAX_AVRO_DECIMAL_BYTES is {MAX_AVRO_DECIMAL_BYTES}"
    ):
        await codecs.decode(message, "orders")


async def test_a_body_with_decimals_is_walked_for_no_longer_than_others() -> None:
    """The walk is slower than fastavro: four million values would keep a loop for six seconds."""
    flags = {"name": "flags", "type": {"type": "array", "items": "boolean"}}
    schema = _decimal({"type": "bytes"})
    codecs = Codecs({"orders": Avro({**schema, "fields": [*schema["fields"], flags]})})
    count = MAX_AVRO_VALUES + 1
    value = {"price": Decimal("12.34"), "note": "", "flags": [True] * count}
    message = await sent(codecs, Message("orders", value=value))
    with pytest.raises(UndecodableError, match=f"{MAX_AVRO_VALUES} values"):
        await codecs.decode(message, "orders")


async def test_long_bodies_with_decimals_are_read() -> None:
    value = {"price": Decimal("12.34"), "note": "x" * 200_000}
    codecs = Codecs({"orders": Avro(_decimal({"type": "bytes"}))})
    message = await sent(codecs, Message("orders", value=value))
    await codecs.decode(message, "orders")
    assert message.value == value

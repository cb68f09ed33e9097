"""Schemas from a registry over real HTTP: ids, evolution, Confluent's wire format, refusals, outages."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from tests.unit.payloads.registry_server import Registrations, registry, trickle
from tests.waits import WAIT_S

from cometmq.errors import (
    IllegalArgumentError,
    SchemaRefusedError,
    SchemaRegistryError,
    UndecodableError,
)
from cometmq.model.message import Message, MessageExt
from cometmq.payloads import Avro, Codecs, Custom, Json, Protobuf, Registered, SchemaRegistry

pytestmark = pytest.mark.real_time

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "string"},
    {"name": "quantity", "type": "int"},
]
OLD = {"type": "record", "name": "Order", "fields": FIELDS}
NEW = {**OLD, "fields": [*FIELDS, {"name": "currency", "type": "string", "default": "EUR"}]}
WRONG = {**OLD, "fields": [*FIELDS, {"name": "currency", "type": "string"}]}
VALUE = {"id": "O-1", "quantity": 2}


class Order(msgspec.Struct):
    id: str
    quantity: int


@pytest.fixture
def server() -> Iterator[Registrations]:
    with registry() as running:
        yield running


async def passed(producer: Any, consumer: Any, value: Any) -> MessageExt:
    """Return the message that a consumer with a codec decoded, of one that a producer encoded."""
    message = Message("orders", value=value)
    await Codecs({"orders": producer}).encode(message)
    received = MessageExt("orders", message.body, properties=message.properties)
    await Codecs({"orders": consumer}).decode(received)
    return received


@pytest.mark.parametrize("wire", ["property", "confluent"])
async def test_a_body_of_an_older_schema_is_read_as_the_reader_sees_it(
    server: Registrations, wire: Any
) -> None:
    asked = SchemaRegistry(server.url)
    old = Registered(Avro(OLD), asked, register=True, wire=wire)
    new = Registered(Avro(NEW), SchemaRegistry(server.url), wire=wire)
    received = await passed(old, new, VALUE)
    assert received.value == {**VALUE, "currency": "EUR"}
    if wire == "confluent":
        assert received.body[:5] == b"\x00\x00\x00\x00\x64"
        assert "SCHEMA_ID" not in received.properties
    else:
        assert received.properties["SCHEMA_ID"] == "100"
    for _ in range(5):
        await passed(old, new, VALUE)
    assert server.asked == [
        ("POST", "/subjects/orders-value/versions"),
        ("GET", "/schemas/ids/100"),
    ]


@pytest.mark.parametrize("wire", ["property", "confluent"])
async def test_json_has_an_id_too_and_asks_nothing_to_be_read(
    server: Registrations, wire: Any
) -> None:
    asked = SchemaRegistry(f"{server.url}/")
    codec = Registered(Json(Order), asked, register=True, wire=wire, subject="all orders/x")
    received = await passed(codec, Registered(Json(Order), asked, wire=wire), Order("O-1", 2))
    assert received.value == Order("O-1", 2)
    assert server.asked == [("POST", "/subjects/all%20orders%2Fx/versions")]
    assert server.schemas[0]["schemaType"] == "JSON"
    dialect = json.loads(server.schemas[0]["schema"])["$schema"]
    assert dialect == "https://json-schema.org/draft/2020-12/schema"  # Apicurio looks for it


async def test_protobuf_in_confluents_format_names_the_message_by_its_path(
    server: Registrations,
) -> None:
    asked = SchemaRegistry(server.url)
    nested = Registered(
        Protobuf(DescriptorProto.ExtensionRange), asked, register=True, wire="confluent"
    )
    range_ = DescriptorProto.ExtensionRange(start=1, end=5)
    received = await passed(nested, nested, range_)
    assert received.value == range_
    # Behind the prefix comes the path of the class in its file, whose length is a zigzag number.
    assert received.body[5] == 2 * len(["DescriptorProto", "ExtensionRange"])
    other = Registered(Protobuf(DescriptorProto), asked, wire="confluent")
    with pytest.raises(UndecodableError, match="the body is the message"):
        await passed(nested, other, range_)


async def test_the_first_message_of_a_file_has_the_short_path(server: Registrations) -> None:
    asked = SchemaRegistry(server.url)
    codec = Registered(Protobuf(Timestamp), asked, register=True, wire="confluent")
    received = await passed(codec, codec, Timestamp(seconds=5))
    assert received.body == b"\x00\x00\x00\x00\x64\x00\x08\x05"
    described = FileDescriptorProto.FromString(base64.b64decode(server.schemas[0]["schema"]))
    assert described.name == "google/protobuf/timestamp.proto"


async def test_a_schema_that_is_not_compatible_is_refused_by_name(server: Registrations) -> None:
    asked = SchemaRegistry(server.url)
    first = Registered(Avro(OLD), asked, register=True)
    await passed(first, first, VALUE)
    wrong = Registered(Avro(WRONG), asked, register=True)
    with pytest.raises(
        SchemaRefusedError,
        match=r"not compatible in subject orders-value .*READER_FIELD_MISSING_DEFAULT_VALUE currency",
    ) as caught:
        await passed(wrong, wrong, {**VALUE, "currency": "EUR"})
    assert (caught.value.code, caught.value.retriable) == (409, False)


async def test_a_subject_without_the_schema_names_the_remedy(server: Registrations) -> None:
    codec = Registered(Avro(OLD), SchemaRegistry(server.url))
    with pytest.raises(
        SchemaRegistryError, match=r"Subject 'orders-value' not found.*register=True"
    ):
        await passed(codec, codec, VALUE)


def received(schema_id: object, body: bytes = b"\x06O-1\x04") -> MessageExt:
    return MessageExt("orders", body, properties={"SCHEMA_ID": str(schema_id)})


async def test_ids_that_mean_nothing_are_faults_of_their_messages(server: Registrations) -> None:
    codecs = Codecs({"orders": Registered(Avro(OLD), SchemaRegistry(server.url))})
    server.add("{}", "JSON")
    server.add(json.dumps(OLD), references=[{"name": "x", "subject": "x", "version": 1}])
    server.add('{"type": "nonsense"}')
    for schema_id, fault in (
        (7, "no schema of this id"),
        (100, "of the kind JSON, not AVRO"),
        (101, "refers to other schemas"),
        (102, "no Avro schema"),
        ("x", "no id of a schema"),
        (2**40, "no id of a schema"),
    ):
        with pytest.raises(UndecodableError, match=fault):
            await codecs.decode(received(schema_id))
    before = len(server.asked)
    with pytest.raises(UndecodableError):
        await codecs.decode(received(7))
    assert len(server.asked) == before  # a flood of wrong ids asks once for each
    framed = Codecs({"orders": Registered(Avro(OLD), SchemaRegistry(server.url), wire="confluent")})
    with pytest.raises(UndecodableError, match="does not begin with 0"):
        await framed.decode(received(100))


async def test_an_outage_is_no_fault_of_the_message(server: Registrations) -> None:
    codecs = Codecs({"orders": Registered(Avro(OLD), SchemaRegistry(server.url))})
    schema_id = server.add(json.dumps(OLD))
    server.status = 503
    message = received(schema_id)
    with pytest.raises(SchemaRegistryError, match="HTTP status 503") as caught:
        await codecs.decode(message)
    assert caught.value.retriable
    server.status = None
    await codecs.decode(message)
    assert message.value == VALUE


async def test_a_registry_that_says_nothing_is_left_after_the_timeout(
    server: Registrations,
) -> None:
    server.pause_s = WAIT_S
    asked = SchemaRegistry(server.url, timeout_ms=50)
    with pytest.raises(SchemaRegistryError, match=r"does not answer"):
        await asked.schema(1)
    nobody = SchemaRegistry("http://127.0.0.1:1", timeout_ms=600_000)
    with pytest.raises(SchemaRegistryError, match="ConnectionRefusedError") as caught:
        await nobody.schema(1)
    assert caught.value.retriable


@pytest.mark.parametrize(
    "beginning",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200",
    ],
    ids=["length", "no-length", "head"],
)
async def test_a_registry_that_sends_a_byte_from_time_to_time_keeps_no_thread(
    beginning: bytes,
) -> None:
    with trickle(beginning) as url:
        # Longer than a busy machine keeps the registry from sending a byte.
        asked = SchemaRegistry(url, timeout_ms=1000)
        with pytest.raises(SchemaRegistryError, match=r"did not come within 1 s") as caught:
            await asked.schema(1)
        assert caught.value.retriable
        # This waits for the threads, as the end of a program does. Before the fix they ran as long as bytes came.
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), WAIT_S)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"<html>", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"schema": 5}', "should be of type str"),
        (b'"' + b"x" * 2**21, "MAX_ANSWER_BYTES"),
        (b"[" * 100_000, "no JSON object"),
    ],
)
async def test_an_answer_that_is_none_is_named(
    server: Registrations, body: bytes, fault: str
) -> None:
    server.body, server.status = body, 200
    with pytest.raises(SchemaRegistryError, match=fault):
        await SchemaRegistry(server.url).schema(1)


async def test_credentials_are_sent_and_never_shown(server: Registrations) -> None:
    schema_id = server.add(json.dumps(OLD))
    server.authorization = "Basic Ym86c2VjcmV0"
    known = await SchemaRegistry(server.url, user="bo", password="secret").schema(schema_id)
    assert known is not None
    with pytest.raises(SchemaRegistryError, match="401") as caught:
        await SchemaRegistry(server.url, user="bo", password="wrong-one").schema(schema_id)
    assert "wrong-one" not in repr(caught.value)
    server.authorization = "Bearer abc"
    assert await SchemaRegistry(server.url, token="abc").schema(schema_id) is not None


async def test_many_messages_of_a_new_schema_ask_once(server: Registrations) -> None:
    schema_id = server.add(json.dumps(OLD))
    codecs = Codecs({"orders": Registered(Avro(OLD), SchemaRegistry(server.url))})
    server.pause_s = 0.05
    messages = [received(schema_id) for _ in range(20)]
    await asyncio.gather(*(codecs.decode(message) for message in messages))
    assert all(message.value == VALUE for message in messages)
    assert len(server.asked) == 1


async def test_the_cache_keeps_no_more_than_its_bound(server: Registrations) -> None:
    asked = SchemaRegistry(server.url, max_schemas=2)
    ids = [server.add(json.dumps({**OLD, "name": f"Order{n}"})) for n in range(3)]
    for schema_id in [*ids, ids[2], ids[0]]:
        await asked.schema(schema_id)
    assert [path for _, path in server.asked] == [
        f"/schemas/ids/{schema_id}" for schema_id in [*ids, ids[0]]
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SchemaRegistry("registry:8081"),
        lambda: SchemaRegistry("http://bo:secret@registry:8081"),
        lambda: SchemaRegistry("http://registry:8o81"),
        lambda: SchemaRegistry("http://registry:99999"),
        lambda: SchemaRegistry("http://[::1"),
        lambda: SchemaRegistry("http://registry", user="bo"),
        lambda: SchemaRegistry("http://registry", timeout_ms=0),
        lambda: Registered(Custom(str.encode, bytes.decode), SchemaRegistry("http://r")),
        lambda: Registered(Json(Order), SchemaRegistry("http://r"), wire="kafka"),  # type: ignore[arg-type]  # a wrong one
    ],
)
def test_what_cannot_work_is_refused_when_it_is_given(make: Any) -> None:
    with pytest.raises(IllegalArgumentError) as caught:
        make()
    assert "secret" not in str(caught.value)

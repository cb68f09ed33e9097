"""Encode values with the id of their schema in a registry."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

from cometmq.errors import (
    IllegalArgumentError,
    SchemaRegistryError,
    UndecodableError,
)
from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.payloads.avro import Avro, AvroSchema
from cometmq.payloads.codec import Codec, Encoded, Fetch
from cometmq.payloads.framing import confluent_id, confluent_prefix, split_path, without_prefix
from cometmq.payloads.json import Json
from cometmq.payloads.protobuf import Protobuf
from cometmq.payloads.registry import Registry, Schema

T = TypeVar("T")

MAX_WRITERS: Final = 1000
_MAX_ID: Final = 2**31 - 1


class Registered(Codec[T]):
    """Encodes values by another codec, Json, Avro or Protobuf, and says which schema they follow.

    The schema's id is in the property SCHEMA_ID, or with `wire="confluent"` in the body's first bytes, where
    Confluent's serializers write it. A body without an id counts as written by the
    codec's own schema, except with `wire="confluent"`, where it does not fit.

    The subject is `{topic}-value`, unless `subject` is given. The subject must have the schema; with
    `register=True` the first send registers it. A consumer of Avro fetches each schema by which bodies were
    written, and reads those bodies as its own schema sees them.
    """

    def __init__(
        self,
        codec: Codec[T],
        registry: Registry,
        *,
        subject: str | None = None,
        register: bool = False,
        wire: Literal["property", "confluent"] = "property",
    ) -> None:
        if not isinstance(codec, (Json, Avro, Protobuf)):
            raise IllegalArgumentError(
                f"Registered takes Json, Avro or Protobuf, whose schemas a registry knows, not {codec!r:.80}"
            )
        if wire not in ("property", "confluent"):
            raise IllegalArgumentError(f"wire is {wire!r:.80}; it is 'property' or 'confluent'")
        self._codec: Any = codec
        self._registry = registry
        self._subject = subject
        self._register = register
        self._in_body = wire == "confluent"
        self._schema = Schema(codec.kind, codec.schema)
        self._ids: dict[str, int] = {}  # by topic
        self._writers: OrderedDict[int, AvroSchema] = OrderedDict()

    def encode(self, topic: str, value: T) -> Encoded:
        encoded: Encoded = self._codec.encode(topic, value)
        schema_id = self._ids.get(topic)
        if schema_id is None:
            raise SchemaRegistryError(
                f"the id of the schema for topic {topic} is not fetched yet", retriable=True
            )
        if not self._in_body:
            return replace(encoded, properties={**encoded.properties, p.SCHEMA_ID: str(schema_id)})
        path = self._codec.message_path if isinstance(self._codec, Protobuf) else None
        return replace(encoded, body=confluent_prefix(schema_id, path) + encoded.body)

    def decode(self, message: Message) -> T:
        schema_id = self._id(message)
        body = message.body
        if self._in_body:
            body = without_prefix(body)
            if isinstance(self._codec, Protobuf):
                path, body = split_path(body)
                if path != self._codec.message_path:
                    raise ValueError(
                        f"the body is the message {path} of its schema, not {self._codec.message_path}"
                    )
        value: T
        if isinstance(self._codec, Avro) and schema_id is not None:
            writer = self._writers.get(schema_id)
            if writer is None:
                raise SchemaRegistryError(f"the schema {schema_id} is not fetched", retriable=True)
            value = self._codec.decode_body(body, writer)
            return value
        plain = message
        if self._in_body:
            plain = message.copy()
            plain.body = body
        value = self._codec.decode(plain)
        return value

    def missing_to_encode(self, topic: str) -> Fetch | None:
        if topic in self._ids:
            return None

        async def fetch() -> None:
            subject = self._subject or f"{topic}-value"
            ask = self._registry.register if self._register else self._registry.id_of
            self._ids[topic] = await ask(subject, self._schema)

        return fetch

    def missing_to_decode(self, message: Message) -> Fetch | None:
        # JSON and Protobuf are read by the codec's own type, whatever wrote them.
        schema_id = self._id(message) if isinstance(self._codec, Avro) else None
        if schema_id is None or schema_id in self._writers:
            return None
        wanted = schema_id

        async def fetch() -> None:
            self._keep(wanted, await self._registry.schema(wanted))

        return fetch

    def accepts(self, value: object) -> bool:
        accepted: bool = self._codec.accepts(value)
        return accepted

    @property
    def name(self) -> str:
        name: str = self._codec.name
        return name

    def _keep(self, schema_id: int, schema: Schema | None) -> None:
        fault, writer = "", None
        if schema is None:
            fault = "the registry has no schema of this id"
        elif schema.kind != self._schema.kind:
            fault = f"it is of the kind {schema.kind}, not {self._schema.kind}"
        elif schema.has_references:
            fault = "it refers to other schemas, which is not supported; put them into it"
        else:
            try:
                writer = AvroSchema(schema.text)
            except IllegalArgumentError as error:
                fault = str(error)
        if writer is None:
            raise UndecodableError(f"schema {schema_id}: {fault}", schema_id=str(schema_id))
        self._writers[schema_id] = writer
        while len(self._writers) > MAX_WRITERS:
            self._writers.popitem(last=False)

    def _id(self, message: Message) -> int | None:
        """Return the schema id of a message, or None. Raises ValueError for a value that is no
        id.
        """
        if self._in_body:
            schema_id = confluent_id(message.body)
            if schema_id is None:
                raise ValueError("the body does not begin with 0 and the id of a schema")
            return schema_id
        text = message.properties.get(p.SCHEMA_ID)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or int(text[:11]) > _MAX_ID:
            raise ValueError(f"the property {p.SCHEMA_ID} is {text[:80]!r}, no id of a schema")
        return int(text)

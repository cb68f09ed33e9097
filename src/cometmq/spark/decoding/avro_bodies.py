"""Read Avro bodies by the schema that wrote them, with fastavro.

A union of one type and null is that type. Other unions, records without fields, and types that contain
themselves become JSON texts. Times of a day are texts such as 16:00:00.250000.
"""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from cometmq.payloads.avro import AvroSchema
from cometmq.spark.decoding import kinds
from cometmq.spark.decoding.readers import (
    VALUE,
    BodySchema,
    Field,
    FieldCount,
    Node,
    Reader,
    converted_list,
    converted_map,
    converted_record,
)


def _plain(value: Any) -> Any:
    """Return a value that fastavro has read, as a value for JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    assert isinstance(value, (Decimal, UUID)), type(value)
    return str(value)


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


_ANYTHING: Final = Node(kinds.TEXT, _text_of)
_PLAIN: Final = {
    "boolean": Node(kinds.BOOLEAN, None),
    "int": Node(kinds.WHOLE, None),
    "long": Node(kinds.WHOLE, None),
    "float": Node(kinds.NUMBER, None),
    "double": Node(kinds.NUMBER, None),
    "string": Node(kinds.TEXT, None),
    "enum": Node(kinds.TEXT, None),
    "bytes": Node(kinds.BYTES, None),
    "fixed": Node(kinds.BYTES, None),
}
_MOMENT: Final = Node(kinds.MOMENT, None)
_LOGICAL: Final = {
    "date": Node(kinds.DAY, None),
    "timestamp-millis": _MOMENT,
    "timestamp-micros": _MOMENT,
    "time-millis": Node(kinds.TEXT, time.isoformat),
    "time-micros": Node(kinds.TEXT, time.isoformat),
    "uuid": Node(kinds.TEXT, str),
}


def reader(schema: BodySchema) -> Reader:
    """Return the reader of an Avro schema. Raise IllegalArgumentError for any other text."""
    avro = AvroSchema(schema.text)
    nodes = Nodes()
    root = avro.parsed
    if not (isinstance(root, dict) and root.get("type") == "record" and root["fields"]):
        node = nodes.node(root, ())
        convert = node.convert

        def read_value(body: bytes) -> dict[str, Any]:
            value = avro.read(body)
            return {VALUE: value if convert is None or value is None else convert(value)}

        return Reader({VALUE: Field(VALUE, node.kind, (VALUE,))}, read_value)
    inner = nodes.fields(root, ())
    kinds.struct_of({name: node.kind for name, node in inner.items()})
    whole = converted_record({name: (name, node.convert) for name, node in inner.items()})
    assert whole is not None

    def read(body: bytes) -> dict[str, Any]:
        made: dict[str, Any] = whole(avro.read(body))
        return made

    names = {one["name"]: (one["name"], *one.get("aliases", ())) for one in root["fields"]}
    return Reader({name: Field(name, node.kind, names[name]) for name, node in inner.items()}, read)


class Nodes:
    """Makes the nodes of one parsed schema, in which a name refers to a type that was defined before."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._count = FieldCount()

    def node(self, schema: Any, within: tuple[str, ...]) -> Node:
        if isinstance(schema, list):
            return self._union([one for one in schema if one != "null"], within)
        if isinstance(schema, str):
            if schema in within:
                return _ANYTHING
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.node(kind, within)
        if kind in ("record", "error", "enum", "fixed"):
            self._named[schema["name"]] = schema
        logical = schema.get("logicalType")
        if logical == "decimal" and schema.get("precision", 0) <= kinds.DIGITS:
            return Node(pa.decimal128(kinds.DIGITS, schema.get("scale", 0)), None)
        if logical in _LOGICAL and kind in ("int", "long", "string"):
            return _LOGICAL[logical]
        if kind == "array":
            item = self.node(schema["items"], within)
            return Node(pa.list_(item.kind), converted_list(item.convert))
        if kind == "map":
            item = self.node(schema["values"], within)
            return Node(pa.map_(kinds.TEXT, item.kind), converted_map(item.convert))
        if kind in ("record", "error"):
            inner = self.fields(schema, within)
            if not inner:
                return _ANYTHING
            converts = {name: (name, node.convert) for name, node in inner.items()}
            struct = kinds.struct_of({name: node.kind for name, node in inner.items()})
            return Node(struct, converted_record(converts))
        return _PLAIN.get(kind, _ANYTHING)

    def fields(self, record: Any, within: tuple[str, ...]) -> dict[str, Node]:
        self._count.add(len(record["fields"]))
        self._named[record["name"]] = record
        inner = (*within, record["name"])
        return {one["name"]: self.node(one["type"], inner) for one in record["fields"]}

    def _union(self, branches: list[Any], within: tuple[str, ...]) -> Node:
        nodes = [self.node(one, within) for one in branches]
        found = {node.kind for node in nodes if node.convert is None}
        if len(nodes) == 1:
            return nodes[0]
        if len(found) == 1 and all(node.convert is None for node in nodes):
            return nodes[0]
        if found == {kinds.WHOLE, kinds.NUMBER} and all(node.convert is None for node in nodes):
            return Node(kinds.NUMBER, float)
        return _ANYTHING

"""Read Protobuf bodies by a `.proto` file, or by a descriptor in Base64.

Enums become the names of their values. Of Google's types, wrappers become their values, and Timestamp becomes
a timestamp. Struct, Value, ListValue, Any, messages without fields and messages that contain themselves become
JSON texts. A field with presence that is not set is null.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from cometmq.errors import IllegalArgumentError
from cometmq.extras import needs
from cometmq.runtime.spelling import did_you_mean
from cometmq.spark.decoding import kinds
from cometmq.spark.decoding.readers import (
    VALUE,
    BodySchema,
    Convert,
    Field,
    FieldCount,
    Node,
    Reader,
)

_WRAPPERS: Final = "google/protobuf/wrappers.proto"
_AS_TEXT: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")
)


def reader(schema: BodySchema) -> Reader:
    """Return the reader of a message of a Protobuf schema. Raise IllegalArgumentError for any other text."""
    with needs("console", "a Protobuf schema"):
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError

        from cometmq.payloads.protos import compiled, message_class, message_names
    try:
        if "message" in schema.text or "syntax" in schema.text:
            file = compiled(schema.text)
        else:
            file = FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
        names = message_names(file)
        name = schema.message or (names[0] if names else "")
        if name not in names:
            near = [one for one in names if one.rpartition(".")[2] == name]
            if len(near) != 1:
                raise IllegalArgumentError(
                    f"the schema has no message {name!r:.100}; it has {', '.join(names[:10]) or 'none'}"
                    f"{did_you_mean(name, names)}"
                )
            name = near[0]
        made = message_class(file, name)
    except IllegalArgumentError:
        raise
    # The pool raises TypeError, the decoder of descriptors an error of its own, and so on.
    except (ValueError, TypeError, KeyError, DecodeError, binascii.Error) as error:
        raise IllegalArgumentError(f"it is no Protobuf schema: {str(error)[:500]}") from error
    inner = _fields(made.DESCRIPTOR, (made.DESCRIPTOR.full_name,), FieldCount())
    if not inner:
        raise IllegalArgumentError(
            f"the message {name} has no fields, so there is nothing to decode: name another message"
        )
    kinds.struct_of({name: node.kind for name, node in inner.items()})
    whole = _record(made.DESCRIPTOR, inner)

    def read(body: bytes) -> dict[str, Any]:
        value = made()
        value.ParseFromString(body)
        return whole(value)

    numbers = {one.name: str(one.number) for one in made.DESCRIPTOR.fields}
    fields = {n: Field(n, node.kind, (numbers[n],)) for n, node in inner.items()}
    return Reader(fields, read, _paths_to(file, name))


def _paths_to(file: Any, name: str) -> frozenset[tuple[int, ...]]:
    """Return the paths of indexes that stand for a message of a file, and for no other one.

    A map is a hidden message. Confluent's serializers for Java leave it out when they count nested messages,
    those for Go and Python count it.
    """
    owners: dict[tuple[int, ...], set[str]] = {}
    package = f"{file.package}." if file.package else ""
    for counts_maps in (True, False):
        found: list[tuple[tuple[int, ...], str, Any]] = [((), package, file.message_type)]
        while found:
            path, scope, messages = found.pop()
            listed = [one for one in messages if counts_maps or not one.options.map_entry]
            for at, message in enumerate(listed):
                if message.options.map_entry:
                    continue
                owners.setdefault((*path, at), set()).add(scope + message.name)
                found.append(((*path, at), f"{scope}{message.name}.", message.nested_type))
    return frozenset(path for path, names in owners.items() if names == {name})


def _fields(descriptor: Any, within: tuple[str, ...], count: FieldCount) -> dict[str, Node]:
    count.add(len(descriptor.fields))
    return {one.name: _field(one, within, count) for one in descriptor.fields}


def _record(descriptor: Any, nodes: dict[str, Node]) -> Callable[[Any], dict[str, Any]]:
    """Return the function that makes a dict of a message. Fields without presence are never null."""
    parts = [(one.name, one.has_presence, nodes[one.name].convert) for one in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, may_miss, inner in parts:
            if may_miss and not message.HasField(name):
                found[name] = None
            else:
                value = getattr(message, name)
                found[name] = value if inner is None else inner(value)
        return found

    return convert


def _field(field: Any, within: tuple[str, ...], count: FieldCount) -> Node:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        node = _single(value, within, count)
        text = _text_key if key.type == key.TYPE_BOOL else str
        return Node(pa.map_(kinds.TEXT, node.kind), _pairs(node.convert, text))
    node = _single(field, within, count)
    if not field.is_repeated:
        return node
    inner = node.convert
    if inner is None:
        return Node(pa.list_(node.kind), list)
    return Node(pa.list_(node.kind), lambda values: [inner(one) for one in values])


def _text_key(key: Any) -> str:
    return str(key).lower()


def _pairs(inner: Convert, text: Callable[[Any], str]) -> Convert:
    if inner is None:
        return lambda values: [(text(key), one) for key, one in values.items()]
    return lambda values: [(text(key), inner(one)) for key, one in values.items()]


def _single(field: Any, within: tuple[str, ...], count: FieldCount) -> Node:
    """Return the node of one value of a field."""
    if field.message_type is not None:
        return _message(field.message_type, within, count)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return Node(kinds.TEXT, lambda number: names.get(number, str(number)))
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Node(kinds.UNSIGNED, None)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return Node(kinds.NUMBER, None)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return Node(kinds.BOOLEAN, None)
    if field.type == field.TYPE_BYTES:
        return Node(kinds.BYTES, None)
    if field.cpp_type == field.CPPTYPE_STRING:
        return Node(kinds.TEXT, None)
    return Node(kinds.WHOLE, None)


def _message(descriptor: Any, within: tuple[str, ...], count: FieldCount) -> Node:
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        from datetime import UTC

        return Node(kinds.MOMENT, lambda value: value.ToDatetime(UTC))
    if descriptor.file.name == _WRAPPERS:
        node = _single(descriptor.fields_by_name[VALUE], within, count)
        inner = node.convert
        return Node(node.kind, lambda one: one.value if inner is None else inner(one.value))
    if name in _AS_TEXT or name in within or not descriptor.fields:
        from google.protobuf.json_format import MessageToJson

        return Node(kinds.TEXT, lambda value: MessageToJson(value, indent=None))
    inner_nodes = _fields(descriptor, (*within, name), count)
    struct = kinds.struct_of({one: node.kind for one, node in inner_nodes.items()})
    return Node(struct, _record(descriptor, inner_nodes))

"""Read JSON bodies by a JSON Schema, with msgspec, and infer a schema from bodies.

The reader uses only the parts of a schema that give types: `type`, `properties`, `required`, `items`,
`additionalProperties`, the formats `date-time` and `date`, `contentEncoding: base64`, and `$ref` within the
schema. It does not check bounds, patterns and the like. A value that no column type can hold (one of several
types, of no type, or of a type that contains itself) becomes its JSON text. In fields that are not required,
null stands for a missing value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from types import GenericAlias
from typing import Annotated, Any, Final, NamedTuple, Required, TypedDict

import msgspec
import pyarrow as pa

from cometmq.errors import IllegalArgumentError
from cometmq.spark.decoding import kinds
from cometmq.spark.decoding.readers import (
    VALUE,
    BodySchema,
    Convert,
    Field,
    FieldCount,
    Reader,
    converted_list,
    converted_map,
    converted_record,
)

# An integer outside this range is no bigint.
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_MOST_DEPTH: Final = 30
# Python's types by their names in JSON.
_JSON_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


class _Node(NamedTuple):
    """A part of a schema: the type that msgspec checks, the type of the column, and the conversion of a value."""

    checked: Any
    kind: pa.DataType
    convert: Convert


def _text_of(raw: Any) -> str | None:
    text = bytes(raw).decode()
    return None if text == "null" else text


def _or_null(checked: Any) -> Any:
    """Return a type that also takes null. Raw JSON takes null already, and cannot be part of a union."""
    return checked if checked is msgspec.Raw else checked | None


_ANYTHING: Final = _Node(msgspec.Raw, kinds.TEXT, _text_of)
_PLAIN: Final = {
    "string": _Node(str, kinds.TEXT, None),
    "integer": _Node(_Whole, kinds.WHOLE, None),
    "number": _Node(float, kinds.NUMBER, None),
    "boolean": _Node(bool, kinds.BOOLEAN, None),
}
_TEXTS: Final = {
    ("format", "date-time"): _Node(_Moment, kinds.MOMENT, None),
    ("format", "date"): _Node(date, kinds.DAY, None),
    ("contentEncoding", "base64"): _Node(bytes, kinds.BYTES, None),
}


def reader(schema: BodySchema) -> Reader:
    """Return the reader of a JSON Schema. Raise IllegalArgumentError for any other text."""
    try:
        root = json.loads(schema.text)
    except ValueError as error:
        raise IllegalArgumentError(
            f"it is no JSON Schema, because it is not JSON: {error}"
        ) from error
    if not isinstance(root, dict):
        raise IllegalArgumentError(
            f"it is no JSON Schema, because it is a {type(root).__name__} and not an object: write "
            '{"type": "object", "properties": {…}}'
        )
    nodes = _Nodes(root)
    found, _ = nodes.resolved(root, ())
    if found is None or not _properties_of(found):
        node = nodes.node(root, ())
        decoder = msgspec.json.Decoder(node.checked)
        convert = node.convert

        def read_value(body: bytes) -> dict[str, Any]:
            value = decoder.decode(body)
            return {VALUE: value if convert is None else convert(value)}

        return Reader({VALUE: Field(VALUE, node.kind, (VALUE,))}, read_value)
    checked, inner = nodes.record(found, ())
    kinds.struct_of({name: node.kind for name, node in inner.items()})
    decoder = msgspec.json.Decoder(checked)
    whole = converted_record({name: (name, node.convert) for name, node in inner.items()})
    assert whole is not None

    def read(body: bytes) -> dict[str, Any]:
        made: dict[str, Any] = whole(decoder.decode(body))
        return made

    return Reader({name: Field(name, node.kind, (name,)) for name, node in inner.items()}, read)


class _Nodes:
    """Makes the nodes of one schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._count = FieldCount()

    def node(self, schema: Any, within: tuple[str, ...]) -> _Node:
        found, within = self.resolved(schema, within)
        if found is None or len(within) > _MOST_DEPTH:
            return _ANYTHING
        kind = _type_of(found)
        if kind == "string":
            for (key, value), node in _TEXTS.items():
                if found.get(key) == value:
                    return node
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "array" and isinstance(found.get("items"), dict):
            item = self.node(found["items"], (*within, "[]"))
            checked: Any = GenericAlias(list, (_or_null(item.checked),))
            return _Node(checked, pa.list_(item.kind), converted_list(item.convert))
        if kind == "object" and _properties_of(found):
            return self._struct(found, within)
        if kind == "object" and isinstance(found.get("additionalProperties"), dict):
            item = self.node(found["additionalProperties"], (*within, "{}"))
            kind_of_map = pa.map_(kinds.TEXT, item.kind)
            checked = GenericAlias(dict, (str, _or_null(item.checked)))
            return _Node(checked, kind_of_map, converted_map(item.convert))
        return _ANYTHING

    def record(
        self, schema: dict[str, Any], within: tuple[str, ...]
    ) -> tuple[Any, dict[str, _Node]]:
        """Return the type by which msgspec checks an object, and the nodes of its properties."""
        properties = _properties_of(schema)
        self._count.add(len(properties))
        required = set(schema.get("required", ()))
        inner = {name: self.node(each, (*within, name)) for name, each in properties.items()}
        checked: dict[str, Any] = {
            name: Required[node.checked] if name in required else _or_null(node.checked)
            for name, node in inner.items()
        }
        make: Any = TypedDict  # mypy wants the fields written out
        return make("Body", checked, total=False), inner

    def resolved(
        self, schema: Any, within: tuple[str, ...]
    ) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """Return the schema behind references, and the references that led to it.

        The schema is None if it contains itself, or declares nothing that a column could hold.
        """
        while isinstance(schema, dict):
            reference = schema.get("$ref")
            branches = [
                one
                for key in ("anyOf", "oneOf", "allOf")
                for one in schema.get(key, ())
                if not (isinstance(one, dict) and one.get("type") == "null")
            ]
            if isinstance(reference, str):
                if reference in within:
                    return None, within
                within = (*within, reference)
                schema = self._at(reference)
            elif "type" not in schema and len(branches) == 1:
                schema = branches[0]
            elif branches and "type" not in schema:
                return None, within
            else:
                return schema, within
        return None, within

    def _struct(self, schema: dict[str, Any], within: tuple[str, ...]) -> _Node:
        checked, inner = self.record(schema, within)
        kind = kinds.struct_of({name: node.kind for name, node in inner.items()})
        convert = converted_record(
            {name: (kinds.plain_name(name), node.convert) for name, node in inner.items()}
        )
        return _Node(checked, kind, convert)

    def _at(self, reference: str) -> Any:
        place: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place.get(name) if isinstance(place, dict) else None
        if not reference.startswith("#") or place is None:
            raise IllegalArgumentError(
                f"the schema refers to {reference!r:.200}, which is not in it: add that part to it, "
                'under "$defs"'
            )
        return place


def _properties_of(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    found = None if schema is None else schema.get("properties")
    return found if isinstance(found, dict) else {}


def _type_of(schema: Mapping[str, Any]) -> str | None:
    """Return the only type of a schema besides null; None if there are several."""
    kind = schema.get("type")
    if kind is None:
        given = [schema["const"]] if "const" in schema else schema.get("enum", ())
        kind = list(
            dict.fromkeys(_JSON_TYPES.get(type(one), "?") for one in given if one is not None)
        )
        if _properties_of(schema):
            kind = ["object"]
    listed = [kind] if isinstance(kind, str) else [one for one in kind if one != "null"]
    if set(listed) == {"integer", "number"}:
        return "number"
    return listed[0] if len(listed) == 1 else None


# Inferring

MOST_SAMPLED: Final = 1000


def inferred(bodies: Iterable[bytes]) -> BodySchema | None:
    """Return the schema of the JSON objects among these bodies, None if there is no object.

    No field is required, and texts stay texts, even if they look like times, so that a later body that differs
    from the sample still fits. A field with values of several types becomes JSON text.
    """
    objects = []
    for body in bodies:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            objects.append(value)
    if not any(objects):
        return None
    return BodySchema("JSON", json.dumps(_schema_of(objects, 0), ensure_ascii=False))


def _schema_of(values: list[Any], depth: int) -> dict[str, Any]:
    values = [one for one in values if one is not None]
    types = {type(one) for one in values}
    if depth > _MOST_DEPTH or not types:
        return {}
    if types == {dict}:
        names = dict.fromkeys(name for one in values for name in one)
        seen: dict[str, str] = {}
        for name in names:
            seen.setdefault(kinds.plain_name(name).casefold(), name)
        return {
            "type": "object",
            "properties": {
                name: _schema_of([one[name] for one in values if name in one], depth + 1)
                for name in seen.values()
            },
        }
    if types == {list}:
        return {
            "type": "array",
            "items": _schema_of([item for one in values for item in one], depth + 1),
        }
    if types == {int, float}:
        return {"type": "number"}
    if len(types) > 1 or any(type(one) is int and not -(2**63) <= one < 2**63 for one in values):
        return {}
    return {"type": _JSON_TYPES[types.pop()]}

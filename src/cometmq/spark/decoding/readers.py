"""Read bodies by a schema into values for Arrow.

A reader has the fields of its schema's outermost record, each with the type of its column. A schema that is
not a record has one field, `value`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from cometmq.errors import ConfigError, IllegalArgumentError

Kind = Literal["JSON", "AVRO", "PROTOBUF"]
# Converts a value from the library of a format to the value for Arrow. None: both are the same.
Convert = Callable[[Any], Any] | None
VALUE: Final = "value"
# A worker meets fewer schemas than this at a time.
_KEPT: Final = 256
# A type that is named twice counts twice, because it becomes two columns: a short text can name 2^60.
MOST_FIELDS: Final = 2000


@dataclass(frozen=True)
class BodySchema:
    """A schema of bodies.

    text: a JSON Schema, an Avro schema in JSON, a `.proto` file, or a Protobuf descriptor in Base64, as
        registries have it.
    message: the name of the Protobuf message, "" for the first one of the file.
    """

    kind: Kind
    text: str
    message: str = ""


@dataclass(frozen=True)
class Field:
    """A field of the outermost record.

    names: its own name, and then the names by which other schemas may know it: Avro's aliases, or the field's
        number in Protobuf.
    """

    name: str
    type: pa.DataType
    names: tuple[str, ...]


class Node(NamedTuple):
    """A part of a schema: the type of its column, and the conversion of a value."""

    kind: pa.DataType
    convert: Convert


class FieldCount:
    """Counts the fields of one schema."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, count: int) -> None:
        """Add fields. Raise IllegalArgumentError beyond MOST_FIELDS."""
        self._count += count
        if self._count > MOST_FIELDS:
            raise IllegalArgumentError(
                f"the schema has more than {MOST_FIELDS} fields, the limit MOST_FIELDS, where those of a type "
                "count wherever it is named; leave out those that nobody asks for",
                limit="MOST_FIELDS",
            )


class Reader:
    """Reads bodies of one schema. `read` raises any exception for a body that does not fit.

    paths: of a Protobuf message, the indexes by which Confluent's frames name it in its file.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        read: Callable[[bytes], dict[str, Any]],
        paths: frozenset[tuple[int, ...]] = frozenset(),
    ) -> None:
        self.fields = fields
        self.read = read
        self.paths = paths


@lru_cache(_KEPT)
def reader_of(schema: BodySchema) -> Reader:
    """Return the reader of a schema. Raise IllegalArgumentError for a text that is no schema of its kind."""
    if schema.kind == "JSON":
        from cometmq.spark.decoding.json_bodies import reader
    elif schema.kind == "AVRO":
        from cometmq.spark.decoding.avro_bodies import reader
    elif schema.kind == "PROTOBUF":
        from cometmq.spark.decoding.protobuf_bodies import reader
    else:
        raise IllegalArgumentError(
            f"the kind of a schema is JSON, AVRO or PROTOBUF, not {schema.kind}"
        )
    try:
        return reader(schema)
    except (ConfigError, IllegalArgumentError):
        raise
    except RecursionError as error:
        raise IllegalArgumentError(
            f"it is no {schema.kind} schema that can be read: it is nested deeper than Python's recursion "
            "limit allows"
        ) from error
    except Exception as error:  # schemas of registries hold anything anywhere
        raise IllegalArgumentError(
            f"it is no {schema.kind} schema that can be read: {type(error).__name__}: {str(error)[:500]}"
        ) from error


def converted_record(converts: Mapping[str, tuple[str, Convert]]) -> Convert:
    """Return a function that makes records from dicts, by the column and the conversion of each field.

    Fields that are not listed are left out.
    """

    def convert(value: Any) -> dict[str, Any]:
        made = {}
        for name, (column, inner) in converts.items():
            found = value.get(name)
            made[column] = found if found is None or inner is None else inner(found)
        return made

    return convert


def converted_list(inner: Convert) -> Convert:
    if inner is None:
        return None
    return lambda values: [None if one is None else inner(one) for one in values]


def converted_map(inner: Convert) -> Convert:
    """Return a function that makes the pairs from which Arrow makes a map."""
    if inner is None:
        return lambda values: list(values.items())
    return lambda values: [
        (key, None if one is None else inner(one)) for key, one in values.items()
    ]

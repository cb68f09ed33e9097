"""Give the columns of a message their types in Spark and Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from cometmq.errors import IllegalArgumentError
from cometmq.spark.options import Options
from cometmq.spark.rows.columns import COLUMNS, DEFAULT_COLUMNS, OPTION, named_columns

_STRINGS: Final = pa.list_(pa.field("element", pa.string()))
_SPARK_TYPES: Final = {
    "string": (t.StringType(), pa.string()),
    "int": (t.IntegerType(), pa.int32()),
    "bigint": (t.LongType(), pa.int64()),
    "binary": (t.BinaryType(), pa.binary()),
    "timestamp": (t.TimestampType(), pa.timestamp("us", tz="UTC")),
    "array<string>": (t.ArrayType(t.StringType()), _STRINGS),
    "map<string,string>": (
        t.MapType(t.StringType(), t.StringType()),
        pa.map_(pa.string(), pa.string()),
    ),
}


def spark_schema(names: Iterable[str] = COLUMNS) -> Any:
    """Return the schema of these columns in Spark's types."""
    return t.StructType([t.StructField(name, _SPARK_TYPES[COLUMNS[name]][0]) for name in names])


def source_schema(options: Options) -> Any:
    """Return the schema of a source that was given no schema. Raise as `named_columns`."""
    return spark_schema(named_columns(options) or DEFAULT_COLUMNS)


def arrow_schema(names: Sequence[str]) -> Any:
    """Return the schema of these columns in the Arrow types that Spark takes for them."""
    return pa.schema([pa.field(name, _SPARK_TYPES[COLUMNS[name]][1]) for name in names])


def wanted_columns(schema: Any, named: list[str] | None) -> list[str]:
    """Return the column names of a Spark schema, all of which must be our columns with their types.

    The schema is the user's (`spark.read.schema("topic string, body binary")`), or the one that
    `source_schema` gave. Columns that it leaves out are not computed at all. `named` is what
    `named_columns` gave. Raise IllegalArgumentError.
    """
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise IllegalArgumentError(
                f"the schema names a column {field.name!r}, which messages do not have; "
                f"columns are {', '.join(COLUMNS)}"
            )
        if field.dataType.simpleString() != kind:
            raise IllegalArgumentError(
                f"the schema gives the column {field.name} as {field.dataType.simpleString()}, "
                f"it is a {kind}"
            )
    if not schema.fields:
        raise IllegalArgumentError(
            f"the schema names no column; name one at least of {', '.join(COLUMNS)}"
        )
    names = [field.name for field in schema.fields]
    if named is not None and names != named:
        raise IllegalArgumentError(
            f"the option {OPTION} asks for {', '.join(named)}, but the schema for "
            f"{', '.join(names)}; give one of the two"
        )
    return names

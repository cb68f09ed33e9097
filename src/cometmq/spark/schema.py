"""Define the columns of a message, as both sources return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from cometmq.errors import IllegalArgumentError

# Columns in their order, with Spark's types.
#
# `msg_id` is the producer's unique id, or the offset id without one. `keys` is empty if no key was
# given. `body` is decompressed unless the option `decompress` is false; `body_crc` is the checksum
# of the stored bytes. `transaction_type` is prepared, commit or rollback, and null outside of
# transactions. `delay_level` and `deliver_time` are null for a message without a delay. `broker` is
# null for a store whose broker is not named.
COLUMNS: Final = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "commit_log_offset": "bigint",
    "msg_id": "string",
    "offset_msg_id": "string",
    "keys": "array<string>",
    "tags": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "born_host": "string",
    "store_host": "string",
    "reconsume_times": "int",
    "flag": "int",
    "sys_flag": "int",
    "body_crc": "int",
    "transaction_type": "string",
    "transaction_id": "string",
    "prepared_transaction_offset": "bigint",
    "delay_level": "int",
    "deliver_time": "timestamp",
}


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


def spark_schema() -> Any:
    """Return the schema of all columns in Spark's types."""
    fields = [t.StructField(name, _SPARK_TYPES[kind][0]) for name, kind in COLUMNS.items()]
    return t.StructType(fields)


def arrow_schema(names: Sequence[str]) -> Any:
    """Return the schema of these columns in the Arrow types that Spark takes for them."""
    return pa.schema([pa.field(name, _SPARK_TYPES[COLUMNS[name]][1]) for name in names])


def wanted_columns(schema: Any) -> list[str]:
    """Return the column names of a Spark schema, all of which must be our columns with their types.

    A schema given by the user (`spark.read.schema("topic string, body binary")`) may leave columns
    out, which are then not computed at all. Raise IllegalArgumentError.
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
    return [field.name for field in schema.fields]

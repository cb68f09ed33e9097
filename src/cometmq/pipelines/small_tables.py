"""Tables that the driver makes and that Spark knows to be small.

They go as Arrow: a DataFrame of Python rows is one that Spark scans in tasks, and whose size it does
not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def arrow_schema_of(schema: str) -> Any:
    """The Arrow schema for Spark's "name type, name type" with plain types."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
    }
    fields = (field.split() for field in schema.split(", "))
    return pa.schema([pa.field(name, types[kind]) for name, kind in fields])


def arrow_table(rows: Iterable[Sequence[Any]], schema: Any) -> Any:
    """An Arrow table of rows."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def small_table(spark: Any, rows: Iterable[Sequence[Any]], schema: str) -> Any:
    """A DataFrame of rows, with a schema as `arrow_schema_of` takes it."""
    return spark.createDataFrame(arrow_table(rows, arrow_schema_of(schema)))

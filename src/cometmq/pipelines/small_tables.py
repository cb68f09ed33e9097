"""Make tables in the driver that Spark knows to be small.

They go to Spark as Arrow. Spark would scan a DataFrame of Python rows in tasks, and would not know
its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def arrow_schema_of(schema: str) -> Any:
    """Return the Arrow schema for Spark's "name type, name type" with plain types."""
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
    """Return an Arrow table of rows."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def collected(frame: Any) -> Any:
    """Return a frame with few rows as a table of the driver.

    Plans that use it do not hold the plan that made it. Spark writes plans out as texts, with those
    of all persisted frames in them, and they would grow with each frame that is made of others.
    """
    return frame.sparkSession.createDataFrame(frame.toArrow())


def small_table(spark: Any, rows: Iterable[Sequence[Any]], schema: str) -> Any:
    """Return a DataFrame of rows. `schema` is written as for `arrow_schema_of`."""
    return spark.createDataFrame(arrow_table(rows, arrow_schema_of(schema)))

"""Decode the bodies of a DataFrame of messages.

    orders = decode(messages, BodySchema("JSON", Path("order.schema.json").read_text()))

The frame may be a read or a stream of a topic, the rows of a store or an archive, or any other frame with
the binary column `body`.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

from cometmq.errors import IllegalArgumentError
from cometmq.spark.decoding.batches import BodyDecoder
from cometmq.spark.decoding.columns import REASON, columns_with
from cometmq.spark.decoding.readers import BodySchema, reader_of

__all__ = ["BodySchema", "decode", "decoded"]


def decode(frame: Any, schema: BodySchema, *, wire: Literal["plain", "confluent"] = "plain") -> Any:
    """Return a frame with a column `body_…` for each field of the schema, behind its own columns.

    The last column, `undecodable`, has the reason for a body that does not fit, and is null for other bodies.
    With `wire="confluent"` bodies begin with 0 and the id of a schema, and the id is ignored. Raise
    IllegalArgumentError for a text that is no schema, and for a frame without the column `body`.
    """
    columns = columns_with((), reader_of(schema))
    return decoded(frame, BodyDecoder(columns, {None: schema}, wire))


def decoded(frame: Any, decoder: BodyDecoder) -> Any:
    """Return a frame with the columns of a decoder added. Raise IllegalArgumentError, as `decode` does."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    schema = frame.schema
    if "body" not in frame.columns or schema["body"].dataType.typeName() != "binary":
        raise IllegalArgumentError(
            "the frame has no binary column `body`, which decode reads; its columns are "
            f"{', '.join(frame.columns)[:500]}"
        )
    made = [StructField(one.name, from_arrow_type(one.type)) for one in decoder.fields]
    if twice := [one.name for one in made if one.name in frame.columns]:
        raise IllegalArgumentError(
            f"the frame already has columns that decoding adds: {', '.join(twice)}; drop or rename them "
            f"({REASON} gets the reason for a body that does not fit)"
        )
    return mapped(frame, decoder, StructType([*schema.fields, *made]))


def mapped(frame: Any, work: Any, schema: Any) -> Any:
    """Apply a function of Arrow batches to a frame in workers. Return its rows, which have `schema`."""
    with warnings.catch_warnings():
        # PySpark imports pandas and warns about its version, but this call uses Arrow alone.
        warnings.filterwarnings(
            "ignore", "PySpark does not yet fully support pandas", FutureWarning
        )
        return frame.mapInArrow(work, schema)

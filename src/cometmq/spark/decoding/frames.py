"""Decode the bodies of a DataFrame of messages.

    orders = decode(messages, BodySchema("JSON", Path("order.schema.json").read_text()))

The frame may be a read or a stream of a topic, the rows of a store or of an archive, or any other frame
with the binary column `body`.
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

    The last column, `undecodable`, has the reason for a body that does not fit, and is null for others. With
    `wire="confluent"` bodies begin with 0 and the id of a schema, which is passed over. Raise
    IllegalArgumentError for a schema that is none, and for a frame without the column `body`.
    """
    columns = columns_with((), reader_of(schema))
    return decoded(frame, BodyDecoder(columns, {None: schema}, wire))


def decoded(frame: Any, decoder: BodyDecoder) -> Any:
    """Return a frame with the columns that a decoder makes. Raise IllegalArgumentError."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    schema = frame.schema
    if "body" not in frame.columns or schema["body"].dataType.typeName() != "binary":
        raise IllegalArgumentError(
            "the frame has no binary column `body` to decode; its columns are "
            f"{', '.join(frame.columns)[:500]}"
        )
    made = [StructField(one.name, from_arrow_type(one.type)) for one in decoder.fields]
    if twice := [one.name for one in made if one.name in frame.columns]:
        raise IllegalArgumentError(
            f"the frame has a column {', '.join(twice)} already, which decoding would add: drop or "
            f"rename it (the reason of a body that does not fit is in {REASON})"
        )
    return mapped(frame, decoder, StructType([*schema.fields, *made]))


def mapped(frame: Any, work: Any, schema: Any) -> Any:
    """Return the rows of a schema that a function of Arrow batches makes of a frame's, in workers."""
    with warnings.catch_warnings():
        # PySpark asks for pandas, warns of a new one, and then uses Arrow alone.
        warnings.filterwarnings(
            "ignore", "PySpark does not yet fully support pandas", FutureWarning
        )
        return frame.mapInArrow(work, schema)

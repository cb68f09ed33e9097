"""Decode the bodies of a DataFrame of messages.

    orders = decode(messages, BodySchema("JSON", Path("order.schema.json").read_text()))

    orders = decode(messages, 17, wire="confluent", registry=Registry("http://127.0.0.1:8081"))

The frame may be a read or a stream of a topic, the rows of a store or an archive, or any other frame with
the binary column `body`.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from cometmq.errors import IllegalArgumentError
from cometmq.spark.decoding.batches import BodyDecoder, Wire
from cometmq.spark.decoding.columns import REASON, columns_with
from cometmq.spark.decoding.readers import BodySchema, reader_of
from cometmq.spark.decoding.registries import Registry

__all__ = ["BodySchema", "Registry", "decode", "decoded"]


def decode(
    frame: Any,
    schema: BodySchema | int,
    *,
    wire: Wire = "plain",
    registry: Registry | None = None,
) -> Any:
    """Return a frame with a column `body_…` for each field of the schema, behind its own columns.

    The last column, `undecodable`, has the reason for a body that does not fit, and is null for other bodies.
    With `wire="confluent"` bodies begin with 0 and the id of a schema; without a registry the id is ignored.

    With a registry, `schema` may be the id of a schema there. Each body is decoded by the schema that its message
    names, in the body or in the property SCHEMA_ID (`wire="property"`). Fields go to the columns of `schema` by
    their names; other fields are left out. Workers ask for the schemas that they meet. A task fails while its
    registry does not answer.

    Raise IllegalArgumentError for a text that is no schema, for arguments that do not fit together, and for a frame
    without the column `body`; SchemaRegistryError if the registry does not answer for `schema`.
    """
    if registry is None:
        if isinstance(schema, int) or wire == "property":
            raise IllegalArgumentError(
                f"decode is given {f'schema {schema}' if isinstance(schema, int) else f'wire={wire!r}'} and no "
                "registry, where schemas are found by their ids: pass registry=Registry(url) too"
            )
        columns = columns_with((), reader_of(schema))
        return decoded(frame, BodyDecoder(columns, {None: schema}, wire))
    if wire == "plain":
        raise IllegalArgumentError(
            'decode is given a registry and wire="plain", where messages name no schema: pass '
            'wire="confluent" or wire="property", or no registry'
        )
    if wire == "property" and "properties" not in frame.columns:
        raise IllegalArgumentError(
            'wire="property" reads the column properties, which the frame lacks; its columns are '
            f"{', '.join(frame.columns)[:500]}"
        )
    wanted = registry.schema(schema) if isinstance(schema, int) else schema
    if isinstance(wanted, str):
        raise IllegalArgumentError(f"schema {schema} cannot be used: {wanted}")
    find = partial(registry.schema, kind=wanted.kind)
    columns = columns_with((), reader_of(wanted))
    return decoded(frame, BodyDecoder(columns, {}, wire, known_ids=True, find=find))


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

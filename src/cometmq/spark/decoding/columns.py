"""Put the fields of schemas into the columns of one table.

A column never changes its name. A field belongs to the column with its name, or with a name by which an
earlier schema knew it: an alias of Avro, a number of Protobuf. So a renamed field stays in its column. A new
field gets a new column, which is null in older rows. The column of a removed field is null in newer rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
import pyarrow as pa

from cometmq.errors import IllegalArgumentError
from cometmq.spark.decoding.kinds import arrow_type, plain_name, spark_type
from cometmq.spark.decoding.readers import Field, Reader
from cometmq.spark.rows.columns import COLUMNS

PREFIX: Final = "body_"
# The column with the reason for a body that does not fit; null for a body that fits.
REASON: Final = "undecodable"


class Column(msgspec.Struct, frozen=True):
    """A column of decoded bodies: its name, its type in Spark's SQL, and the names of its fields."""

    name: str
    kind: str
    fields: tuple[str, ...]


def columns_with(columns: Iterable[Column], reader: Reader) -> tuple[Column, ...]:
    """Return the columns of a table, with those that the bodies of a reader need, too.

    Raise IllegalArgumentError for a field that no column of the table can hold.
    """
    found = {column.name: column for column in columns}
    for field, name in names_of_fields(found.values(), reader).items():
        of_schema = reader.fields[field]
        before = found.get(name)
        if before is None:
            found[name] = Column(name, spark_type(of_schema.type), _known_by(of_schema))
            continue
        kind = _merged(arrow_type(before.kind), of_schema.type, field)
        names = tuple(dict.fromkeys((*before.fields, *_known_by(of_schema))))
        found[name] = Column(name, spark_type(kind), names)
    return tuple(found.values())


def names_of_fields(columns: Iterable[Column], reader: Reader) -> dict[str, str]:
    """Return the name of the column for each field of a reader: one of the columns, or a new one."""
    free = {column.name: column for column in columns}
    taken = {name.casefold() for name in (*free, *COLUMNS, REASON, "hour", "day")}
    found = {}
    # A field's own name takes precedence over an earlier name of another field.
    for at in range(max(len(field.names) for field in reader.fields.values())):
        for name, field in reader.fields.items():
            if name in found or at >= len(field.names):
                continue
            wanted = field.names[at]
            fits = (one.name for one in free.values() if wanted in one.fields)
            if (column := next(fits, None)) is not None:
                found[name] = column
                del free[column]
    for name in reader.fields:
        if name not in found:
            found[name] = _new_name(name, taken)
            taken.add(found[name].casefold())
    return found


def _known_by(field: Field) -> tuple[str, ...]:
    """Return the name by which later schemas recognise the field."""
    return field.names[:1]


def _new_name(field: str, taken: Collection[str]) -> str:
    name = PREFIX + plain_name(field)
    while name.casefold() in taken:
        name += "_"
    return name


def _merged(old: pa.DataType, new: pa.DataType, where: str) -> pa.DataType:
    """Return the type of a column for two schemas: a record gets the fields of both."""
    if old == new:
        return old
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        fields = {field.name: field.type for field in old}
        spelt = {name.casefold(): name for name in fields}
        for field in new:
            other = spelt.setdefault(field.name.casefold(), field.name)
            if other != field.name:
                raise IllegalArgumentError(
                    f"the field {where}.{field.name} of the schema is {other} in the table, and engines do "
                    "not distinguish case"
                )
            before = fields.get(field.name, field.type)
            fields[field.name] = _merged(before, field.type, f"{where}.{field.name}")
        return pa.struct(list(fields.items()))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(_merged(old.value_type, new.value_type, f"{where}[]"))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return pa.map_(old.key_type, _merged(old.item_type, new.item_type, f"{where}{{}}"))
    raise IllegalArgumentError(
        f"the field {where} is {spark_type(new)} in the schema and {spark_type(old)} in the table"
    )

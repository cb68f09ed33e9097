"""Define the types of the columns for decoded bodies: Arrow's types, and their names in Spark SQL.

Each kind of value has one type, the widest that Spark, Iceberg and Delta share. So a schema that widens a
field (int to long, float to double, more digits of a decimal) changes no table. Neither Delta nor files that
are already written could follow such a change.

    whole numbers           bigint          of 64 bits without a sign: decimal(38,0)
    numbers with a fraction double          decimals: decimal(38,scale)
    texts, enums            string          and, as JSON, values that no other type holds
    bytes                   binary
    days, moments           date, timestamp (microseconds in UTC)
    truth values            boolean
    lists, maps, records    array<…>, map<string,…>, struct<name:…>
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from cometmq.errors import IllegalArgumentError

BOOLEAN: Final = pa.bool_()
WHOLE: Final = pa.int64()
NUMBER: Final = pa.float64()
TEXT: Final = pa.string()
BYTES: Final = pa.binary()
DAY: Final = pa.date32()
MOMENT: Final = pa.timestamp("us", "UTC")
DIGITS: Final = 38
UNSIGNED: Final = pa.decimal128(DIGITS, 0)

_PLAIN: Final = {
    "int": pa.int32(),  # of columns of messages
    "boolean": BOOLEAN,
    "bigint": WHOLE,
    "double": NUMBER,
    "string": TEXT,
    "binary": BYTES,
    "date": DAY,
    "timestamp": MOMENT,
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_TOKEN: Final = re.compile(r"\w+|[<>:,()]")
_OTHER: Final = re.compile(r"\W")


def plain_name(name: str) -> str:
    """Return a field's name in letters, digits and underscores, which every engine accepts unquoted."""
    return _OTHER.sub("_", name) or "_"


def struct_of(fields: dict[str, pa.DataType]) -> pa.DataType:
    """Return the type of a record. Raise IllegalArgumentError for names that engines do not distinguish."""
    seen: dict[str, str] = {}
    for name in fields:
        other = seen.setdefault(plain_name(name).casefold(), name)
        if other != name:
            raise IllegalArgumentError(
                f"the fields {other!r:.80} and {name!r:.80} would be the same column, because column names "
                "have only letters, digits and underscores, and engines ignore case: leave one of them out "
                "of the schema"
            )
    return pa.struct([pa.field(plain_name(name), kind) for name, kind in fields.items()])


def spark_type(kind: pa.DataType) -> str:
    """Return the name of a type in Spark SQL."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string,{spark_type(kind.item_type)}>"
    assert pa.types.is_struct(kind), kind
    return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in kind)}>"


def arrow_type(name: str) -> pa.DataType:
    """Return the type with a name from `spark_type`. Raise IllegalArgumentError for other names."""
    tokens = _TOKEN.findall(name)
    try:
        kind = _parsed(tokens)
    except IndexError:
        tokens = ["…"]
    if tokens:
        raise IllegalArgumentError(f"{name!r:.200} is not the type of a decoded column")
    return kind


def _parsed(tokens: list[str]) -> pa.DataType:
    """Take a type off the beginning of a list of words and signs."""
    word = tokens.pop(0)
    if word in _PLAIN:
        return _PLAIN[word]
    if word == "decimal":
        _, digits, _, scale, _ = (tokens.pop(0) for _ in range(5))
        return pa.decimal128(int(digits), int(scale))
    tokens.pop(0)
    if word == "array":
        kind = pa.list_(_parsed(tokens))
    elif word == "map":
        del tokens[:2]
        kind = pa.map_(TEXT, _parsed(tokens))
    else:
        fields: list[pa.Field] = []
        while not fields or tokens.pop(0) == ",":
            name = tokens.pop(0)
            tokens.pop(0)
            fields.append(pa.field(name, _parsed(tokens)))
        return pa.struct(fields)
    tokens.pop(0)
    return kind

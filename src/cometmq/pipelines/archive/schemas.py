"""Know the columns of each file of an archive, and whether they can be read together. Needs no Spark.

Every file has a schema, which its entry in the manifest names by number (`form`). Number 1 has all
columns of a message, and number 2 leaves out columns that follow from others. An archive that needs
further numbers, because its columns or their types are not those of this version, lists them in
`_state.json`. A checksum covers the columns of one schema, in their order there, so files of one
schema can always be held against their proof, whatever columns a version of CometMQ has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from cometmq.errors import ConfigError
from cometmq.spark.rows.columns import COLUMNS

ALL: Final = 1
COMPACT: Final = 2
# The columns that files of a compact schema leave out, each with the columns that it follows from.
MADE_OF: Final = {
    "keys": ("properties",),
    "tags": ("properties",),
    "transaction_type": ("sys_flag",),
    "transaction_id": ("properties",),
    "delay_level": ("properties",),
    "deliver_time": ("properties",),
    "offset_msg_id": ("store_host", "commit_log_offset"),
}
OFFSET_ID: Final = "offset_msg_id"

# The columns of the numbers 1 and 2. Archives do not list them, so they never change, and are written
# out here once more: COLUMNS gets further ones. Version 0.2 had no batch_msg_id, and a checksum passes
# over nulls.
_FIRST_COLUMNS: Final = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "commit_log_offset": "bigint",
    "msg_id": "string",
    "offset_msg_id": "string",
    "batch_msg_id": "string",
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
# The columns of these whose nulls a checksum covers: xxhash64 skips nulls, so a value could otherwise
# stand for its neighbour's.
_FIRST_NULLABLE: Final = (
    "broker",
    "msg_id",
    "keys",
    "tags",
    "transaction_type",
    "transaction_id",
    "delay_level",
    "deliver_time",
)
# Readers of Parquet give the first type as the second one.
_WIDENED: Final = {("int", "bigint"), ("int", "double"), ("float", "double")}


class Schema(msgspec.Struct, frozen=True):
    """The columns of some files, with Spark's types. `compact`: of the ids by offset it has only
    those that cannot be computed.
    """

    number: int
    columns: dict[str, str]
    compact: bool = False

    @property
    def nullable(self) -> list[str]:
        """Return the columns whose nulls a checksum covers."""
        return [
            name for name in self.columns if name in _FIRST_NULLABLE or name not in _FIRST_COLUMNS
        ]

    @property
    def foreign(self) -> dict[str, str]:
        """Return the columns that messages do not have here, or have with another type."""
        return {name: kind for name, kind in self.columns.items() if COLUMNS.get(name) != kind}

    def common(self) -> Schema:
        """Return the schema with only those columns that messages have here."""
        foreign = self.foreign
        known = {name: kind for name, kind in self.columns.items() if name not in foreign}
        return msgspec.structs.replace(self, columns=known)


def _without_derived(columns: Mapping[str, str]) -> dict[str, str]:
    return {n: kind for n, kind in columns.items() if n not in MADE_OF or n == OFFSET_ID}


FIRST: Final = {
    ALL: Schema(ALL, _FIRST_COLUMNS),
    COMPACT: Schema(COMPACT, _without_derived(_FIRST_COLUMNS), compact=True),
}


def wanted(known: Mapping[int, Schema], *, compact: bool) -> Schema:
    """Return the schema of new files: one that is `known`, or a new one."""
    columns = _without_derived(COLUMNS) if compact else dict(COLUMNS)
    for schema in known.values():
        if schema.compact == compact and list(schema.columns.items()) == list(columns.items()):
            return schema
    return Schema(max(known) + 1, columns, compact)


def check_readable(where: object, schemas: Iterable[Schema]) -> None:
    """Raise ConfigError if files of these schemas cannot be read as messages."""
    for schema in schemas:
        for name, theirs, ours in _misfits(schema.columns, COLUMNS):
            raise ConfigError(
                f"{where}: the column {name} of files of schema {schema.number} has the type "
                f"{theirs}, and {ours} here, and one cannot be read as the other. Read the archive "
                "with the CometMQ that wrote these files, or archive their topics again under "
                "another path"
            )


def check_columns(where: object, found: Mapping[str, str], needed: Mapping[str, str]) -> None:
    """Raise ConfigError unless a table with the columns `found` has those of a place, and those that
    are `needed` with types that can be cast.
    """
    for name in ("topic", "broker", "queue_id", "queue_offset"):
        if name not in found:
            raise ConfigError(
                f"{where} has no column {name}: it needs the columns of an archive; those that it "
                f"has are {', '.join(found)}"
            )
    for name, theirs, ours in _misfits(found, needed):
        if not _may_be_cast(theirs, ours):
            raise ConfigError(
                f"{where}: the column {name} has the type {theirs}, and an archive's has {ours}; "
                f"write it again with cast({name} AS {ours})"
            )


def misfit_of(file: Any, schema: Schema) -> str | None:
    """Say which column of an open Parquet file is not of the type of its schema."""
    found = {field.name: _spark_type(field.type) for field in file.schema_arrow}
    for name, theirs, ours in _misfits(found, schema.columns):
        return (
            f"its column {name} has the type {theirs}, and {ours} in the manifest: put the file back "
            "as it was"
        )
    return None


def _misfits(found: Mapping[str, str], needed: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, ours in needed.items():
        theirs = found.get(name, ours)
        if theirs != ours and (theirs, ours) not in _WIDENED:
            yield name, theirs, ours


def _may_be_cast(theirs: str, ours: str) -> bool:
    """Return whether other tools write values of the one type for the other."""
    kinds = (
        {"tinyint", "smallint", "int", "bigint"},
        {"timestamp", "timestamp_ntz"},
    )
    return any({theirs, ours} <= kind for kind in kinds)


def _spark_type(kind: Any) -> str:
    """Return Spark's name of an Arrow type, as far as files of messages have such types."""
    from pyarrow import types

    if types.is_timestamp(kind):
        return "timestamp"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{_spark_type(kind.key_type)},{_spark_type(kind.item_type)}>"
    if types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if types.is_struct(kind):
        return f"struct<{','.join(f'{one.name}:{_spark_type(one.type)}' for one in kind)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    names = {
        "int8": "tinyint",
        "int16": "smallint",
        "int32": "int",
        "int64": "bigint",
        "large_string": "string",
        "large_binary": "binary",
        "bool": "boolean",
        "date32[day]": "date",
    }
    return names.get(str(kind), str(kind))

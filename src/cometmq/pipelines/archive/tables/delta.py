"""Publish commits as versions of a Delta table, by deltalake.

A version has the transaction `cometmq-archive` with the number of the archive's commit. A version is
there as a whole or not at all, so a commit is published once, whatever is killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.tables.changes import Change, TableFile
from cometmq.pipelines.archive.tables.columns import DAY
from cometmq.pipelines.archive.tables.footers import Footer
from cometmq.pipelines.archive.tables.links import Links
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.runtime.clock import Clock
from cometmq.spark.decoding.kinds import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable as Table
    from deltalake import Field
    from deltalake.schema import DataType

APP: Final = "cometmq-archive"
COMMIT: Final = "cometmq-commit"
FIRST: Final = "cometmq-first-commit"
_PARTITIONED_BY: Final = ("topic", DAY)


class DeltaTable:
    """The Delta table of an archive. Its directory is that of the links."""

    format: Final = "delta"

    def __init__(self, settings: TableSettings, links: Links, clock: Clock) -> None:
        self._links = links
        self._hours = settings.table_history_hours
        self._clock = clock
        self._table: Table | None = None

    @property
    def name(self) -> str:
        return self._links.place

    def open(self, columns: Mapping[str, str]) -> None:
        """Load the table, or create it, and give it these columns, with Spark's types.

        Raise ConfigError if the table's columns do not fit, and all that deltalake raises.
        """
        from deltalake import DeltaTable as Table
        from deltalake import Schema

        # It stands with the other columns that have no values in the files.
        fields = [_field("topic", columns["topic"]), _field(DAY, "date")]
        fields += [_field(name, kind) for name, kind in columns.items() if name != "topic"]
        kept = f"interval {max(1, round(self._hours * 60))} minutes"
        settings: dict[str, str | None] = {
            "delta.logRetentionDuration": kept,
            "delta.deletedFileRetentionDuration": kept,
            "delta.enableExpiredLogCleanup": "true",
        }
        access = self._links.access()
        storage = None if access is None else access.of_deltalake()
        if not Table.is_deltatable(self.name, storage):
            Table.create(
                self.name,
                Schema(fields),
                mode="ignore",
                partition_by=list(_PARTITIONED_BY),
                configuration=settings,
                storage_options=storage,
            )
        table = self._table = Table(self.name, storage_options=storage)
        self._fit(table, fields)
        if any(table.metadata().configuration.get(key) != value for key, value in settings.items()):
            table.alter.set_table_properties({key: value or "" for key, value in settings.items()})

    def published(self) -> int | None:
        """Return the number of the last commit that was published, None if there is none."""
        number: int | None = self._opened.transaction_version(APP)
        return number

    def live(self) -> dict[str, TableFile]:
        """Return the files of the current version, by link."""
        import pyarrow as pa

        found = {}
        for one in pa.table(self._opened.get_add_actions(flatten=True)).to_pylist():
            day = one[f"partition.{DAY}"]
            footer = Footer(one["num_records"], one["size_bytes"], {}, [])
            found[one["path"]] = TableFile(
                one["path"], one["partition.topic"], date.fromisoformat(str(day)), footer
            )
        return found

    def publish(self, change: Change) -> None:
        """Make one version of a change."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        table = self._opened
        columns = {field.name: field.type for field in table.schema().fields}
        now_ms = self._clock.now_ms()
        changed = not change.rewrites
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.link,
                file.footer.bytes,
                _partition(file),
                now_ms,
                changed,
                _statistics(file, columns),
            )
            for file in change.added
        ]
        actions += [
            RemoveAction(file.link, changed, now_ms, file.footer.bytes, _partition(file))
            for file in change.removed
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(_PARTITIONED_BY),
            commit_properties=CommitProperties(
                custom_metadata={COMMIT: str(change.commit), FIRST: str(change.first)},
                app_transactions=[Transaction(APP, change.commit)],
            ),
        )
        table.update_incremental()

    def expire(self, _before_ms: int) -> None:
        """Leave it to deltalake, which removes old entries of the log as the table's properties ask."""

    # Inside

    @property
    def _opened(self) -> Table:
        assert self._table is not None, "open comes first"
        return self._table

    def _fit(self, table: Table, fields: list[Field]) -> None:
        there = {field.name: field for field in table.schema().fields}
        new = [field for field in fields if there.get(field.name) != field]
        for field in new:
            before = there.get(field.name)
            if before is not None and not _grows(before.type, field.type):
                raise ConfigError(
                    f"the column {field.name} of the Delta table {self.name} has the type "
                    f"{before.type}, and {field.type} in the archive: remove _delta_log in "
                    "that directory to have the whole table published again"
                )
        if new:
            table.alter.add_columns(new)


def _grows(there: DataType, wanted: DataType) -> bool:
    """Return whether a type differs from another one only by more fields in its records."""
    from deltalake.schema import ArrayType, MapType, StructType

    if isinstance(there, StructType) and isinstance(wanted, StructType):
        types = {field.name: field.type for field in wanted.fields}
        return all(
            field.name in types and _grows(field.type, types[field.name]) for field in there.fields
        )
    if isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        return _grows(there.element_type, wanted.element_type)
    if isinstance(there, MapType) and isinstance(wanted, MapType):
        return _grows(there.value_type, wanted.value_type)
    return bool(there == wanted)


def _partition(file: TableFile) -> dict[str, str | None]:
    return {"topic": file.topic, DAY: file.day.isoformat()}


def _statistics(file: TableFile, types: Mapping[str, DataType]) -> str:
    """Return Delta's JSON of the figures of those columns that the table has."""
    columns = {name: one for name, one in file.footer.columns.items() if name in types}
    bounds: dict[str, tuple[int | str, ...]] = {}
    for name, one in columns.items():
        found = [_value(types[name], bound) for bound in one.bounds or ()]
        if found and None not in found:
            bounds[name] = tuple(value for value in found if value is not None)
    made = {
        "numRecords": file.footer.rows,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": {name: one.nulls for name, one in columns.items() if one.nulls is not None},
    }
    return msgspec.json.encode(made).decode()


def _value(kind: DataType, value: int | str) -> int | str | None:
    """Return a bound as Delta writes it, None for a time that is no whole millisecond: Delta has no
    finer ones there.
    """
    name = getattr(kind, "type", "")
    if isinstance(value, str):
        return value
    if name == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if name != "timestamp":
        return value
    if value % 1000:
        return None
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _field(name: str, kind: str) -> Field:
    """Return Delta's column for one of Spark's types."""
    from deltalake import Field

    return Field(name, _type(arrow_type(kind)))


def _type(kind: pa.DataType) -> DataType:
    """Return the Delta type for an Arrow type."""
    import pyarrow as pa
    from deltalake import Field
    from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

    plain = {
        pa.string(): "string",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float64(): "double",
        pa.binary(): "binary",
        pa.timestamp("us", "UTC"): "timestamp",
        pa.bool_(): "boolean",
        pa.date32(): "date",
    }
    if kind in plain:
        return PrimitiveType(plain[kind])
    if pa.types.is_decimal(kind):
        return PrimitiveType(f"decimal({kind.precision},{kind.scale})")
    if pa.types.is_map(kind):
        value = _type(kind.item_type)
        return MapType(PrimitiveType("string"), value, value_contains_null=True)
    if pa.types.is_list(kind):
        return ArrayType(_type(kind.value_type), contains_null=True)
    assert pa.types.is_struct(kind), kind
    return StructType([Field(field.name, _type(field.type)) for field in kind])

"""Publish commits as snapshots of an Iceberg table, by PyIceberg.

A snapshot's property `cometmq-commit` is the number of the archive's commit. The catalog changes the table
from one snapshot to the next or not at all, so a commit is published once, whatever is killed.

The files name no field ids. The table's name mapping does, for all columns that files may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.archive.tables.changes import Change, TableFile
from cometmq.pipelines.archive.tables.columns import SORTED_BY
from cometmq.pipelines.archive.tables.contents import Contents
from cometmq.pipelines.archive.tables.footers import Footer
from cometmq.pipelines.archive.tables.links import Links
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.s3_access import S3Access
from cometmq.spark.decoding.kinds import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType

log = get_logger(__name__)

COMMIT: Final = "cometmq-commit"
FIRST: Final = "cometmq-first-commit"
ARCHIVE: Final = "cometmq-archive"
_EPOCH: Final = date(1970, 1, 1)
# Keys of a catalog's configuration for access to its files.
_ACCESS: Final = ("s3.", "client.access-key-id", "client.profile-name", "client.role-arn")
_MAPPING: Final = "schema.name-mapping.default"
_PROPERTIES: Final = {
    "format-version": "2",
    # A stream commits every minute, each time with a manifest. They are joined by the hundred.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergTable:
    """The Iceberg table of contents of the archive at a path, with these links.

    The catalog and the metadata lie beside the links if no catalog is configured.
    """

    format: Final = "iceberg"

    def __init__(
        self, settings: TableSettings, contents: Contents, archive: str, links: Links
    ) -> None:
        self._settings = settings
        self._contents = contents
        self._archive = archive
        self._links = links
        self._base = links.uri
        self._home = links.directory.parent / "iceberg"
        self._table: Table | None = None
        # The access with which the table was loaded.
        self._access: S3Access | None = None

    @property
    def name(self) -> str:
        return self._contents.name

    def open(self, columns: Mapping[str, str]) -> None:
        """Load the table, or create it, and give it these columns, with Spark's types.

        Raise ConfigError if the table belongs to another archive, and all that the catalog raises.
        """
        access = self._links.access()
        if self._table is None or access != self._access:
            self._access = access
            self._table = self._loaded(columns)
        else:
            self._table.refresh()
        table = self._table
        owner = table.properties.get(ARCHIVE)
        if owner != self._archive:
            raise ConfigError(
                f"the Iceberg table {self.name} has the messages of "
                f"{owner or 'something else than an archive'}, and this archive is "
                f"{self._archive}: give iceberg_table another name, or drop that table"
            )
        self._fit(table, columns)
        self._write_hint(table)

    def published(self) -> int | None:
        """Return the number of the last commit that was published, None if there is none."""
        for snapshot in self._snapshots():
            if snapshot.summary is not None and (number := snapshot.summary[COMMIT]) is not None:
                return int(number)
        return None

    def live(self) -> dict[str, TableFile]:
        """Return the files of the current snapshot, by link."""
        found = {}
        for task in self._opened.scan().plan_files():
            file = task.file
            topic, day = file.partition[0], _EPOCH + timedelta(days=file.partition[1])
            link = file.file_path.removeprefix(f"{self._base}/")
            footer = Footer(file.record_count, file.file_size_in_bytes, {}, [])
            found[link] = TableFile(link, topic, day, footer)
        return found

    def publish(self, change: Change) -> None:
        """Make one snapshot of a change."""
        table = self._opened
        properties = {COMMIT: str(change.commit), FIRST: str(change.first)}
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=properties)
            with update.overwrite() if change.removed else update.merge_append() as producer:
                for file in change.added:
                    producer.append_data_file(self._data_file(file))
                for file in change.removed:
                    producer.delete_data_file(self._data_file(file))
        self._write_hint(table)

    def expire(self, before_ms: int) -> None:
        """Expire snapshots that were replaced before a time, and remove their lists of files.

        Snapshots that branches and tags of users need stay.
        """
        table = self._opened
        line = list(self._snapshots())
        old = [snapshot for newer, snapshot in pairwise(line) if newer.timestamp_ms < before_ms]
        if not old or len(table.metadata.refs) > 1:
            return
        oldest_left = line[len(line) - len(old) - 1]
        kept = {one.manifest_path for one in oldest_left.manifests(table.io)}
        lists = [one.manifest_list for one in old]
        gone = {one.manifest_path for s in old for one in s.manifests(table.io)} - kept
        table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
        # Before the lists go, so that nobody is sent to metadata which names them.
        table.refresh()
        self._write_hint(table)
        for path in (*lists, *gone):
            table.io.delete(path)

    # Inside

    @property
    def _opened(self) -> Table:
        assert self._table is not None, "open comes first"
        return self._table

    def _snapshots(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and those before it."""
        table = self._opened
        snapshot = table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)

    def _loaded(self, columns: Mapping[str, str]) -> Table:
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._catalog()
        try:
            return catalog.load_table(self.name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            return self._created(catalog, columns)

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config

        files = {} if self._access is None else self._access.of_pyiceberg()
        if (name := self._settings.iceberg_catalog) is not None:
            # If the catalog's configuration has keys for files, they are meant for its metadata.
            own = Config().get_catalog_config(name) or {}
            is_given = any(key.startswith(_ACCESS) for key in own)
            return load_catalog(name, **({} if is_given else files))
        if (home := self._home.local) is None:
            from cometmq.pipelines.archive.tables.metadata_files import MetadataFiles

            return MetadataFiles(self._home / "metadata", f"{self._home_uri}/metadata", files)
        home.mkdir(parents=True, exist_ok=True)
        file = home / "catalog.db"
        return load_catalog(
            "cometmq", type="sql", uri=f"sqlite:///{file}", warehouse=self._home_uri
        )

    @property
    def _home_uri(self) -> str:
        return f"{self._base.rpartition('/')[0]}/iceberg"

    def _created(self, catalog: Catalog, columns: Mapping[str, str]) -> Table:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.table.sorting import SortField, SortOrder
        from pyiceberg.transforms import DayTransform, IdentityTransform

        schema = _schema({**columns, **self._contents.reserved})
        ids = {field.name: field.field_id for field in schema.fields}
        return catalog.create_table_if_not_exists(
            self.name,
            schema,
            location=None if self._settings.iceberg_catalog else self._home_uri,
            partition_spec=PartitionSpec(
                PartitionField(ids["topic"], 1000, IdentityTransform(), "topic"),
                PartitionField(ids["store_time"], 1001, DayTransform(), "store_time_day"),
            ),
            sort_order=SortOrder(
                *(SortField(ids[name], transform=IdentityTransform()) for name in SORTED_BY)
            ),
            properties={**_PROPERTIES, ARCHIVE: self._archive},
        )

    def _fit(self, table: Table, columns: Mapping[str, str]) -> None:
        """Add the columns that the table does not have, and take out those that stay reserved."""
        from pyiceberg.table.name_mapping import create_mapping_from_schema

        schema = table.schema()
        there = {field.name: field.field_type for field in schema.fields}
        new: list[tuple[tuple[str, ...], IcebergType]] = []
        for name, kind in columns.items():
            new += _additions(
                (name,), there.get(name), _type(arrow_type(kind), count(1)), self.name
            )
        reserved = [name for name in self._contents.reserved if name in there]
        if not new and not reserved and _MAPPING in table.properties:
            return
        with table.transaction() as transaction:
            if _MAPPING not in table.properties:
                mapping = create_mapping_from_schema(schema).model_dump_json()
                transaction.set_properties({_MAPPING: mapping})
            with transaction.update_schema() as update:
                for name in reserved:
                    update.delete_column(name)
                for path, added in new:
                    update.add_column(path, added)

    def _write_hint(self, table: Table) -> None:
        """Name the newest metadata in a file that readers without the catalog look for."""
        if self._settings.iceberg_catalog is None:
            newest = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
            # The hint holds a number if the file's name has one.
            newest = newest.removeprefix("v")
            hint = self._home / "metadata" / "version-hint.text"
            if not hint.exists() or hint.read_bytes() != newest.encode():
                hint.write(newest.encode())

    def _data_file(self, file: TableFile) -> DataFile:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record
        from pyiceberg.types import PrimitiveType

        table = self._opened
        fields = {field.name: field for field in table.schema().fields}
        known = {fields[name]: one for name, one in file.footer.columns.items() if name in fields}
        bounds = [
            {
                field.field_id: to_bytes(field.field_type, one.bounds[at])
                for field, one in known.items()
                if one.bounds is not None and isinstance(field.field_type, PrimitiveType)
            }
            for at in range(2)
        ]
        found = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._base}/{file.link}",
            file_format=FileFormat.PARQUET,
            partition=Record(file.topic, (file.day - _EPOCH).days),
            record_count=file.footer.rows,
            file_size_in_bytes=file.footer.bytes,
            column_sizes={field.field_id: one.bytes for field, one in known.items()},
            value_counts={field.field_id: file.footer.rows for field in known},
            null_value_counts={
                field.field_id: one.nulls for field, one in known.items() if one.nulls is not None
            },
            nan_value_counts={},
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            key_metadata=None,
            split_offsets=file.footer.splits or None,
            equality_ids=None,
            sort_order_id=table.sort_order().order_id,
        )
        found.spec_id = table.spec().spec_id
        return found


def _schema(columns: Mapping[str, str]) -> Schema:
    """Return columns with the ids that a catalog gives them: first all columns, then parts of them."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    ids = count(len(columns) + 1)
    return Schema(
        *(
            NestedField(at, name, _type(arrow_type(kind), ids), required=False)
            for at, (name, kind) in enumerate(columns.items(), 1)
        )
    )


def _type(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return the Iceberg type for an Arrow type. Its parts get the next ids, a record's own fields first."""
    import pyarrow as pa
    from pyiceberg import types

    plain = {
        pa.string(): types.StringType(),
        pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(),
        pa.float64(): types.DoubleType(),
        pa.binary(): types.BinaryType(),
        pa.timestamp("us", "UTC"): types.TimestamptzType(),
        pa.bool_(): types.BooleanType(),
        pa.date32(): types.DateType(),
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        key, value = next(ids), next(ids)
        inner = _type(kind.item_type, ids)
        return types.MapType(key, types.StringType(), value, inner, value_required=False)
    if pa.types.is_list(kind):
        element = next(ids)
        return types.ListType(element, _type(kind.value_type, ids), element_required=False)
    assert pa.types.is_struct(kind), kind
    numbers = [next(ids) for _ in kind]
    return types.StructType(
        *(
            types.NestedField(number, field.name, _type(field.type, ids), required=False)
            for number, field in zip(numbers, kind, strict=True)
        )
    )


def _additions(
    path: tuple[str, ...], there: IcebergType | None, wanted: IcebergType, table: str
) -> Iterator[tuple[tuple[str, ...], IcebergType]]:
    """Yield the columns and parts of columns that a table lacks, as paths with their types.

    Raise ConfigError for a column that the table has with another type.
    """
    from pyiceberg.types import ListType, MapType, StructType

    if there is None:
        yield path, wanted
    elif isinstance(there, StructType) and isinstance(wanted, StructType):
        parts = {field.name: field.field_type for field in there.fields}
        for field in wanted.fields:
            yield from _additions(
                (*path, field.name), parts.get(field.name), field.field_type, table
            )
    elif isinstance(there, ListType) and isinstance(wanted, ListType):
        inner = (there.element_type, wanted.element_type)
        yield from _additions((*path, "element"), *inner, table)
    elif isinstance(there, MapType) and isinstance(wanted, MapType):
        yield from _additions((*path, "value"), there.value_type, wanted.value_type, table)
    elif there != wanted:
        raise ConfigError(
            f"the column {'.'.join(path)} of the Iceberg table {table} has the type {there}, and "
            f"{wanted} in the archive: drop the table, so that it is published again from the beginning"
        )

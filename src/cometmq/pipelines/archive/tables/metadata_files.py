"""Keep an Iceberg table in an object store without a catalog server, by numbered metadata files.

The file with the highest number is the table. A file is created only if its number is free, so of two changes at
once one fails. The names are those of Iceberg's Hadoop tables: `v7.metadata.json`, and `version-hint.text`, which
holds 7 or an earlier number. DuckDB and Spark read such a table by its location.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from cometmq.pipelines.locations import Location

HINT: Final = "version-hint.text"
_END: Final = ".metadata.json"
_NAME: Final = re.compile(r"v[1-9][0-9]{0,17}\.metadata\.json")


class MetadataFiles(MetastoreCatalog):
    """The catalog of the one table with its metadata in `directory`; `uri` is the URI of `directory`.

    Every identifier names this table. properties: the properties of PyIceberg's file access.
    """

    def __init__(self, directory: Location, uri: str, properties: dict[str, str]) -> None:
        super().__init__("cometmq", **properties)
        self._directory = directory
        self._uri = uri

    def load_table(self, identifier: str | Identifier) -> Table:
        number = self._newest()
        if number is None:
            raise NoSuchTableError(f"no table in {self._directory}")
        path = self._path(number)
        io = self._load_file_io(location=path)
        metadata = FromInputFile.table_metadata(io.new_input(path))
        name = self.identifier_to_tuple(identifier)
        return Table(name, metadata, path, self._load_file_io(metadata.properties, path), self)

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        assert isinstance(schema, Schema)
        staged = self._create_staged_table(
            identifier, schema, location, partition_spec, sort_order, properties
        )
        if self._newest() is not None or not self._create(1, staged.metadata):
            raise TableAlreadyExistsError(f"{self._directory} has a table already")
        return self.load_table(identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        place = current.metadata_location
        if staged.metadata != current.metadata:
            number = _number_in(place) + 1
            place = self._path(number)
            if not self._create(number, staged.metadata):
                raise CommitFailedException(f"{place} exists: another process changed the table")
        return CommitTableResponse.model_validate(
            {"metadata": staged.metadata, "metadata-location": place}
        )

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        """Do nothing: names are not kept."""

    def _unsupported(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise NotImplementedError("this catalog has one table: load, create or change it")

    register_table = drop_table = rename_table = _unsupported
    drop_namespace = list_tables = list_namespaces = _unsupported
    load_namespace_properties = update_namespace_properties = _unsupported
    list_views = load_view = view_exists = register_view = drop_view = _unsupported

    # Inside

    def _path(self, number: int) -> str:
        return f"{self._uri}/v{number}{_END}"

    def _create(self, number: int, metadata: TableMetadata) -> bool:
        """Write the metadata file with a number. Return False if the number is taken."""
        content: bytes = metadata.model_dump_json(exclude_none=True).encode()
        path = self._directory / f"v{number}{_END}"
        try:
            path.create(content)
        except FileExistsError:
            # An object store may repeat a request whose answer was lost.
            return path.read_bytes() == content
        return True

    def _newest(self) -> int | None:
        """Return the highest number, None if there is no metadata.

        A process that was killed may have left an old number in the hint. Without a hint, list all names.
        """
        try:
            number = int((self._directory / HINT).read_bytes())
        except (FileNotFoundError, ValueError):
            names = self._directory.sizes()
            # An archive that was copied from a directory brings metadata with the names of its catalog.
            return max((_number_in(name) for name in names if _NAME.fullmatch(name)), default=None)
        while (self._directory / f"v{number + 1}{_END}").exists():
            number += 1
        return number


def _number_in(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(_END).removeprefix("v"))

"""Define the files of an archive that a table has, and its names and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.layout import Hour
from cometmq.pipelines.archive.tables.columns import RESERVED, table_columns
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.locations import Location


@dataclass(frozen=True)
class Contents:
    """The contents of a table.

    name: the name of the Iceberg table. home: the directory of the table's links and metadata.
    columns: the table's columns with Spark's types. reserved: the columns that only some files have.
    named: the name of the table's hours in the archive; None for a table of all hours.
    topic: the topic of all messages in the table; None if hours have the names of their topics.
    """

    name: str
    home: Location
    columns: Callable[[], Mapping[str, str]]
    reserved: Mapping[str, str] = field(default_factory=dict)
    named: str | None = None
    topic: str | None = None

    def has(self, hour: Hour) -> bool:
        return self.named is None or hour.topic == self.named

    def files(self, archive: Archive) -> list[tuple[Hour, str]]:
        """Return the files that the table has now."""
        return [
            (hour, file.name)
            for hour, manifest in archive.manifests.items()
            if self.has(hour)
            for file in manifest.files
        ]


def messages_of(archive: Archive, settings: TableSettings) -> Contents:
    """Return the contents of the table of all messages of an archive."""
    return Contents(
        settings.iceberg_table,
        archive.layout.tables,
        lambda: table_columns(archive.schemas.values()),
        RESERVED,
    )

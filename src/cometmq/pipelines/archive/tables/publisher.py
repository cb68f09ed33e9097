"""Bring the tables of an archive up to its last commit.

The archive comes first. If a table cannot be changed now, because its catalog does not answer, say, it
catches up later. Each table has the number of its last commit, so nothing can be published twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from cometmq.errors import ConfigError
from cometmq.extras import lacking, missing
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.tables.changes import Change, Changes, TableFile
from cometmq.pipelines.archive.tables.contents import Contents, messages_of
from cometmq.pipelines.archive.tables.links import link_name, links_of
from cometmq.pipelines.archive.tables.settings import Format, TableSettings
from cometmq.pipelines.report import Table
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

log = get_logger(__name__)

_PACKAGES: Final[dict[Format, tuple[str, ...]]] = {
    "iceberg": ("pyiceberg", "sqlalchemy", "pyarrow"),
    "delta": ("deltalake", "pyarrow"),
}
_HOUR_MS: Final = 3_600_000


class PublishedTable(Protocol):
    """A table in one of the formats. `iceberg` describes the methods."""

    @property
    def format(self) -> str: ...
    @property
    def name(self) -> str: ...
    def open(self, columns: Mapping[str, str]) -> None: ...
    def published(self) -> int | None: ...
    def live(self) -> dict[str, TableFile]: ...
    def publish(self, change: Change) -> None: ...
    def expire(self, before_ms: int) -> None: ...


class TableLine(msgspec.Struct):
    """A table, as a report shows it.

    commit: of the archive, which the table has; None if it has none, or that is unknown.
    snapshots: that this run has made. problem: the reason why the table is behind, if it is.
    """

    format: str
    table: str
    commit: int | None = None
    snapshots: int = 0
    problem: str | None = None


def table_of(lines: Sequence[TableLine]) -> Table:
    """Return the part of a report that shows these tables."""
    columns = ("format", "table", "has commit", "new snapshots", "is behind, because")
    rows = [(one.format, one.table, one.commit, one.snapshots, one.problem) for one in lines]
    return Table("Tables", columns, rows)


class Publisher:
    """Publishes contents of an open archive, by default all its messages.

    Raise ConfigError if a package is missing, and from `publish` if a table belongs to another archive.
    """

    def __init__(
        self,
        archive: Archive,
        settings: TableSettings,
        clock: Clock = SYSTEM_CLOCK,
        contents: Contents | None = None,
    ) -> None:
        _check_packages(settings.publish)
        self._archive = archive
        self._contents = contents or messages_of(archive, settings)
        self._history_ms = int(settings.table_history_hours * _HOUR_MS)
        self._clock = clock
        self.lines: list[TableLine] = []
        self._tables: list[tuple[PublishedTable, TableLine]] = []
        if settings.publish:
            self._links = links_of(archive.layout, self._contents.home)
            self._changes = Changes(archive, self._contents, self._links)
            for table in self._made(settings):
                self._tables.append((table, TableLine(table.format, table.name)))
            self.lines = [line for _, line in self._tables]

    def publish(self) -> None:
        """Publish the commits that the tables do not have. Keep the files even if a catalog fails."""
        if not self._tables:
            return
        files = self._contents.files(self._archive)
        columns = self._contents.columns()
        for table, line in self._tables:
            with _noted(line):
                # Before the catalog is asked: a compaction may take them out of data.
                self._links.make(files)
                table.open(columns)
                self._catch_up(table, line)
        self._changes.forget()

    def expire(self) -> None:
        """Expire snapshots that are older than the history, and then the files that only they had.

        No file is removed while a table is behind.
        """
        if not self._tables or any(line.problem for line in self.lines):
            return
        now_ms = self._clock.now_ms()
        for table, line in self._tables:
            with _noted(line):
                table.expire(now_ms - self._history_ms)
        if any(line.problem for line in self.lines):
            return
        live = {link_name(*file) for file in self._contents.files(self._archive)}
        self._links.drop_retired(live, now_ms, self._history_ms)

    # Inside

    def _made(self, settings: TableSettings) -> Iterator[PublishedTable]:
        for name in settings.publish:
            if name == "iceberg":
                from cometmq.pipelines.archive.tables.iceberg import IcebergTable

                owner = str(self._archive.layout.path)
                yield IcebergTable(settings, self._contents, owner, self._links)
            else:
                from cometmq.pipelines.archive.tables.delta import DeltaTable

                yield DeltaTable(settings, self._links, self._clock)

    def _catch_up(self, table: PublishedTable, line: TableLine) -> None:
        line.commit = table.published()
        changes = self._changes.one_by_one(line.commit)
        if changes is None:
            change = self._changes.up_to_now(line.commit, table.live())
            changes = [change] if change.added or change.removed else []
        for change in changes:
            table.publish(change)
            line.commit = change.commit
            line.snapshots += 1


@contextmanager
def _noted(line: TableLine) -> Iterator[None]:
    """Note in a line why a table could not be changed."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a catalog, its network and its database raise anything
        line.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
        log.warning(
            "a table is behind the archive and will be caught up",
            format=line.format,
            table=line.table,
            commit=line.commit,
            reason=line.problem,
        )
    else:
        line.problem = None


def _check_packages(formats: list[Format]) -> None:
    for name in formats:
        for package in _PACKAGES[name]:
            if lacking(package):
                raise missing("tables", f'publish = ["{name}"]', package)

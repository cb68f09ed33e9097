"""Publish an archive that exists as Iceberg and Delta tables.

    report = publish.run(publish.Config(path="/data/archive"), context)

The first run publishes all that is archived as one snapshot. A further run makes a snapshot of each commit
since then. The pipeline archive publishes by itself if its table [archive] has `publish`. docs/tables.md
describes the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines import report
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.decoded.definitions import DIRECTORY, Definitions
from cometmq.pipelines.archive.decoded.publishing import DecodedPublisher
from cometmq.pipelines.archive.layout import Layout
from cometmq.pipelines.archive.tables.publisher import Publisher, TableLine, table_of
from cometmq.pipelines.archive.tables.settings import Format, TableSettings
from cometmq.pipelines.context import Context
from cometmq.pipelines.hadoop_files import location
from cometmq.pipelines.locations import is_uri
from cometmq.pipelines.report import Section, now

__all__ = ["Config", "Report", "run"]

_BOTH: Final[tuple[Format, ...]] = ("iceberg", "delta")


class Config(TableSettings, frozen=True, kw_only=True):
    """path: the directory of the archive, or its URI in S3.

    publish: the formats of the tables.
    iceberg_catalog: a catalog of PyIceberg's configuration; without one, tables are files in the
        archive.
    iceberg_table: the table's name in the catalog, after its namespace.
    table_history_hours: how many hours the files of an old snapshot are kept for its readers.
    """

    path: str
    publish: list[Format] = msgspec.field(default_factory=lambda: list(_BOTH))

    def __post_init__(self) -> None:
        """Raise ConfigError for values that do not fit."""
        self.check_tables(self.path)
        if not self.publish:
            raise ConfigError('publish is [], name a format, for example publish = ["iceberg"]')
        if not is_uri(self.path) and not Path(self.path).is_absolute():
            raise ConfigError(f"path is {self.path!r}, give a directory from the root on")


class Report(report.Report):
    """The report of a run. `commit` is the last one of the archive."""

    path: str
    commit: int
    tables: list[TableLine]

    def sections(self) -> list[Section]:
        return [table_of(self.tables)]


def run(config: Config, context: Context) -> Report:
    """Publish what the tables do not have yet.

    Raise ConfigError for a configuration that does not fit, a directory without an archive, and while
    another process archives there.
    """
    started = now()
    path = location(context.spark, config.path)
    if not Layout(path).state.exists():
        raise ConfigError(
            f"path is {config.path!r}, where no archive is: give the path of the table [archive]"
        )
    with Archive(path) as archive, context.progress.step("publish") as step:
        publisher = Publisher(archive, config, context.clock)
        publisher.publish()
        publisher.expire()
        lines = publisher.lines + _decoded(archive, config, context)
        commit = archive.state.commits
        step.outcome = _said(lines)
    return Report(
        pipeline="publish",
        started=started,
        holds=not any(one.problem for one in lines),
        summary=_said(lines),
        path=config.path,
        commit=commit,
        tables=lines,
    )


def _decoded(archive: Archive, config: Config, context: Context) -> list[TableLine]:
    """Publish the decoded tables of an archive, if there are any."""
    path = archive.layout.path / DIRECTORY
    if not Layout(path).state.exists():
        return []
    with Archive(path) as tables:
        publisher = DecodedPublisher(tables, Definitions(tables.layout), config, context.clock)
        publisher.publish()
        publisher.expire()
        return publisher.lines


def _said(lines: list[TableLine]) -> str:
    return ", ".join(
        f"{one.format}: {one.problem}" if one.problem else f"{one.format}: {one.snapshots} new"
        for one in lines
    )

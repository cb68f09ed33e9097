"""Publish the decoded tables of an archive, each as a table of its own."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.decoded.definitions import UNDECODABLE, Definitions
from cometmq.pipelines.archive.tables.contents import Contents
from cometmq.pipelines.archive.tables.publisher import Publisher, TableLine
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock


class DecodedPublisher:
    """Publishes the tables of an open archive of decoded bodies.

    Their names in Iceberg have the namespace of `iceberg_table` in the settings.
    """

    def __init__(
        self,
        archive: Archive,
        definitions: Definitions,
        settings: TableSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._archive = archive
        self._definitions = definitions
        self._settings = settings
        self._clock = clock
        self._publishers: dict[str, Publisher] = {}

    @property
    def lines(self) -> list[TableLine]:
        return [line for one in self._publishers.values() for line in one.lines]

    def publish(self) -> None:
        """Publish the commits that the published tables lack, as `Publisher.publish` does."""
        if not self._settings.publish:
            return
        for table in self._definitions.tables:
            for name in (table.name, table.name_of_bad):
                if name not in self._publishers:
                    self._publishers[name] = self._publisher(name, table.topic)
        for publisher in self._publishers.values():
            publisher.publish()

    def expire(self) -> Iterator[None]:
        """Expire old snapshots, and yield after each table."""
        for publisher in self._publishers.values():
            publisher.expire()
            yield

    # Inside

    def _publisher(self, name: str, topic: str) -> Publisher:
        namespace = self._settings.iceberg_table.rpartition(".")[0]

        def columns() -> dict[str, str]:
            found = (one.all_columns for one in self._definitions.tables if one.name == name)
            return next(found, UNDECODABLE)

        home = self._archive.layout.tables / name
        contents = Contents(f"{namespace}.{name}", home, columns, named=name, topic=topic)
        return Publisher(self._archive, self._settings, self._clock, contents)

"""Define the topics that become tables, and the target freshness of the tables.

All settings of the stream follow from the freshness, by rules that ignore the load. A batch begins after each
half of the freshness, so that the other half is left for writing the batch. A proof comes after each ten times
the freshness. Decision 346 gives the reasons for having no controller.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.settings import Config as ArchiveConfig
from cometmq.pipelines.archive.tables.settings import Format, TableSettings
from cometmq.spark.options import ms_of

_BOTH: Final[tuple[Format, ...]] = ("iceberg", "delta")
# A batch takes a second or more, even with few messages.
_LEAST_FRESHNESS_S: Final = 2
_MOST_FRESHNESS_S: Final = 24 * 3600
_LEAST_STALLED_S: Final = 60
# A core writes 40,000 to 70,000 messages of 400 bytes a second. So a full batch takes it a quarter of the
# freshness or less.
_MESSAGES_PER_S: Final = 10_000
_MOST_MESSAGES: Final = 1_000_000
_PROOFS: Final = 10
_HIGHEST_PORT: Final = 65535


class Config(TableSettings, frozen=True, kw_only=True):
    """path: the directory of the archive whose files the tables name.

    topics: the names of the topics, or topic_pattern: a regular expression that matches whole topic names, including
        those of topics that appear later.
    freshness: the age at which a message should be in the tables, such as "30s" or "1m". A batch begins
        after each half of it; proofs and compactions come after each ten times the freshness.
    max_messages: the most messages of a batch; if left out, 10,000 for each second of the freshness,
        and 1,000,000 at most.
    publish: the formats of the tables, "iceberg" and "delta".
    commit_group: a consumer group for which archived offsets are committed, so that its lag is the lag
        of the tables.
    safe_group: a consumer group for which proved offsets are committed after each proof.
    fail_on_data_loss: fail if the log no longer has messages that were not archived yet; with false
        they are noted, and the service goes on after them.
    compact_files: an hour with this many small files is compacted; 0 compacts nothing.
    target_file_mb: the size of compacted files; files below half of it are small.
    columns: the columns of the files: `compact` leaves out columns that follow from others, `all`
        writes every column.
    metrics: the host and port of the metrics for Prometheus, such as "127.0.0.1:9405"; none if left out.
    max_restarts: the most restarts in a row; after them, the next end of the driver ends the service. A
        driver that ran for ten minutes resets the count.
    stalled_after: a driver that shows no progress for this long is killed and started again.
    iceberg_catalog: a catalog of PyIceberg's configuration; without one, tables are files in the
        archive.
    iceberg_table: the table's name in the catalog, after its namespace.
    table_history_hours: how many hours the files of an old snapshot are kept for its readers.
    """

    path: str
    publish: list[Format] = msgspec.field(default_factory=lambda: list(_BOTH))
    topics: list[str] = msgspec.field(default_factory=list)
    topic_pattern: str | None = None
    freshness: str = "1m"
    max_messages: int | None = None
    commit_group: str | None = None
    safe_group: str | None = None
    fail_on_data_loss: bool = True
    compact_files: int = 8
    target_file_mb: int = 128
    columns: Literal["compact", "all"] = "compact"
    metrics: str | None = None
    max_restarts: int = 10
    stalled_after: str = "10m"

    def __post_init__(self) -> None:
        """Raise ConfigError for values that do not fit."""
        if not self.publish:
            raise ConfigError('publish is [], name a format, for example publish = ["iceberg"]')
        _seconds("freshness", self.freshness, _LEAST_FRESHNESS_S, _MOST_FRESHNESS_S)
        _seconds("stalled_after", self.stalled_after, _LEAST_STALLED_S, _MOST_FRESHNESS_S)
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts is {self.max_restarts}, give 0 or more")
        if self.metrics is not None:
            self.metrics_place()
        self.archive()

    @property
    def freshness_s(self) -> float:
        return _seconds("freshness", self.freshness, _LEAST_FRESHNESS_S, _MOST_FRESHNESS_S)

    @property
    def stalled_after_s(self) -> float:
        return _seconds("stalled_after", self.stalled_after, _LEAST_STALLED_S, _MOST_FRESHNESS_S)

    def metrics_place(self) -> tuple[str, int]:
        """Return the host and port of `metrics`, which must be given. Raise ConfigError."""
        assert self.metrics is not None
        host, _, port = self.metrics.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > _HIGHEST_PORT:
            raise ConfigError(
                f'metrics is {self.metrics!r}, give a host and a port, such as "127.0.0.1:9405"'
            )
        return host.removeprefix("[").removesuffix("]"), int(port)

    def archive(self) -> ArchiveConfig:
        """Return the settings of the stream that fills the tables. Raise ConfigError if they do not fit."""
        freshness_s = self.freshness_s
        most = min(_MOST_MESSAGES, int(freshness_s * _MESSAGES_PER_S))
        shared = (set(self.__struct_fields__) & set(ArchiveConfig.__struct_fields__)) - {
            "max_messages"
        }
        return ArchiveConfig(
            **{name: getattr(self, name) for name in shared},
            mode="stream",
            interval_s=freshness_s / 2,
            proof_interval_s=freshness_s * _PROOFS,
            max_messages=most if self.max_messages is None else self.max_messages,
        )


def _seconds(key: str, text: str, least_s: int, most_s: int) -> float:
    found_ms = ms_of(text)
    if found_ms is None or not least_s * 1000 <= found_ms <= most_s * 1000:
        raise ConfigError(
            f'{key} is {text!r}, give a duration of {least_s}s to {most_s // 3600}h, such as "1m"'
        )
    return found_ms / 1000

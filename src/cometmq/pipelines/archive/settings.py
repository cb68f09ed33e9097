"""Say which topics an archive has, where it lies, and how it works. It imports no Spark."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.names import group_fault, topic_fault
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.locations import is_uri

# Spark would take a path with one of these characters for a pattern.
_PATTERN_SIGNS: Final = "*?[]{}\\"


class Config(TableSettings, frozen=True, kw_only=True):
    """topics: the names of the topics, or topic_pattern: a regular expression that matches whole topic
        names.

    path: the archive's directory, which the driver and all workers see under this name; or a URI of
        a file system that Spark reaches through Hadoop, such as s3a://bucket/archive.
    mode: `once` archives what is in the log now, `stream` goes on until it is stopped.
    interval_s: in a stream, the time from the beginning of one batch to that of the next.
    proof_interval_s: in a stream, the time from one compaction and proof to the next; both also come at
        its end.
    max_messages: the most messages of a batch. min_partitions: the least number of tasks of a batch.
    store: the directory of a broker's store, to archive that instead of a cluster.
    broker: the name of the broker that wrote the store.
    fail_on_data_loss: fail if the log no longer has messages that were not archived yet; with false
        they are noted, and the archive goes on after them.
    commit_group: a consumer group for which archived offsets are committed, so that its lag is the
        lag of the archive.
    safe_group: a consumer group for which proved offsets are committed after each proof. A broker
        that names it in cleanFileWaitsForGroups keeps files until they are safe to expire.
    compact_files: an hour with this many small files is compacted; 0 compacts nothing.
    target_file_mb: the size of compacted files; files below half of it are small.
    work_path: if `path` is a URI, the directory in which workers note the messages that the log no
        longer has; on a cluster, workers and driver must see it. Without it, such messages fail the
        run.
    columns: the columns of the files: `compact` leaves out columns that follow from others (keys, tags
        and more), `all` writes every column.
    verify: `new` proves new files; `all` reads all files again, and compares files whose log may
        have expired with their proofs.
    publish: make each commit a snapshot of tables in these formats, "iceberg" and "delta".
    iceberg_catalog: a catalog of PyIceberg's configuration; without one, tables are files in the
        archive.
    iceberg_table: the table's name in the catalog, after its namespace.
    table_history_hours: how many hours the files of an old snapshot are kept for its readers.
    """

    path: str
    topics: list[str] = msgspec.field(default_factory=list)
    topic_pattern: str | None = None
    mode: Literal["once", "stream"] = "once"
    interval_s: float = 60.0
    proof_interval_s: float = 600.0
    max_messages: int = 1_000_000
    min_partitions: int = 1
    store: str | None = None
    broker: str | None = None
    fail_on_data_loss: bool = True
    commit_group: str | None = None
    safe_group: str | None = None
    compact_files: int = 8
    target_file_mb: int = 128
    work_path: str | None = None
    columns: Literal["compact", "all"] = "compact"
    verify: Literal["new", "all"] = "new"

    def __post_init__(self) -> None:
        """Raise ConfigError for values that do not fit."""
        self._check_topics()
        self._check_path()
        self.check_tables(self.path)
        self._check_store()
        for key, low in (
            ("interval_s", 0),
            ("proof_interval_s", 0),
            ("max_messages", 1),
            ("min_partitions", 1),
            ("compact_files", 0),
            ("target_file_mb", 1),
        ):
            value = getattr(self, key)
            if not low <= value < math.inf:
                raise ConfigError(f"{key} is {value}, give {low} or more")
        if self.compact_files == 1:
            raise ConfigError("compact_files is 1, give 2 or more, or 0 to compact nothing")
        for key in ("commit_group", "safe_group"):
            group = getattr(self, key)
            if group is not None and (fault := group_fault(group)):
                raise ConfigError(f"{key}: {fault}")
        if self.safe_group is not None and self.safe_group == self.commit_group:
            raise ConfigError(
                f"safe_group and commit_group are both {self.safe_group!r}: give two groups, "
                "because archived messages are safe to expire only when they are proved"
            )

    def _check_topics(self) -> None:
        if bool(self.topics) == (self.topic_pattern is not None):
            raise ConfigError(
                "one of topics and topic_pattern must be given, and not both: for example "
                'topics = ["orders"] or topic_pattern = "orders-.*"'
            )
        for topic in self.topics:
            if fault := topic_fault(topic):
                raise ConfigError(f"topics: {fault}")
        try:
            re.compile(self.topic_pattern or "")
        except re.error as error:
            raise ConfigError(
                f"topic_pattern is {self.topic_pattern!r}, no regular expression: {error}"
            ) from error

    def _check_path(self) -> None:
        if not self.path or set(self.path) & set(_PATTERN_SIGNS):
            raise ConfigError(
                f"path is {self.path!r}, give a directory that is mounted on the driver and all "
                "workers, or a URI of a file system that Spark reaches, such as "
                f"s3a://bucket/archive, without any of {_PATTERN_SIGNS}"
            )
        if is_uri(self.path):
            if self.path.lower().startswith("file:"):
                raise ConfigError(f"path is {self.path!r}, give it without file://")
            if not urlsplit(self.path).path.strip("/"):
                raise ConfigError(
                    f"path is {self.path!r}, give a directory in it, such as "
                    f"{self.path.rstrip('/')}/archive"
                )
            return
        if self.work_path is not None:
            raise ConfigError("work_path is for a path that is a URI; leave it out")
        if not Path(self.path).is_absolute():
            raise ConfigError(
                f"path is {self.path!r}, give it from the root on: workers have other directories"
            )

    def _check_store(self) -> None:
        if self.store is None:
            if self.broker is not None:
                raise ConfigError(
                    f"broker is {self.broker!r}, which is for a store; give store too"
                )
            return
        if self.broker is None:
            raise ConfigError(
                "store is given, so give broker too: the name of the broker whose store it is "
                '(brokerName of its configuration), for example broker = "broker-a"'
            )
        if self.mode == "stream":
            raise ConfigError(
                'mode is "stream", and a store is only read while no broker writes it: '
                'give mode = "once"'
            )
        for key in ("commit_group", "safe_group"):
            if getattr(self, key) is not None:
                raise ConfigError(f"{key} is for a cluster; leave it out with store")

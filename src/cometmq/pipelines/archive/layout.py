"""Name the parts of an archive's directory, and define its JSON files. docs/pipelines.md describes
both.

`data` is what other tools read. All other names begin with an underscore and belong to the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue

T = TypeVar("T")

_VERSION: Final = 1
# Spark names directories so. Of the characters that topic names may have, only this one needs
# escaping.
_PERCENT: Final = "%"
_ESCAPED: Final = "%25"


class Hour(NamedTuple):
    """A directory of data. `hour` looks like 2026-11-20T16 and is the UTC hour in which messages
    were stored.
    """

    topic: str
    hour: str

    @property
    def directory(self) -> Path:
        return Path(f"topic={self.topic.replace(_PERCENT, _ESCAPED)}", f"hour={self.hour}")

    @classmethod
    def of(cls, directory: Path) -> Hour:
        topic = directory.parent.name.removeprefix("topic=").replace(_ESCAPED, _PERCENT)
        return cls(topic, directory.name.removeprefix("hour="))


class Figures(msgspec.Struct, frozen=True, order=True):
    """The figures of some messages of a queue.

    checksum: the sum of the rows' 64-bit checksums, in hex digits. The checksums of two sets
    without a common row add up to that of both.
    """

    broker: str
    queue_id: int
    count: int
    first: int
    last: int
    checksum: str

    def plus(self, other: Figures) -> Figures:
        return Figures(
            self.broker,
            self.queue_id,
            self.count + other.count,
            min(self.first, other.first),
            max(self.last, other.last),
            f"{int(self.checksum, 16) + int(other.checksum, 16):x}",
        )


class DataFile(msgspec.Struct, frozen=True):
    """A file of the archive. `batch` is the number of the commit that added it; `queues` is empty
    until the file is proved.
    """

    name: str
    bytes: int
    batch: int
    queues: tuple[Figures, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    """The files that belong into a directory of data, and the log's figures for them.

    suspect: a proof has found something that does not fit. Every proof looks at the directory again
    until all fits.
    """

    topic: str
    hour: str
    files: tuple[DataFile, ...] = ()
    log: tuple[Figures, ...] = ()
    suspect: bool = False

    @property
    def key(self) -> Hour:
        return Hour(self.topic, self.hour)

    @property
    def is_proved(self) -> bool:
        return not self.suspect and all(file.queues for file in self.files)


class QueueState(msgspec.Struct, frozen=True):
    """Says that the archive holds the offsets from `first` to below `to`, and that those below
    `proved_to` are proved.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    to: int
    proved_to: int

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)


class State(msgspec.Struct, frozen=True):
    """The archive's state. `next_batch` is the number of the next commit that adds files."""

    version: int = _VERSION
    next_batch: int = 1
    queues: tuple[QueueState, ...] = ()

    def by_queue(self) -> dict[MessageQueue, QueueState]:
        return {state.queue: state for state in self.queues}


def in_order(queues: Mapping[MessageQueue, QueueState]) -> tuple[QueueState, ...]:
    return tuple(queues[queue] for queue in sorted(queues))


class SafeRange(msgspec.Struct, frozen=True):
    """A line of safe_to_expire.jsonl. `missing` of its offsets were gone before they could be
    archived.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    to: int
    count: int
    missing: int
    proved_at: str


class Layout:
    """Names the parts of the archive in the directory `path`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.data = self.path / "data"
        self.manifests = self.path / "_manifest"
        self.safe = self.path / "_proofs" / "safe_to_expire.jsonl"
        self.gaps = self.path / "_gaps"
        self.state = self.path / "_state.json"
        self.pending = self.path / "_pending.json"
        self.staging = self.path / "_staging"
        self.lock = self.path / "_lock"

    def data_of(self, hour: Hour) -> Path:
        return self.data / hour.directory

    def manifest_of(self, hour: Hour) -> Path:
        return self.manifests / hour.directory.with_suffix(".json")

    def load_state(self) -> State:
        """Load the state. Raise ConfigError for a file that is no state, or has an unknown
        version.
        """
        state = load(self.state, msgspec.json.Decoder(State).decode)
        if state is None:
            return State()
        if state.version != _VERSION:
            raise ConfigError(
                f"{self.state} is of version {state.version}, this is for {_VERSION}; "
                "use the CometMQ that wrote the archive, or a newer one"
            )
        return state

    def load_manifests(self) -> Iterator[Manifest]:
        """Yield the manifests ordered by topic and hour. Raise ConfigError for a file that is no
        manifest.
        """
        decoder = msgspec.json.Decoder(Manifest)
        for path in sorted(self.manifests.glob("topic=*/hour=*.json")):
            manifest = load(path, decoder.decode)
            if manifest is not None:
                yield manifest

    def load_safe(self) -> list[SafeRange]:
        """Return the ranges that may expire. Raise ConfigError for a file that is no such list."""
        return load(self.safe, msgspec.json.Decoder(SafeRange).decode_lines) or []


def load(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return what a file of the archive holds, None if there is no such file.

    Raise ConfigError for a file that `decode` does not take.
    """
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): restore it from a copy of the archive"
        ) from error


def session_for(spark: Any) -> Any:
    """Return a session of our own, whose times are UTC whatever the caller's session has.

    It writes Parquet's own timestamps: Spark's default (INT96) reaches other tools without a time
    zone.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return session


def archive_schema() -> Any:
    """Return the schema of messages, with the column `hour`."""
    # Imported here, because other parts of this package must work without Spark.
    from cometmq.spark.schema import spark_schema

    return spark_schema().add("hour", "string")


def read(spark: Any, path: str | Path) -> Any:
    """Return all messages of an archive: the columns of docs/spark.md, and `hour`."""
    layout = Layout(path)
    return spark.read.schema(archive_schema()).parquet(str(layout.data))


def read_files(spark: Any, base: Path, files: Sequence[Path], **options: str) -> Any:
    """Return the messages of some files below `base`, with the file's name in the column `file`."""
    from pyspark.sql import functions as F

    reader = spark.read.schema(archive_schema()).option("basePath", str(base))
    frame = reader.options(**options).parquet(*map(str, files))
    return frame.withColumn("file", F.col("_metadata.file_name"))

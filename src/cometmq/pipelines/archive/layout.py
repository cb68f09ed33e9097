"""Name the parts of an archive's directory, and define its JSON files. docs/pipelines.md describes
both.

`data` is what other tools read. All other names begin with an underscore and belong to the archive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.columns import with_derived
from cometmq.pipelines.archive.schemas import ALL, FIRST, Schema, check_readable
from cometmq.pipelines.hadoop_files import location
from cometmq.pipelines.locations import Location, contents, located
from cometmq.spark.gaps import Gap, decoded_gaps
from cometmq.spark.rows.columns import COLUMNS

T = TypeVar("T")

# Version 1 knows the first schema only, version 2 the first two, version 3 all. Since version 4 commits
# are numbered on this machine, too: a version that knows only `_pending.json` would pass over one.
VERSIONS: Final = (1, 2, 3, 4)
# The names that Spark gives directories. Only this one of the characters in topic names needs escaping.
_PERCENT: Final = "%"
_ESCAPED: Final = "%25"
# topic=…/hour=…/file
_DATA_DEPTH: Final = 3
# More paths in one query make planning slow, and are rare because an archive is compacted.
_MOST_PATHS: Final = 10_000


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
    def of(cls, directory: PurePath | Location) -> Hour:
        topic = directory.parent.name.removeprefix("topic=").replace(_ESCAPED, _PERCENT)
        return cls(topic, directory.name.removeprefix("hour="))


class Figures(msgspec.Struct, frozen=True, order=True):
    """The figures of some messages of a queue.

    checksum: the sum of the rows' 64-bit checksums, in hex digits. The checksums of two sets
    without a common row add up to that of both. form: the number of the schema whose columns it covers.
    """

    broker: str
    queue_id: int
    count: int
    first: int
    last: int
    checksum: str
    form: int = ALL

    def plus(self, other: Figures) -> Figures:
        return Figures(
            self.broker,
            self.queue_id,
            self.count + other.count,
            min(self.first, other.first),
            max(self.last, other.last),
            f"{int(self.checksum, 16) + int(other.checksum, 16):x}",
            self.form,
        )


class DataFile(msgspec.Struct, frozen=True):
    """A file of the archive. `batch` is the number of the commit that added it; `queues` is empty
    until the file is proved. `form` is the number of its schema.
    """

    name: str
    bytes: int
    batch: int
    queues: tuple[Figures, ...] = ()
    form: int = ALL


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
    `proved_to` are proved. `mark` is an archived message, to recognise a topic that was created
    again (`cometmq.spark.live.identity`); archives of earlier versions have none.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    to: int
    proved_to: int
    mark: tuple[int, int] | None = None

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)


class State(msgspec.Struct, frozen=True):
    """The archive's state. `next_batch` is the number of the next commit that adds files; those are
    of the schema `form`. Everything that is not proved yet was archived in this schema. `commits`
    counts all commits. `schemas` are those that the archive has had beside the first two.
    """

    version: int = 1
    next_batch: int = 1
    queues: tuple[QueueState, ...] = ()
    form: int = ALL
    commits: int = 0
    schemas: tuple[Schema, ...] = ()

    def all_schemas(self) -> dict[int, Schema]:
        return FIRST | {schema.number: schema for schema in self.schemas}

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

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)


class Layout:
    """Names the parts of the archive in the directory `path`.

    commits: the last commits, of which the latest may have to be carried out still. pending: a
    commit of an earlier version, which has to be carried out still.
    """

    def __init__(self, path: str | os.PathLike[str] | Location) -> None:
        self.path = located(path)
        self.data = self.path / "data"
        self.manifests = self.path / "_manifest"
        self.safe = self.path / "_proofs" / "safe_to_expire.jsonl"
        self.gaps = self.path / "_gaps"
        self.state = self.path / "_state.json"
        self.pending = self.path / "_pending.json"
        self.commits = self.path / "_commits"
        self.staging = self.path / "_staging"
        self.tables = self.path / "_tables"
        self.lock = self.path / "_lock"

    def data_of(self, hour: Hour) -> Location:
        return self.data / hour.directory

    def manifest_of(self, hour: Hour) -> Location:
        return self.manifests / hour.directory.with_suffix(".json")

    def load_state(self) -> State:
        """Load the state. Raise ConfigError for a file that is no state, or has an unknown
        version.
        """
        state = load(self.state, msgspec.json.Decoder(State).decode)
        if state is None:
            return State()
        if state.version not in VERSIONS:
            raise ConfigError(
                f"{self.state} is of version {state.version}, this is for {VERSIONS[-1]} and older; "
                "use the CometMQ that wrote the archive, or a newer one"
            )
        return state

    def load_manifests(self, since_hour: str = "") -> Iterator[Manifest]:
        """Yield the manifests ordered by topic and hour, those of an hour and later if one is given.
        Raise ConfigError for a file that is no manifest.
        """
        decoder = msgspec.json.Decoder(Manifest)
        names = _names(self.manifests, "topic=*/hour=*.json")
        paths = [
            self.manifests / name
            for name in names
            if PurePath(name).stem.removeprefix("hour=") >= since_hour
        ]
        for path, content in zip(paths, contents(paths), strict=True):
            yield decoded(path, content, decoder.decode)

    def load_safe(self) -> list[SafeRange]:
        """Return the ranges that may expire. Raise ConfigError for a file that is no such list."""
        return load(self.safe, msgspec.json.Decoder(SafeRange).decode_lines) or []

    def gap_files(self) -> list[Location]:
        names = _names(self.gaps, "*.json")
        return [self.gaps / name for name in names]

    def load_gaps(self) -> tuple[Gap, ...]:
        """Return the offsets that were gone before they could be archived. Raise
        msgspec.DecodeError.
        """
        files = self.gap_files()
        while True:
            try:
                found = contents(files)
            except FileNotFoundError:
                found = None
            # An archive that is at work may fold its files while they are listed and read.
            before, files = files, self.gap_files()
            if files == before:
                break
        if found is None:
            raise FileNotFoundError(f"a file in {self.gaps} is listed, but is not there")
        return decoded_gaps(found)

    def data_files(self) -> dict[Hour, dict[str, int]]:
        """Return the bytes of the files that readers take for data, by hour and name."""
        found: dict[Hour, dict[str, int]] = {}
        for name, size in self.data.sizes().items():
            path = PurePath(name)
            if path.match("topic=*/hour=*/*") and len(path.parts) == _DATA_DEPTH:
                found.setdefault(Hour.of(path.parent), {})[path.name] = size
        return found


def _names(directory: Location, pattern: str) -> list[str]:
    """Return the files below a directory whose names from there on match a pattern, in order."""
    return [name for name in directory.sizes() if PurePath(name).match(pattern)]


def load(path: Location, decode: Callable[[bytes], T]) -> T | None:
    """Return the contents of a file of the archive, None if there is no such file.

    Raise ConfigError for a file that `decode` does not take.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decoded(path, content, decode)


def decoded(path: Location, content: bytes, decode: Callable[[bytes], T]) -> T:
    """Return the contents of a file of the archive. Raise ConfigError for one that `decode` does
    not take.
    """
    try:
        return decode(content)
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
    # Batches of a store are ranges of offsets, which its source finds by filters.
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return session


def _with_hour(columns: Mapping[str, str]) -> str:
    """Return Spark's schema of files with these columns, and of `hour`, which their directory has."""
    return ", ".join(f"{name} {kind}" for name, kind in {**columns, "hour": "string"}.items())


def layout_of(spark: Any, path: str | os.PathLike[str] | Location, key: str = "path") -> Layout:
    """Return the layout of the archive at a path of this machine or a URI. Raise ConfigError."""
    return Layout(location(spark, path, key))


def read(spark: Any, path: str | os.PathLike[str] | Location) -> Any:
    """Return all messages of an archive: the columns of docs/spark.md, and `hour`.

    Columns that files leave out are computed, if the query uses them. On remote file systems the
    files are those that the manifests name now, because a compaction there has old and new files
    side by side for a moment.
    """
    layout = layout_of(spark, path)
    check_readable(layout.path, layout.load_state().all_schemas().values())
    reader = spark.read.schema(_with_hour(COLUMNS))
    files = []
    if layout.path.local is None:
        files = [
            str(layout.data_of(one.key) / file.name)
            for one in layout.load_manifests()
            for file in one.files
        ]
    if 0 < len(files) <= _MOST_PATHS:
        frame = reader.option("basePath", str(layout.data)).parquet(*files)
    else:
        frame = reader.parquet(str(layout.data))
    return with_derived(frame, COLUMNS, "hour")


def read_files(
    spark: Any, base: Location, files: Sequence[Location], schema: Schema, **options: str
) -> Any:
    """Return the messages of some files of a schema below `base` as they stand there, with the file's
    name in the column `file`. Columns that a file does not have are null.
    """
    from pyspark.sql import functions as F

    reader = spark.read.schema(_with_hour(schema.columns)).option("basePath", str(base))
    frame = reader.options(**options).parquet(*map(str, files))
    return frame.withColumn("file", F.col("_metadata.file_name"))

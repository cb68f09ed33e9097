"""What an audit needs to know of an archive: its messages, and what it says of itself.

The layout is that of the pipeline `archive`, see docs/pipelines.md. A directory of Parquet files with
the columns of the sources will do as well, but says nothing of files that are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.message_logs import schema_of
from cometmq.spark.gaps import Gap

DATA: Final = "data"
_MANIFESTS: Final = "_manifest"
_STATE: Final = "_state.json"
_GAPS: Final = "_gaps"


class _QueueState(msgspec.Struct):
    topic: str
    broker: str
    queue_id: int
    first: int
    to: int


class _State(msgspec.Struct):
    queues: list[_QueueState] = []


class _Span(msgspec.Struct):
    broker: str
    queue_id: int
    first: int
    last: int


class _File(msgspec.Struct):
    name: str
    queues: list[_Span] = []


class _Manifest(msgspec.Struct):
    topic: str
    hour: str
    files: list[_File] = []


class _Gap(msgspec.Struct):
    topic: str | None
    broker: str | None
    queue_id: int | None
    start: int
    end: int
    cause: str


@dataclass
class ArchiveNotes:
    """What an archive says of itself.

    offsets: of each queue the first offset that it was to archive, and the one below which it has.
    gaps: offsets that it did not get, and why.
    missing: files that it has written and that are not there, as the gaps they leave; those of which
        it does not know the offsets are in `lost_files` alone.
    known_files: names of the files that belong to it; None for a directory of files.
    """

    offsets: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    missing: list[tuple[Gap, str]] = field(default_factory=list)
    lost_files: list[str] = field(default_factory=list)
    known_files: list[str] | None = None


def archive_notes(path: str, topics: Collection[str]) -> ArchiveNotes:
    """Raises ConfigError for a path where no archive lies."""
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(
            f"archive is {path!r}, which is no directory here; give the path of the archive"
        )
    notes = ArchiveNotes()
    if not (root / DATA).is_dir():
        return notes
    state = _read(root / _STATE, _State) if (root / _STATE).exists() else _State()
    for queue in state.queues:
        if queue.topic in topics:
            place = MessageQueue(queue.topic, queue.broker, queue.queue_id)
            notes.offsets[place] = (queue.first, queue.to)
    for file in sorted((root / _GAPS).glob("*.json")):
        gap = _read(file, _Gap)
        if gap.topic in topics:
            notes.gaps.append(
                Gap(gap.topic, gap.broker, gap.queue_id, gap.start, gap.end, gap.cause)
            )
    notes.known_files = []
    for manifest, directory in _manifests(root, topics):
        for entry in manifest.files:
            notes.known_files.append(f"{directory}/{entry.name}")
            if not (root / DATA / directory / entry.name).exists():
                _note_missing(notes, manifest, entry, f"{directory}/{entry.name}")
    return notes


def archived(spark: Any, path: str, topics: Collection[str], columns: Collection[str]) -> Any:
    """The archive's messages with these columns, and `file`, the end of the path of theirs."""
    from pyspark.sql import functions as f

    data = Path(path) / DATA
    place = str(data if data.is_dir() else path)
    reader = spark.read.schema(schema_of(columns) + ", hour string")
    # Of a file in ".../data/topic=orders/hour=2026-11-20T16/b1.parquet" the last three names.
    name = f.regexp_extract(f.input_file_name(), r"([^/]+/[^/]+/[^/]+)$", 1)
    frame = reader.parquet(place)
    # Spark writes a path as a URI, in which what the directory's name escapes is escaped again.
    return (
        frame.where(f.col("topic").isin(sorted(topics)))
        .withColumn("file", f.regexp_replace(name, "%25", "%"))
        .drop("hour")
    )


def _manifests(root: Path, topics: Collection[str]) -> Iterator[tuple[_Manifest, str]]:
    """Each manifest of these topics, and the directory of its files."""
    for directory in sorted((root / _MANIFESTS).glob("topic=*")):
        if unquote(directory.name.removeprefix("topic=")) in topics:
            for file in sorted(directory.glob("hour=*.json")):
                yield _read(file, _Manifest), f"{directory.name}/{file.stem}"


def _note_missing(notes: ArchiveNotes, manifest: _Manifest, entry: _File, name: str) -> None:
    notes.lost_files.append(name)
    for span in entry.queues:
        gap = Gap(
            manifest.topic, span.broker, span.queue_id, span.first, span.last + 1, manifest.hour
        )
        notes.missing.append((gap, name))


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"the archive's file {path} cannot be read: {error}; see that archive names an archive"
        ) from error

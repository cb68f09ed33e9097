"""Fourth pass of a rebuild: compare the built files with those of the store, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cometmq.pipelines.rebuild.index import last_offset
from cometmq.pipelines.rebuild.scan import QueueKey
from cometmq.pipelines.rebuild.work import EXTENSIONS, INDEX, QUEUES, Work
from cometmq.store.reading.layout import PLACEHOLDER_SIZE
from cometmq.store.reading.units import UNIT_DTYPE, is_message

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
# The store has no such file.
NEW: Final = "new"
# The log has no message of this queue, so the rebuild takes it as the store has it.
KEPT: Final = "kept"
# The store has it, but nothing in the log accounts for it.
LEFT_OUT: Final = "left out"

_CHUNK_BYTES: Final = 4 * 1024 * 1024


class BuiltQueue(msgspec.Struct, frozen=True):
    """A consume queue that was built. Offsets are queue offsets; `log_bytes` is the size of its
    records in the log.
    """

    topic: str
    queue_id: int
    outcome: str
    first_offset: int
    end_offset: int
    message_count: int
    log_bytes: int
    file_count: int
    note: str = ""


class BuiltIndexFile(msgspec.Struct, frozen=True):
    """An index file that was built."""

    name: str
    outcome: str
    note: str = ""


def compare_queue(work: Work, key: QueueKey, *, kept: bool) -> BuiltQueue:
    """Compare a queue in the target with the store's. `kept`: the rebuild took it from the
    store.
    """
    topic, queue_id = key
    place = Path(topic, str(queue_id))
    built = _files(work.target / QUEUES / place)
    stored = _files(work.store_directory(QUEUES) / place)
    note = ""
    first = end = messages = size = 0
    for base in sorted(built.keys() | stored.keys()):
        ours = _units(built.get(base), stored.get(base))
        if base in built:
            found = np.flatnonzero(is_message(ours))
            if len(found):
                unit = base // UNIT_DTYPE.itemsize
                first = first if messages else unit + int(found[0])
                end = unit + int(found[-1]) + 1
                messages += len(found)
                size += int(ours["size"][found].astype(np.int64).sum())
        if stored and not kept and not note:
            note = _difference(work, base, ours, _units(stored.get(base), built.get(base)))
    if stored and not kept and not note and not _same_files(work, EXTENSIONS, place):
        note = "its extension (consumequeue_ext) is another"
    outcome = KEPT if kept else DIFFERENT if note else EQUAL if stored else NEW
    return BuiltQueue(topic, queue_id, outcome, first, end, messages, size, len(built), note)


def compare_index_file(work: Work, name: str) -> BuiltIndexFile:
    built, stored = work.target / INDEX / name, work.store_directory(INDEX) / name
    if not stored.is_file():
        return BuiltIndexFile(name, NEW)
    at = _first_difference(built, stored)
    if at is None:
        return BuiltIndexFile(name, EQUAL)
    return BuiltIndexFile(name, DIFFERENT, f"from byte {at:,} on")


def index_left_out(work: Work, names: Sequence[str]) -> list[BuiltIndexFile]:
    """Return the store's index files that hold messages of the log and have none of these names."""
    stored = work.store_directory(INDEX)
    return [
        BuiltIndexFile(path.name, LEFT_OUT, "its messages are in files of other names")
        for path in sorted(stored.iterdir() if stored.is_dir() else ())
        if path.name.isdecimal() and path.name not in names and last_offset(path) >= work.min_offset
    ]


def _files(directory: Path) -> dict[int, Path]:
    if not directory.is_dir():
        return {}
    return {int(path.name): path for path in sorted(directory.iterdir()) if path.name.isdecimal()}


def _units(path: Path | None, other: Path | None) -> Any:
    """Return the units of a file; zeros where it is missing or shorter than the other file."""
    sizes = [each.stat().st_size // UNIT_DTYPE.itemsize for each in (path, other) if each]
    units = np.zeros(max(sizes), UNIT_DTYPE)
    if path is not None:
        found = np.fromfile(path, UNIT_DTYPE)
        units[: len(found)] = found
    return units


def _difference(work: Work, base: int, ours: Any, theirs: Any) -> str:
    """Describe the first unit that differs, or return "" if none does.

    The store may have units of messages that have left the log; the built files have none for them.
    """
    in_log = theirs["physical_offset"] >= work.min_offset
    expired = (theirs["size"] > 0) & ((theirs["size"] == PLACEHOLDER_SIZE) | ~in_log)
    nothing = (ours["size"] == 0) | (ours["size"] == PLACEHOLDER_SIZE)
    wrong = np.flatnonzero((ours != theirs) & ~(expired & nothing))
    if not len(wrong):
        return ""
    at = int(wrong[0])
    offset = base // UNIT_DTYPE.itemsize + at
    return f"{len(wrong):,} units from queue offset {offset:,} on: {theirs[at]}, not {ours[at]}"


def _same_files(work: Work, name: str, place: Path) -> bool:
    ours, theirs = _files(work.target / name / place), _files(work.store_directory(name) / place)
    return ours.keys() == theirs.keys() and all(
        _first_difference(path, theirs[base]) is None for base, path in ours.items()
    )


def _first_difference(one: Path, other: Path) -> int | None:
    at = 0
    with one.open("rb") as first, other.open("rb") as second:
        while True:
            ours, theirs = first.read(_CHUNK_BYTES), second.read(_CHUNK_BYTES)
            if ours != theirs:
                pairs = zip(ours, theirs, strict=False)
                return at + next((i for i, (a, b) in enumerate(pairs) if a != b), len(ours))
            if not ours:
                return None
            at += len(ours)

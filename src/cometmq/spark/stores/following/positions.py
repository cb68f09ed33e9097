"""Remember the position that a stream has reached in a log, and marks of records that it has read.

An offset of the stream is {"commitLog": 41943040, "marks": [[41942800, 240, "5f2c…"]]}: the position in the
commit log at which the next batch begins, and the place, size and digest of records in front of it, the
newest first. If another record is at the place of a mark, the log was cut behind an older mark and written
again. A broker does that if it recovered without its last messages, and so does a slave that became master.

The offset of a batch that only leaves out deleted or damaged records has `leftOut`, the batch's beginning.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from cometmq.protocol.messages.record_layout import FIELDS
from cometmq.spark.stores.following.log_walk import file_at, head_at, opened
from cometmq.store.reading.files import LogFile

# More marks would say little more, since the distances between marks grow.
MOST_MARKS: Final = 8
# At most so many bytes of a record are compared: its offsets, times and checksum are in the first 88 bytes.
_COMPARED_BYTES: Final = 1024
_DIGEST_BYTES: Final = 16
assert all(at < _COMPARED_BYTES for at, _ in FIELDS.values())


class Mark(NamedTuple):
    """A record that the stream has read."""

    position: int
    size: int
    digest: str

    @property
    def end(self) -> int:
        return self.position + self.size


# An offset as Spark's checkpoint has it.
Position = dict[str, Any]


class Seen(Enum):
    """The result of comparing the log with a mark."""

    SAME = "same"
    OTHER = "another record"
    NOTHING = "no record"
    UNKNOWN = "deleted by retention"


def position_of(at: int, marks: Sequence[Mark], left_out: int | None = None) -> Position:
    found: Position = {"commitLog": at, "marks": [list(mark) for mark in marks]}
    if left_out is not None:
        found["leftOut"] = left_out
    return found


def marks_of(offset: Position) -> list[Mark]:
    return [Mark(int(at), int(size), str(digest)) for at, size, digest in offset.get("marks", [])]


def with_mark(marks: Sequence[Mark], new: Mark | None) -> list[Mark]:
    """Return the marks with a new one in front. If they are too many, drop the mark with the nearest
    neighbours, relative to their distance from the newest mark.
    """
    kept = [new, *marks] if new is not None else list(marks)
    while len(kept) > MOST_MARKS:
        newest = kept[0].position

        def crowded(at: int, newest: int = newest) -> float:
            older, younger = kept[at + 1].position, kept[at - 1].position
            return (younger - older) / max(1, newest - older)

        del kept[min(range(1, len(kept) - 1), key=crowded)]
    return kept


def mark_at(files: Sequence[LogFile], position: int, size: int) -> Mark | None:
    """Return the mark of a record in the log, None if the log has no bytes there."""
    file = file_at(files, position)
    if file is None:
        return None
    length = min(size, _COMPARED_BYTES)
    try:
        with opened(file) as fd:
            data = os.pread(fd, length, position - file.base)
    except FileNotFoundError:
        return None
    if len(data) < length:
        return None
    return Mark(position, size, hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest())


def seen(files: Sequence[LogFile], mark: Mark) -> Seen:
    """Compare the log with a mark."""
    if not files or mark.position < files[0].base:
        return Seen.UNKNOWN if files else Seen.NOTHING
    if mark_at(files, mark.position, mark.size) == mark:
        return Seen.SAME
    file = file_at(files, mark.position)
    if file is None:
        return Seen.NOTHING
    try:
        size, is_record = head_at(file, mark.position)
    except FileNotFoundError:
        return Seen.NOTHING
    if is_record:
        return Seen.OTHER
    # Other bytes belong to another record, which begins elsewhere. A copy may still fill zeros.
    return Seen.OTHER if size else Seen.NOTHING

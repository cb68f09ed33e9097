"""Walk along the records of a log that may still grow, be copied, or be cut while it is read.

No byte is trusted because of its place. A record counts once its size, magic and own offset are right, its
lengths add up to its size, and its body matches its checksum. So the walk ends in front of zeros, of an
unfinished record, and of older bytes in a reused file; the next walk begins there.

Files are read by `pread`, not mapped: if a mapped file is cut, or deleted on a file server, the process dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from cometmq.protocol.messages.record import (
    MAGIC,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
)
from cometmq.protocol.messages.record_columns import RecordColumns, read_columns
from cometmq.protocol.messages.record_layout import (
    HEAD,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    record_struct,
)
from cometmq.spark.stores.following.topics import ChosenTopics
from cometmq.store.reading.files import LogFile
from cometmq.store.reading.records import crc_holds, up_to_first

WINDOW_BYTES: Final = 4 * 1024 * 1024
# The distance between the noted places at which tasks may begin.
STATION_BYTES: Final = 16 * 1024
# No broker takes a message of this size, so a larger size is damage.
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
_OWN: Final = record_struct("physical_offset")
_HEAD_BYTES: Final = PHYSICAL_OFFSET_AT + _OWN.size
_SCAN_BYTES: Final = 16 * 1024 * 1024


class Stop(Enum):
    """Names the reason why a walk ended: a limit; the end of the written log, if no later file exists; or a
    place without a record in front of later files.
    """

    LIMIT = "limit"
    END = "end"
    HOLE = "hole"


@dataclass
class Walked:
    """The result of a walk. The next walk begins at `end`; `rows` counts the wanted records if they are limited.

    runs: for each file, the first and the last position, and places between them at which a task may begin.
    last: the first byte and the size of the last record; None if there was none.
    """

    end: int
    rows: int = 0
    runs: list[tuple[LogFile, list[int]]] = field(default_factory=list)
    last: tuple[int, int] | None = None
    stop: Stop = Stop.END


@contextmanager
def opened(file: LogFile) -> Iterator[int]:
    """Open a file of the log to read it. Raise FileNotFoundError if retention has deleted it."""
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def file_at(files: Sequence[LogFile], position: int) -> LogFile | None:
    return next((file for file in files if file.base <= position < file.end), None)


def head_at(file: LogFile, position: int) -> tuple[int, bool]:
    """Return the size of the record that begins at a position, and whether its head is that of a record."""
    with opened(file) as fd:
        head = os.pread(fd, _HEAD_BYTES, position - file.base)
    return _size_of(head, position)


def windows(fd: int, file: LogFile, start: int, end: int) -> Iterator[tuple[bytes, RecordColumns]]:
    """Yield the records of a file from `start` on, in windows that begin with a record. The columns have
    places in the window. Stop at the first place without a record.
    """
    while start < end:
        length = min(WINDOW_BYTES, end - start)
        window = os.pread(fd, length, start - file.base)
        size, is_record = _size_of(window, start)
        if is_record and len(window) < size <= end - start:
            window = os.pread(fd, size, start - file.base)
        columns = read_columns(window, 0, len(window), start)
        if not len(columns):
            return
        yield window, columns
        start += int(columns.ends[-1])


def walk(
    files: Sequence[LogFile],
    start: int,
    topics: ChosenTopics,
    *,
    until: int,
    max_bytes: int | None = None,
    max_rows: int | None = None,
) -> Walked:
    """Walk from a record on, up to the position `until`, `max_rows` wanted records, or about `max_bytes`.

    The limits admit at least one record. The walk skips a blank record at the end of a file.
    """
    walked = Walked(start)
    stop_at = until if max_bytes is None else min(until, start + max_bytes)
    while True:
        if walked.end >= stop_at or (max_rows is not None and walked.rows >= max_rows):
            walked.stop = Stop.LIMIT
            return walked
        file = file_at(files, walked.end)
        is_followed = file is not None and any(other.base == file.end for other in files)
        try:
            if file is not None and _walk_file(
                file, walked, topics, stop_at, max_rows, is_followed=is_followed
            ):
                continue
        except FileNotFoundError:
            pass  # deleted since it was listed: the next look does not list it
        if walked.stop is not Stop.LIMIT:
            later = any(other.base > walked.end for other in files)
            walked.stop = Stop.HOLE if later else Stop.END
        return walked


def _walk_file(
    file: LogFile,
    walked: Walked,
    topics: ChosenTopics,
    stop_at: int,
    max_rows: int | None,
    *,
    is_followed: bool,
) -> bool:
    """Walk on in a file, up to a limit or to the first place without a whole record. Return whether the
    walk goes on in the next file.
    """
    stations: list[int] = []
    walked.stop = Stop.END
    with opened(file) as fd:
        for window, found in windows(fd, file, walked.end, file.end):
            view = memoryview(window)
            columns = up_to_first(found, found.fit & crc_holds(view, found))
            if len(columns) == len(found):
                columns = _without_unfinished(fd, file, view, columns, walked.end)
            if not len(columns):
                break
            cut = _limited(columns, view, topics, walked, stop_at, max_rows)
            base = walked.end
            size = int(cut.ends[-1] - cut.starts[-1])
            walked.last = base + int(cut.starts[-1]), size
            at = np.searchsorted(cut.starts, np.arange(0, int(cut.ends[-1]), STATION_BYTES))
            at = np.unique(at[at < len(cut)])
            stations += (cut.starts[at] + base).tolist()
            walked.end = base + int(cut.ends[-1])
            if len(cut) < len(columns) or walked.end >= stop_at or walked.rows == max_rows:
                walked.stop = Stop.LIMIT
                break
            if len(columns) < len(found):
                break
        if stations:
            walked.runs.append((file, [*stations, walked.end]))
        if walked.stop is not Stop.LIMIT and _is_full(
            fd, file, walked.end, is_followed=is_followed
        ):
            walked.end = file.end
            return True
    return False


def _limited(
    columns: RecordColumns,
    view: memoryview,
    topics: ChosenTopics,
    walked: Walked,
    stop_at: int,
    max_rows: int | None,
) -> RecordColumns:
    """Return the records in front of a limit, at least one, and count the wanted records."""
    count = min(len(columns), int(np.searchsorted(columns.starts, stop_at - walked.end)))
    columns = columns.select(slice(max(1, count)))
    if max_rows is None:
        return columns
    counts = np.cumsum(topics.among(view, columns))
    left = max_rows - walked.rows
    if int(counts[-1]) > left:
        columns = columns.select(slice(int(np.searchsorted(counts, left)) + 1))
    walked.rows += min(left, int(counts[-1]))
    return columns


def _without_unfinished(
    fd: int, file: LogFile, view: memoryview, columns: RecordColumns, base: int
) -> RecordColumns:
    """Leave out the last record if its properties end with a zero and nothing follows it, or its topic if
    it has no properties.

    No checksum covers either. Only their end can be missing, because they are written forwards.
    """
    if not len(columns):
        return columns
    topic_end, end = int(columns.topic_ends[-1]), int(columns.ends[-1])
    if view[(topic_end if end == topic_end + 2 else end) - 1]:
        return columns
    head = os.pread(fd, _HEAD_BYTES, base + end - file.base)
    follows = _size_of(head, base + end)[1] or _is_full(fd, file, base + end, is_followed=False)
    return columns if follows else columns.select(slice(-1))


def _is_full(fd: int, file: LogFile, position: int, *, is_followed: bool) -> bool:
    """Return whether no more records fit into the file. A blank record fills the rest. Without a blank record,
    a partial copy looks the same, unless the next file begins at its end.
    """
    rest = file.end - position
    head = os.pread(fd, HEAD.size, position - file.base)
    if len(head) == HEAD.size:
        size, magic = HEAD.unpack(head)
        if magic == MAGIC_BLANK and size == rest:
            return True
    return rest < MIN_RECORD_SIZE and is_followed


def _size_of(head: bytes, position: int) -> tuple[int, bool]:
    if len(head) < _HEAD_BYTES:
        return 0, False
    size, magic = HEAD.unpack_from(head, 0)
    (own,) = _OWN.unpack_from(head, PHYSICAL_OFFSET_AT)
    fits = MIN_RECORD_SIZE <= size <= MAX_RECORD_BYTES
    return size, fits and magic in (MAGIC_V1, MAGIC_V2) and own == position


def record_behind(files: Sequence[LogFile], position: int, limit: int) -> int | None:
    """Return the position of the next record from a position on, below `limit`; None if there is none. A
    record's own offset must equal its position.
    """
    for file in files:
        if file.end <= position or file.base >= limit:
            continue
        try:
            with opened(file) as fd:
                found = _record_in(fd, file, max(position, file.base), min(limit, file.end))
        except FileNotFoundError:
            continue
        if found is not None:
            return found
    return None


def _record_in(fd: int, file: LogFile, start: int, end: int) -> int | None:
    while start < end:
        start = _written(fd, file, start)
        piece = os.pread(fd, _SCAN_BYTES, start - file.base)
        if len(piece) < _HEAD_BYTES:
            return None
        for found in MAGIC.finditer(piece):
            place = found.start() - MAGIC_AT
            if place < 0 or start + place >= end:
                continue
            if _size_of(piece[place : place + _HEAD_BYTES], start + place)[1]:
                return start + place
        if len(piece) < _SCAN_BYTES:
            return None
        start += len(piece) - _HEAD_BYTES
    return None


def _written(fd: int, file: LogFile, start: int) -> int:
    """Return the first position with data from `start` on, so that unwritten parts are not read."""
    try:
        return max(start, file.base + os.lseek(fd, start - file.base, os.SEEK_DATA))
    except OSError:
        # There is only a hole up to the end, or the file system does not report holes.
        return start


def written_end(file: LogFile) -> int:
    """Estimate the end of the written part of a file. Bodies of zeros can make the estimate too low."""
    page = 4096
    try:
        with opened(file) as fd:
            low, high = 0, -(-file.size // page)
            while low < high:
                middle = (low + high) // 2
                if any(os.pread(fd, page, middle * page)):
                    low = middle + 1
                else:
                    high = middle
    except FileNotFoundError:
        return file.base
    return min(file.end, file.base + low * page)

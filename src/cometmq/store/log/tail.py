"""Find the last record of a log, and the blank that may follow it."""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import HEAD, HEAD_SIZE, record_struct
from cometmq.store.log.commit_log import CommitLog

_GLANCE: Final = record_struct("size", "magic", "physical_offset")


class LogTail(NamedTuple):
    """Names the last record of a log by its offset; -1 if there is none. `blank` is the offset of
    the blank behind it that ends its file; -1 if none does.
    """

    record: int
    blank: int


def find_tail(log: CommitLog, known: int = -1) -> LogTail:
    """Find the end of a log in the store's thread.

    Begins at `known`, the offset of a record near the end, so that few heads have to be read;
    without it reads the newest files from their beginning.
    """
    if known >= log.min_offset and (tail := _walk(log, known)) is not None:
        return tail
    for file in reversed(log.files.files):
        if file.base < log.end and (tail := _walk(log, file.base)) is not None:
            return tail
    return LogTail(-1, -1)


def _walk(log: CommitLog, start: int) -> LogTail | None:
    """Follow the records from `start` on, through all files; None if no record begins there."""
    last = blank = -1
    at = start
    while at < log.end:
        base, end, view = log.window(at)
        if base < 0:
            break
        while at + _GLANCE.size <= end:
            size, magic, place = _GLANCE.unpack_from(view, at - base)
            if (
                magic not in (MAGIC_V1, MAGIC_V2)
                or place != at
                or not MIN_RECORD_SIZE <= size <= end - at
            ):
                break
            last, blank = at, -1
            at += size
        if at + HEAD_SIZE <= end and HEAD.unpack_from(view, at - base)[1] == MAGIC_BLANK:
            if last >= 0:
                blank = at
        elif at < end:
            # Damage, which the next reader of the record reports.
            break
        at = log.next_file_start(base)
    return LogTail(last, blank) if last >= 0 else None

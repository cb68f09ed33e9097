"""A quick look at every record of a stretch of the commit log: its flags, and what it came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import structlog

from cometmq.protocol.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.record_layout import (
    HOSTS_V6,
    PREPARED_TRANSACTION_OFFSET_AT,
    record_struct,
    wider_by,
)
from cometmq.store.commit_log import CommitLog
from cometmq.store.scan import find_record_in

log = structlog.get_logger(__name__)

_GLANCE: Final = record_struct(
    "size", "magic", "physical_offset", "sys_flag", "prepared_transaction_offset"
)
_PREPARED: Final = record_struct("prepared_transaction_offset")


class Glance(NamedTuple):
    """`origin` is the commit-log offset of the record that this one was made from, else 0; negative
    in a delivery note.
    """

    offset: int
    sys_flag: int
    origin: int


def glances(commit_log: CommitLog, start: int) -> Iterator[Glance]:
    """The records from `start` on, which must be the offset of one or of a file."""
    offset = max(start, commit_log.min_offset)
    while offset < commit_log.end:
        base, end, view = commit_log.window(offset)
        if end < 0:
            return
        position, limit = offset - base, end - base
        while position + _GLANCE.size <= limit:
            size, magic, place, sys_flag, origin = _GLANCE.unpack_from(view, position)
            if magic == MAGIC_BLANK:
                break
            if (
                magic not in (MAGIC_V1, MAGIC_V2)
                or size < MIN_RECORD_SIZE
                or place != base + position
            ):
                file = commit_log.files.find(base)
                following = find_record_in(file, position + 1) if file is not None else None
                log.error(
                    "a record of the log is damaged, it is passed over",
                    offset=base + position,
                    next_record=None if following is None else following.offset,
                )
                if following is None:
                    break
                position = following.offset - base
                continue
            if sys_flag & HOSTS_V6:
                at = position + PREPARED_TRANSACTION_OFFSET_AT + wider_by(sys_flag)
                (origin,) = _PREPARED.unpack_from(view, at)
            yield Glance(base + position, sys_flag, origin)
            position += size
        offset = commit_log.next_file_start(base)

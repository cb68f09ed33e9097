"""Follow the commit log: read its records from a position on, each once and in their order.

So the broker's services learn after a start what was stored before it (delayed messages,
transactions, redrives). `QueueFiller` follows the log for consume queues whose records reach the
log before their units. Recovery and the index read the log in ways of their own; decision 92 says
why.
"""

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
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.scan import LogScan, find_record_in
from cometmq.store.queues.dispatch import Dispatcher

log = structlog.get_logger(__name__)

_HEAD: Final = record_struct(
    "size", "magic", "physical_offset", "sys_flag", "prepared_transaction_offset"
)
_ORIGIN: Final = record_struct("prepared_transaction_offset")


class Glance(NamedTuple):
    """Shows what a follower sees of a record. `origin`, the prepared transaction offset, is the
    commit-log offset of the record that this one was made from, else 0; it is negative in a
    delivery note.
    """

    offset: int
    sys_flag: int
    origin: int


class LogFollower:
    """Reads the log from `position` on, which must be the offset of a record or of a file.

    Iterate to get the records that are readable then; iterate again later to go on with new ones.
    `position` moves behind a record when the next one is asked for. So if an error ends a loop, the
    next loop begins with the same record again. Bytes that are no record are passed over, with a
    line in the broker's log. For the thread that owns the store.
    """

    __slots__ = ("_log", "position")

    def __init__(self, commit_log: CommitLog, position: int) -> None:
        self._log = commit_log
        self.position = position

    def __iter__(self) -> Iterator[Glance]:
        log = self._log
        readable_end = log.readable_end
        while True:
            # Retention may have removed what was still to be read.
            offset = self.position = max(self.position, log.min_offset)
            base, end, view = log.window(offset)
            if base < 0 or offset >= readable_end:
                return
            limit = min(end, readable_end) - base
            place = offset - base
            while place + _HEAD.size <= limit:
                size, magic, own_offset, sys_flag, origin = _HEAD.unpack_from(view, place)
                if magic == MAGIC_BLANK:
                    break
                if (
                    magic not in (MAGIC_V1, MAGIC_V2)
                    or size < MIN_RECORD_SIZE
                    or own_offset != base + place
                    or place + size > len(view)
                ):
                    place = self._pass_damage(place, base, limit)
                    continue
                if place + size > limit:
                    # The rest of the record has not come yet.
                    return
                if sys_flag & HOSTS_V6:
                    origin_at = place + PREPARED_TRANSACTION_OFFSET_AT + wider_by(sys_flag)
                    (origin,) = _ORIGIN.unpack_from(view, origin_at)
                yield Glance(own_offset, sys_flag, origin)
                place += size
                self.position = base + place
            if end >= readable_end:
                return
            self.position = log.next_file_start(base)

    def _pass_damage(self, place: int, base: int, limit: int) -> int:
        """Move to the next record of the file at `base`, at most to `limit`; return its place."""
        file = self._log.files.find(base)
        following = find_record_in(file, place + 1) if file is not None else None
        log.error(
            "a record of the log is damaged, it is passed over",
            offset=base + place,
            next_record=None if following is None else following.offset,
        )
        if following is not None:
            limit = min(following.offset - base, limit)
        self.position = base + limit
        return limit


class QueueFiller:
    """Fills consume queues with records that the log has and they lack, and announces them.

    Such records were committed from the transient store pool, or sent by a master. `position` is
    the offset of the first record that is missing. For the thread that owns the store.
    """

    __slots__ = ("_dispatcher", "_log", "position")

    def __init__(self, commit_log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = commit_log
        self._dispatcher = dispatcher
        self.position = commit_log.dispatched_end

    def fill(self, limit: int) -> bool:
        """Dispatch up to `limit` readable records; return whether more wait.

        Raises StoreFullError when a queue gets no room; the next call goes on with that record.
        """
        log = self._log
        readable_end = log.readable_end
        start = max(self.position, log.min_offset)
        # Read as recovery reads: units need topic and properties, which a Glance does not show.
        for record in LogScan(log.files, start, check_crc=False):
            end = record.offset + record.size
            if limit == 0 or end > readable_end:
                break
            self._dispatcher.dispatch(record)
            self.position = end
            log.dispatched(end, record.store_timestamp)
            limit -= 1
        return limit == 0 and self.position < readable_end

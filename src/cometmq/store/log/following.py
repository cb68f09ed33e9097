"""Follow the commit log: read its records from a position on, each once and in their order.

So the broker's services learn after a start what was stored before it (delayed messages,
transactions, redrives). `QueueFiller` follows the log for consume queues whose records reach the
log before their units. Recovery and the index read the log in ways of their own;
docs/internals/log-and-recovery.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.logs.loggers import get_logger
from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import (
    HOSTS_V6,
    PREPARED_TRANSACTION_OFFSET_AT,
    record_struct,
    wider_by,
)
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.scan import (
    BLANK,
    LogScan,
    ScannedRecord,
    check_record,
    find_record_in,
)
from cometmq.store.queues.dispatch import Dispatcher

if TYPE_CHECKING:
    from cometmq.store.files.mapped_file import MappedFile
    from cometmq.store.log.batch_scan import RecordBatch

log = get_logger(__name__)

# From this many bytes on, numpy is faster than one record after the other.
_BATCH_BYTES: Final = 32 * 1024
# How much numpy looks at in one go: so much as an interval of the loop has room for.
_WINDOW_BYTES: Final = 256 * 1024
# So many records could be dispatched while the end of a damaged one is looked for.
_COST_OF_DAMAGE: Final = 16
_INT64_MAX: Final = 2**63 - 1
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
        following = find_record_in(file, place + 1, limit) if file is not None else None
        log.error(
            "a record of the log is damaged, it is passed over",
            offset=base + place,
            next_record=None if following is None else following.offset,
        )
        if following is not None:
            limit = following.offset - base
        self.position = base + limit
        return limit


class BatchTarget(Protocol):
    """Puts the records of a batch into their queues; `BatchDispatcher` does."""

    def dispatch(self, batch: RecordBatch, /) -> None: ...


class QueueFiller:
    """Fills consume queues with records that the log has and they lack, and announces them.

    Such records were committed from the transient store pool, or sent by a master. `position` is
    the offset of the first record that is missing, `last` that of the last one that was put, -1 before
    the first. With `make_batches` many records are put into
    their queues at once; it is called with the first. For the thread that owns the store.
    """

    __slots__ = ("_batches", "_dispatcher", "_log", "_make_batches", "last", "position")

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        make_batches: Callable[[], BatchTarget] | None = None,
    ) -> None:
        self._log = commit_log
        self._dispatcher = dispatcher
        self._make_batches = make_batches
        self._batches: BatchTarget | None = None
        self.position = commit_log.dispatched_end
        self.last = -1

    @property
    def waits(self) -> bool:
        """Whether there are readable records that their queues lack."""
        return self.position < self._log.readable_end

    def fill(self, limit: int) -> bool:
        """Dispatch `limit` readable records, or some more; return whether others wait.

        A damaged record is passed over, with a line in the broker's log: by the size that it
        declares if a record begins there, else to the next sound record of its file. Raises
        StoreFullError when a queue gets no room; the next call goes on with that record.
        """
        log = self._log
        readable_end = log.readable_end
        while limit > 0 and self.position < readable_end:
            self.position = max(self.position, log.min_offset)
            before = self.position
            if self._make_batches is not None and readable_end - before >= _BATCH_BYTES:
                limit -= self._fill_in_batches(limit, readable_end)
            else:
                limit -= self._fill_singly(limit, readable_end)
            if self.position == before:
                self._pass_damage(readable_end)
                limit -= _COST_OF_DAMAGE
        return self.position < readable_end

    def _fill_singly(self, limit: int, readable_end: int) -> int:
        log = self._log
        count = 0
        # Read as recovery reads: units need topic and properties, which a Glance does not show.
        scan = LogScan(log.files, self.position, check_crc=False)
        for record in scan:
            end = record.offset + record.size
            if count == limit or end > readable_end:
                break
            self._dispatcher.dispatch(record)
            self.position, self.last = end, record.offset
            log.dispatched(end, record.store_timestamp)
            count += 1
        else:
            self._pass_blank(scan.end)
        return count

    def _fill_in_batches(self, limit: int, readable_end: int) -> int:
        # Loads numpy, which an idle broker can do without.
        from cometmq.store.log.batch_scan import BatchScan

        if self._batches is None:
            assert self._make_batches is not None
            self._batches = self._make_batches()
        log = self._log
        count = 0
        scan = BatchScan(
            log.files,
            self.position,
            check_crc=False,
            flushed_until=_INT64_MAX,
            window_bytes=_WINDOW_BYTES,
            log_end=readable_end,
        )
        for batch in scan:
            self._batches.dispatch(batch)
            self.position, self.last = batch.end, int(batch.offsets[-1])
            log.dispatched(batch.end, int(batch.columns.store_timestamps.max()))
            count += len(batch)
            if count >= limit or readable_end - batch.end < _BATCH_BYTES:
                return count
        self._pass_blank(scan.end)
        return count

    def _pass_blank(self, end: int) -> None:
        """Move on to where a scan ended, behind the blank that ends a file."""
        log = self._log
        if self.position < end <= log.readable_end:
            self.position = end
            log.dispatched(end, log.dispatched_timestamp)

    def _pass_damage(self, readable_end: int) -> None:
        """Move behind bytes that are no record: to where the next one begins."""
        log_, at = self._log, self.position
        file = log_.files.find(at)
        end = readable_end
        if file is not None:
            limit = min(file.end, readable_end)
            end = self._declared_end(file, limit)
            if end < 0:
                following = find_record_in(file, at + 1 - file.base, limit - file.base)
                end = limit if following is None else following.offset
        log.error(
            "a record of the log is damaged, it gets no place in a queue", offset=at, goes_on_at=end
        )
        self.position = end
        log_.dispatched(end, log_.dispatched_timestamp)

    def _declared_end(self, file: MappedFile, limit: int) -> int:
        """Return where the damaged record says that it ends; -1 if nothing bears that out."""
        at, view = self.position, file.view
        if at + _HEAD.size > limit:
            return -1
        size, magic, place, *_ = _HEAD.unpack_from(view, at - file.base)
        end = at + size
        if (
            magic not in (MAGIC_V1, MAGIC_V2)
            or place != at
            or size < MIN_RECORD_SIZE
            or end > limit
        ):
            return -1
        if end < limit:
            follows = check_record(view, end - file.base, end, check_crc=False)
            if follows is not BLANK and not isinstance(follows, ScannedRecord):
                return -1
        return int(end)

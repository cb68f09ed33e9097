"""Find what a pull gets at a queue offset (Java: DefaultMessageStore.getMessage)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from cometmq.protocol.messages.record import MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import record_struct
from cometmq.store.config import PAGE_SIZE, StoreConfig
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, UNIT_SIZE, ConsumeQueue
from cometmq.store.queues.consume_queue_ext import ExtendedConsumeQueue, ExtUnit
from cometmq.store.queues.queue_mender import QueueMender, Verdict

_HEAD: Final = record_struct("size_and_magic", "queue_id", "queue_offset", "physical_offset")
# With this type compiled code compares native numbers, not Python's, in two thirds of the time.
_UnpackHead = Callable[[memoryview, int], tuple[int, int, int, int]]
MAX_PULL_BYTES: Final = 128 * 1024 * 1024
_MIN_PULL_BYTES: Final = 100
# A pull looks at this many units at most, however many messages it asks for. A pull that selects a
# rare tag comes back for the next part.
_MAX_SCAN_UNITS: Final = 10_000
# Records that were appended since the store was opened are in the page cache as long as they lie within
# so many bytes of the log's end.
_RECENT_BYTES: Final = 32 * 1024 * 1024
# The page cache is looked at once for the records of so many units, and all that lies between them, if
# they lie within so many bytes. This takes 30 µs at most, and a look at each record 3 µs.
_NEAR_UNITS: Final = 64
_NEAR_BYTES: Final = 2 * 1024 * 1024
# Units that are looked at ahead of a reader far behind, and the most bytes that are read for it at
# once: a damaged unit may claim any size.
_LOOKED_UNITS: Final = 800
_MOST_BROUGHT: Final = 16 * 1024 * 1024
# How many times as much is read as a get needs where all of it lies side by side.
_AHEAD: Final = 4


class GetStatus(Enum):
    """Says how a get ended.

    The values are Java's GetMessageStatus; the response's remark carries them. NOT_IN_MEMORY is our
    own, and no client sees it.
    """

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    NOT_IN_MEMORY = "NOT_IN_MEMORY"


class GetResult:
    """Holds what was found.

    `slices` are the records in queue order; records that lie side by side are one view.
    `suggest_slave` says that the reader is further behind than memory reaches. `absent` brings into
    memory what kept the get from going on; its functions block, and are for any thread. `is_cut` says
    that a filter had no work left. No dataclass: compiled, that takes three times as long to make.
    """

    __slots__ = (
        "absent",
        "byte_count",
        "is_cut",
        "max_offset",
        "message_count",
        "min_offset",
        "next_begin_offset",
        "slices",
        "status",
        "suggest_slave",
    )

    def __init__(
        self,
        status: GetStatus,
        next_begin_offset: int,
        min_offset: int = 0,
        max_offset: int = 0,
    ) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.slices: list[memoryview] = []
        self.message_count = 0
        self.byte_count = 0
        self.suggest_slave = False
        self.absent: list[Callable[[], None]] | None = None
        self.is_cut = False


class MessageGetter:
    """Reads queues of one log.

    The limits of a transfer differ for messages that memory probably holds and for others:
    `memory_bytes` is how far behind the log's end the page cache is taken to reach.

    `own_from` is the commit-log offset from which on this process wrote all records, and has not found
    one missing in memory since.
    """

    __slots__ = (
        "_disk_bytes",
        "_disk_count",
        "_log",
        "_max_filter_size",
        "_memory_bytes",
        "_memory_count",
        "_mender",
        "_reach",
        "own_from",
    )

    def __init__(
        self, log: CommitLog, config: StoreConfig, memory_bytes: int, mender: QueueMender
    ) -> None:
        self._log = log
        self._mender = mender
        self.own_from = 0
        self.configure(config, memory_bytes)

    def distrust(self, end: int) -> None:
        """Note that memory may not have the records below `end` as this process wrote them."""
        self.own_from = max(self.own_from, end)

    def configure(self, config: StoreConfig, memory_bytes: int) -> None:
        """Obey the limits of `config` from now on. Records within `memory_bytes` of the log's end are
        taken to be in memory.
        """
        self._reach = memory_bytes
        self._max_filter_size = config.max_filter_message_size
        self._memory_bytes = config.max_transfer_bytes_on_message_in_memory
        self._memory_count = config.max_transfer_count_on_message_in_memory
        self._disk_bytes = config.max_transfer_bytes_on_message_in_disk
        self._disk_count = config.max_transfer_count_on_message_in_disk

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        matches: Callable[[int], bool | None] | None = None,
        matches_ext: Callable[[ExtUnit], bool | None] | None = None,
        matches_record: Callable[[memoryview], bool | None] | None = None,
        may_block: bool = True,
        begun: GetResult | None = None,
    ) -> GetResult:
        """Return the messages from queue offset `offset` on that pass all filters.

        `matches` sees the tags code, `matches_ext` the unit of the queue's extension if there is
        one, `matches_record` the whole record. The first message comes whatever its size. A filter
        returns None if it has no work left to look at a message. Then the scan ends before that
        message, and the result `is_cut`; if it was the first one, `next_begin_offset` is `offset`. To go
        on, give that offset and the result as `begun`, which is filled up and returned, unless the
        offset has left the queue meanwhile. Raises StoreBusyError while a damaged unit at that place
        is being repaired.

        Unless it `may_block`, it ends before a message that is not in memory. If that is the first
        one, the status is NOT_IN_MEMORY: have `absent` done in a thread, and come again, up to three
        times. A page may be read from the disk nevertheless, if the kernel drops it between the look
        and the read.
        """
        if queue is None:
            # Java, too, makes no difference between a queue without messages and one without files.
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        low, high = queue.min_offset, queue.next_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        if begun is None:
            result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        else:
            result = begun
            result.min_offset, result.max_offset = low, high
            result.absent, result.is_cut = None, False
        if isinstance(queue, ExtendedConsumeQueue):
            matches = queue.matcher(matches, matches_ext)
        limit = min(max(max_bytes, _MIN_PULL_BYTES), MAX_PULL_BYTES)
        while self._collect(queue, result, max_messages, limit, matches, matches_record, may_block):
            # Raised from here: CPython's collector crashes over a traceback that holds the iterator
            # of units and the view that it reads.
            self._mender.look(queue, result.next_begin_offset)
        return result

    def _collect(  # noqa: C901, PLR0912, PLR0915 - see below
        self,
        queue: ConsumeQueue,
        result: GetResult,
        max_messages: int,
        max_bytes: int,
        matches: Callable[[int], bool | None] | None,
        matches_record: Callable[[memoryview], bool | None] | None,
        may_block: bool,
    ) -> bool:
        """Fill `result`; return True if a damaged unit in front must be dealt with first.

        Longer than 70 lines: one loop, since a call for each message would cost more than its work.
        """
        log = self._log
        filters = matches is not None or matches_record is not None
        units = self._units(queue, result, max_messages, filters, may_block)
        if units is None:
            return False
        begin = offset = result.next_begin_offset
        log_start, log_end = log.min_offset, log.readable_end
        slices = result.slices
        queue_id, magic = queue.queue_id, queue.magic
        unpack_head: _UnpackHead = _HEAD.unpack_from
        # While `leaving`, all messages so far have left the log, so a unit that points in front of
        # the log is not worth a look.
        leaving = damaged = False
        # Records below `unsure_end`, but for those below `looked_to`, may not be in memory.
        unsure_end = 0 if may_block else max(self.own_from, log_end - _RECENT_BYTES)
        looked_to = 0
        # This process wrote the records from `sure_from` on, and memory is taken to have them. Once one of
        # them names its own offset in the queue, all units from there on are of this process, too. So
        # those that point at such records need no comparison.
        sure_from = max(self.own_from, log_end - self._reach)
        is_own = False
        count, total = result.message_count, result.byte_count
        # The readable part of the file at hand, and in it the run of records not yet cut out.
        view = memoryview(b"")
        base = readable_end = run_start = run_end = -1
        physical_offset = 0
        for physical_offset, size, tags_code in units:
            if count and self._is_full(
                count, total + size, max_messages, max_bytes, log_end - physical_offset
            ):
                break
            offset += 1
            if size == PLACEHOLDER_SIZE and physical_offset == 0:
                continue
            if leaving and 0 <= physical_offset < log_start:
                continue
            if matches is not None and not (passes := matches(tags_code)):
                if passes is None:
                    offset -= 1
                    result.is_cut = True
                    break
                continue
            if looked_to <= physical_offset < unsure_end:
                looked_to = self._look_ahead(
                    queue, result, offset - 1, max_messages - count, max_bytes - total, matches
                )
                if result.absent:
                    offset -= 1
                    break
            if not base <= physical_offset < readable_end:
                if run_start < run_end:
                    slices.append(view[run_start - base : run_end - base])
                run_start = run_end = -1
                base, readable_end, view = log.window(physical_offset)
            end = physical_offset + size
            fits = False
            if physical_offset >= 0 and size >= MIN_RECORD_SIZE and end <= readable_end:
                is_sure = physical_offset >= sure_from
                fits = is_own and is_sure
                if not fits:
                    position = physical_offset - base
                    head, own_queue_id, own_offset, place = unpack_head(view, position)
                    fits = (
                        place == physical_offset
                        and own_offset == offset - 1
                        and own_queue_id == queue_id
                        and head == (size << 32 | magic)
                    )
                    is_own = fits and is_sure
                    if not fits:
                        fits = queue.owns(offset - 1, view, position, physical_offset, size)
            if not fits:
                if (
                    not count
                    and 0 <= physical_offset < log_start
                    and self._mender.has_left(queue, offset - 1)
                ):
                    result.status = GetStatus.MESSAGE_WAS_REMOVING
                    leaving = True
                    continue
                verdict = self._mender.known(queue, offset - 1)
                if verdict is Verdict.LOST:
                    continue
                if verdict is not Verdict.STANDS_IN:
                    offset -= 1
                    damaged = not count
                    break
            if matches_record is not None and not (
                passes := matches_record(view[physical_offset - base : end - base])
            ):
                if passes is None:
                    offset -= 1
                    result.is_cut = True
                    break
                continue
            if physical_offset != run_end:
                if run_start < run_end:
                    slices.append(view[run_start - base : run_end - base])
                run_start = physical_offset
            run_end = end
            count += 1
            total += size
            leaving = False
        if run_start < run_end:
            slices.append(view[run_start - base : run_end - base])
        if count:
            result.status = GetStatus.FOUND
        elif result.absent and offset == begin:
            result.status = GetStatus.NOT_IN_MEMORY
        result.next_begin_offset = offset
        result.message_count = count
        result.byte_count = total
        result.suggest_slave = log_end - physical_offset > self._reach
        return damaged

    def _units(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        max_messages: int,
        filters: bool,
        may_block: bool,
    ) -> Iterator[tuple[int, int, int]] | None:
        """Return the units that one get looks at; None if they cannot be read now, and `result` says
        why.
        """
        offset = result.next_begin_offset
        wanted = max(self._max_filter_size, min(max_messages, _MAX_SCAN_UNITS) * UNIT_SIZE)
        scan_count = max(-(-wanted // UNIT_SIZE), 1)
        if not may_block:
            most = scan_count if filters else min(scan_count, max_messages)
            absent_units = queue.absent_units(offset, most)
            if absent_units is not None:
                result.status = GetStatus.NOT_IN_MEMORY
                result.absent = [absent_units]
                return None
        units = queue.stored_units(offset, scan_count)
        if units is None:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = offset - offset % queue.units_per_file + queue.units_per_file
        return units

    def _look_ahead(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        offset: int,
        max_messages: int,
        max_bytes: int,
        matches: Callable[[int], bool | None] | None,
    ) -> int:
        """Look for the records in memory that are found next if `offset` is one of them. Put what
        brings in those that are not there into `result.absent`. Return the end of the last one.
        """
        if isinstance(queue, ExtendedConsumeQueue):
            # A look ahead must not spend the work that the filter may do.
            return self._look_at_each(queue, result, offset, max_messages, max_bytes, None)
        if matches is None and (end := self._near_end(queue, offset, max_messages)) >= 0:
            return end
        return self._look_at_each(queue, result, offset, max_messages, max_bytes, matches)

    def _look_at_each(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        offset: int,
        max_messages: int,
        max_bytes: int,
        matches: Callable[[int], bool | None] | None,
    ) -> int:
        """Do what `_look_ahead` does, and leave out what lies between the records."""
        log_end = self._log.readable_end
        runs: list[tuple[int, int]] = []
        start = end = -1
        count = total = 0
        for physical_offset, size, tags_code in queue.stored_units(offset, _LOOKED_UNITS) or ():
            if size <= 0 or physical_offset < 0 or size == PLACEHOLDER_SIZE:
                continue
            if count and matches is not None and not matches(tags_code):
                continue
            if count and self._is_full(
                count, total + size, max_messages, max_bytes, log_end - physical_offset
            ):
                break
            if start < 0 or not 0 <= physical_offset - end < PAGE_SIZE:
                if start >= 0:
                    runs.append((start, end))
                start = physical_offset
            end = physical_offset + min(size, _MOST_BROUGHT)
            count += 1
            total += size
        if start >= 0:
            runs.append((start, end))
        absent: list[Callable[[], None]] = []
        ahead = _AHEAD if len(runs) == 1 else 1
        for start, end in runs:
            file = self._log.files.find(start)
            if file is None:
                continue  # it has left the log
            place = start - file.base
            limit = min(file.end, log_end) - file.base
            wanted_end = min(end - file.base, limit)
            part = file.absent(place, wanted_end, min(place + ahead * (end - start), limit))
            if part is not None:
                absent.append(part)
                # The disk may return other bytes than were written.
                self.distrust(min(end, log_end))
        result.absent = absent
        return end

    def _near_end(self, queue: ConsumeQueue, offset: int, max_messages: int) -> int:
        """Return the end of the last record that is found next if all of them, and all that lies between
        them, are in memory; else, or if they lie too far apart, -1.
        """
        # A get reads units of one file.
        per_file = queue.units_per_file
        behind = min(
            offset + min(max_messages, _NEAR_UNITS),
            offset - offset % per_file + per_file,
            queue.next_offset,
        )
        first, last = queue.unit(offset), queue.unit(behind - 1)
        if first is None or last is None:
            return -1
        start, end = first.physical_offset, last.physical_offset + last.size
        file = self._log.files.find(start)
        if file is None or not start < end <= min(start + _NEAR_BYTES, file.end):
            return -1
        if end > self._log.readable_end or file.absent(start - file.base, end - file.base, 0):
            return -1
        return end

    def _is_full(
        self, count: int, total: int, max_messages: int, max_bytes: int, behind: int
    ) -> bool:
        if count >= max_messages or total > max_bytes:
            return True
        if behind <= self._reach:
            return total > self._memory_bytes or count >= self._memory_count
        return total > self._disk_bytes or count >= self._disk_count

"""Repair units of consume queues that contradict the log, when somebody reads them.

The log is the truth. A unit that is read must point at a record whose head names the unit's queue
and offset (`ConsumeQueue.owns`). If it does not, its record is looked for between those of the
nearest good units: first at the place that the unit names, then at places that differ from it in
one bit, then record by record. A record that is found proves its place, so a unit is never
rewritten wrongly. If there is no such record, the message is lost, and readers pass over it.

The reader does the search: a call does a bounded part of it, and raises StoreBusyError
(FLOW_CONTROL, upon which clients come again in a moment) while more is to be done. All searches
together take at most a fifth of the thread's time. Their results are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Final

from cometmq.errors import StoreBusyError
from cometmq.logs.loggers import get_logger
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import HEAD_SIZE, MAGIC_AT, record_struct
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.scan import ScannedRecord, read_record
from cometmq.store.queues.consume_queue import NO_MESSAGE, ConsumeQueue, Unit
from cometmq.store.queues.consume_queue_ext import ExtendedConsumeQueue
from cometmq.store.queues.dispatch import tags_code_of
from cometmq.store.reading.layout import next_magic

log = get_logger(__name__)

# ResponseCode.FLOW_CONTROL, upon which clients come again in a moment.
_CODE_FLOW_CONTROL: Final = 215
# Limits of the part of a search that one call does.
_STEP_RECORDS: Final = 4096
_STEP_BYTES: Final = 1024 * 1024
_STEP_S: Final = 0.004
_RECORDS_PER_LOOK: Final = 64
# After a part of a search, others are served for this many times as long as the part took.
_REST: Final = 4
# How many damaged units in a row one search takes care of; a page of the disk has 205 units.
_MAX_RUN: Final = 1024
_MAX_SEARCHES: Final = 256
_MAX_REMEMBERED: Final = 65_536
_LINES_PER_MINUTE: Final = 20
_MINUTE_S: Final = 60.0
_UNIT_BITS: Final = 63

_GLANCE: Final = record_struct("size", "magic", "queue_id", "queue_offset", "physical_offset")


class Verdict(Enum):
    """Says what a reader does with a unit that does not fit: look at it again, because it was
    repaired; serve it as it is; pass over it.
    """

    MENDED = "mended"
    STANDS_IN = "stands in"
    LOST = "lost"


class _Search:
    """Searches the log for the records of the units `missing`, from `at` to below `end`."""

    __slots__ = ("at", "end", "first", "found", "missing", "queue")

    def __init__(self, queue: ConsumeQueue, missing: set[int], at: int, end: int) -> None:
        self.queue = queue
        self.first = min(missing)
        self.missing = missing
        self.at = at
        self.end = end
        self.found: list[int] = []


class QueueMender:
    """Repairs the consume queues of a store. For the store's thread.

    `find` returns the queue of a topic that is on disk. `deleted` returns, by topic, the commit-log
    offset below which records belong to a deleted topic of the same name; `appended_end` returns the
    queue offset behind the last message that the transient pool took for a queue. `mended_count` units were
    repaired and `lost_count` messages were found lost since the start.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        find: Callable[[str, int], ConsumeQueue | None],
        deleted: Callable[[], Mapping[str, int]],
        appended_end: Callable[[str, int], int],
        delay_levels_ms: Sequence[int],
        monotonic: Callable[[], float],
    ) -> None:
        self._log = commit_log
        self._find = find
        self._deleted = deleted
        self._appended_end = appended_end
        self._delay_levels_ms = delay_levels_ms
        self._monotonic = monotonic
        self._verdicts: dict[tuple[ConsumeQueue, int], Verdict] = {}
        self._searches: dict[tuple[ConsumeQueue, int], _Search] = {}
        self._rest_until = 0.0
        self._lines: list[float] = []
        self._left_out = 0
        self._patient = False
        self.mended_count = 0
        self.lost_count = 0

    # -- reading --

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Let searches take as long as they need, while nobody is served yet."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def unit(self, queue: ConsumeQueue, queue_offset: int) -> Unit | None:
        """Return the unit at `queue_offset`, repaired if need be.

        Returns NO_MESSAGE where the message is lost, None outside of the queue. The unit of a
        message that has left the log is returned as it is. Raises StoreBusyError while the record
        is searched for, and for a message of the transient pool while its queue waits for room.
        """
        queue = self._find(queue.topic, queue.queue_id) or queue
        unit = queue.unit(queue_offset)
        if unit is None and queue_offset >= queue.first_offset:
            self._pass_what_waits(queue, queue_offset)
        if unit is None or unit == NO_MESSAGE or self._fits(queue, queue_offset, unit):
            return unit
        if 0 <= unit.physical_offset < self._log.min_offset and self.has_left(queue, queue_offset):
            return unit
        verdict = self.look(queue, queue_offset)
        return NO_MESSAGE if verdict is Verdict.LOST else queue.unit(queue_offset)

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> Iterator[Unit] | None:
        """Return what `unit` returns, for up to `count` units in one file; None without a file."""
        queue = self._find(queue.topic, queue.queue_id) or queue
        units = queue.units(queue_offset, count)
        if units is None:
            return None
        # All units are read at once: see MessageGetter.get about tracebacks that hold the iterator.
        return self._checked(queue, queue_offset, list(units))

    def _checked(
        self, queue: ConsumeQueue, queue_offset: int, units: Sequence[tuple[int, int, int]]
    ) -> Iterator[Unit]:
        window, owns = self._log.window, queue.owns
        base = end = -1
        view = memoryview(b"")
        for offset, found in enumerate(units, queue_offset):
            place, size, _ = found
            if not base <= place < end:
                base, end, view = window(place)
            readable = base <= place and place + size <= end
            if readable and owns(offset, view, place - base, place, size):
                yield Unit(*found)
                continue
            unit = self.unit(queue, offset)
            if unit is None:
                return
            yield unit

    def has_left(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Say whether a unit that points in front of the log is that of a message that left it.

        If it is, so are all units in front of it.
        """
        if queue_offset <= queue.min_offset:
            return True
        before = queue.unit(queue_offset - 1)
        return before is None or not before.physical_offset >= self._log.min_offset

    # -- repairing --

    def known(self, queue: ConsumeQueue, queue_offset: int) -> Verdict | None:
        """Return what was found out about a unit that does not fit; None while it is not known."""
        return self._verdicts.get((queue, queue_offset))

    def look(self, queue: ConsumeQueue, queue_offset: int) -> Verdict:
        """Return what to do with a unit of `queue` that does not fit; repair it if possible.

        Raises StoreBusyError while its record is searched for.
        """
        known = self.known(queue, queue_offset)
        if known is not None:
            return known
        search = self._search_for(queue, queue_offset)
        while not self._step(search):
            if not self._patient:
                raise self._busy(search, queue_offset)
        if self._fits(queue, queue_offset, queue.unit(queue_offset)):
            return Verdict.MENDED
        return self._verdicts.get((queue, queue_offset), Verdict.LOST)

    def _search_for(self, queue: ConsumeQueue, queue_offset: int) -> _Search:
        for search in self._searches.values():
            if search.queue is queue and queue_offset in search.missing:
                return search
        search = self._begin(queue, queue_offset)
        while len(self._searches) >= _MAX_SEARCHES:
            del self._searches[next(iter(self._searches))]
        self._searches[queue, search.first] = search
        return search

    def _begin(self, queue: ConsumeQueue, queue_offset: int) -> _Search:
        """Make a search for this unit and its damaged neighbours, between the nearest good ones."""
        missing = {queue_offset}
        floor = max(self._log.min_offset, self._deleted().get(queue.topic, 0))
        # A record in a light queue does not state its place in that queue.
        start, end = floor, 0 if queue.is_light else self._log.readable_end
        for offset in range(
            queue_offset - 1, max(queue.min_offset, queue_offset - _MAX_RUN) - 1, -1
        ):
            unit = queue.unit(offset)
            if unit is not None and self._fits(queue, offset, unit):
                start = max(start, unit.physical_offset + unit.size)
                break
            if unit != NO_MESSAGE and (queue, offset) not in self._verdicts:
                missing.add(offset)
        for offset in range(queue_offset + 1, min(queue.next_offset, queue_offset + _MAX_RUN)):
            unit = queue.unit(offset)
            if unit is not None and self._fits(queue, offset, unit):
                end = min(end, unit.physical_offset)
                break
            if unit != NO_MESSAGE and (queue, offset) not in self._verdicts:
                missing.add(offset)
        search = _Search(queue, missing, start, end)
        for offset in sorted(missing):
            self._look_nearby(search, offset)
        return search

    def _look_nearby(self, search: _Search, queue_offset: int) -> None:
        """Look where the unit points, and where it would point with one bit flipped."""
        unit = search.queue.unit(queue_offset)
        assert unit is not None, "it was read before"
        place = unit.physical_offset
        for candidate in (
            place,
            *(place ^ (1 << bit) for bit in range(_UNIT_BITS)),
            place + (1 << 63),
        ):
            if search.at <= candidate < search.end and self._take(search, candidate, queue_offset):
                return

    def _take(self, search: _Search, place: int, queue_offset: int) -> bool:
        """Repair a unit if the record at `place` is its message; return whether it is."""
        queue = search.queue
        record = self._record_at(place, check_crc=False)
        if record is None or queue.is_light:
            return False
        if (record.topic, record.queue_id, record.queue_offset) != (
            queue.topic,
            queue.queue_id,
            queue_offset,
        ):
            return False
        if record.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return False
        queue.rewrite(
            queue_offset, Unit(place, record.size, self._tags_code(queue, queue_offset, record))
        )
        search.missing.discard(queue_offset)
        search.found.append(queue_offset)
        self.mended_count += 1
        return True

    def _record_at(self, place: int, *, check_crc: bool) -> ScannedRecord | None:
        log = self._log
        return read_record(log.files, place, end=log.readable_end, check_crc=check_crc)

    def _tags_code(self, queue: ConsumeQueue, queue_offset: int, record: ScannedRecord) -> int:
        """Return the unit's tags code: the stored one if the record does not give a better one."""
        code = tags_code_of(record, self._delay_levels_ms)
        stored = next(queue.stored_units(queue_offset, 1) or iter(()), NO_MESSAGE)[2]
        if queue.topic == SCHEDULE_TOPIC:
            # The levels may have been different when the message was stored.
            longest_ms = max(self._delay_levels_ms, default=0)
            return stored if 0 <= stored - record.store_timestamp <= longest_ms else code
        if isinstance(queue, ExtendedConsumeQueue):
            ext = queue.ext.get(stored)
            if ext is not None and (ext.tags_code, ext.store_timestamp) == (
                code,
                record.store_timestamp,
            ):
                return stored
        return code

    def _step(self, search: _Search) -> bool:
        """Do a part of a search; True when it is over."""
        began = self._monotonic()
        if not search.missing or search.at >= search.end:
            return self._finish(search)
        if not self._patient and began < self._rest_until:
            return False
        left = _STEP_RECORDS
        while left > 0 and search.missing and search.at < search.end:
            self._scan(search, min(left, _RECORDS_PER_LOOK))
            left -= _RECORDS_PER_LOOK
            if self._monotonic() - began > _STEP_S:
                break
        now = self._monotonic()
        self._rest_until = now + _REST * (now - began)
        return self._finish(search) if not search.missing or search.at >= search.end else False

    def _scan(self, search: _Search, count: int) -> None:
        """Walk over up to `count` records of one file."""
        queue_id = search.queue.queue_id
        base, end, view = self._log.window(search.at)
        if end < 0:
            search.at = self._log.next_file_start(search.at)
            return
        for _ in range(count):
            place = search.at
            if place >= search.end:
                return
            position = place - base
            size = magic = 0
            if place + _GLANCE.size <= end:
                size, magic, own_queue_id, queue_offset, own_place = _GLANCE.unpack_from(
                    view, position
                )
            elif place + HEAD_SIZE <= end:
                magic = int.from_bytes(view[position + MAGIC_AT : position + HEAD_SIZE], "big")
            if magic == MAGIC_BLANK or place + HEAD_SIZE > end:
                search.at = self._log.next_file_start(place)
                return
            if (
                magic not in (MAGIC_V1, MAGIC_V2)
                or own_place != place
                or size < MIN_RECORD_SIZE
                or place + size > end
            ):
                self._pass_damage(search, base, end)
                return
            if own_queue_id == queue_id and queue_offset in search.missing:
                self._take(search, place, queue_offset)
                if not search.missing:
                    return
            search.at = place + size

    def _pass_damage(self, search: _Search, base: int, end: int) -> None:
        """Move on to the next record of a file, or a step nearer: no record begins here."""
        file = self._log.files.find(search.at)
        if file is None:
            search.at = search.end
            return
        limit = min(search.at + _STEP_BYTES, end)
        position = next_magic(file.map, search.at - base + 1 + MAGIC_AT, limit - base)
        if position < 0:
            # A magic may begin just before the end of the part that was searched.
            search.at = (
                limit - HEAD_SIZE + 1 if limit < end else self._log.next_file_start(search.at)
            )
            return
        start = position - MAGIC_AT
        search.at = base + start
        if self._record_at(base + start, check_crc=True) is None:
            # One byte further, because `_scan` would take the place itself for damage again.
            search.at = base + start + 1

    def _finish(self, search: _Search) -> bool:
        queue = search.queue
        self._searches.pop((queue, search.first), None)
        lost = []
        # Each unit is judged by the one behind it.
        for offset in sorted(search.missing, reverse=True):
            if self._stands_in(queue, offset):
                self._remember(queue, offset, Verdict.STANDS_IN)
            else:
                self._remember(queue, offset, Verdict.LOST)
                lost.append(offset)
        self.lost_count += len(lost)
        if search.found:
            self._say(
                log.warning,
                "units of a consume queue contradicted the log, they are repaired",
                queue,
                min(search.found),
                len(search.found),
            )
        if lost:
            self._say(
                log.error,
                "the log has no sound record of these messages any more, they are passed over; "
                "stop the broker and see what `cometmq store check` says",
                queue,
                lost[-1],
                len(lost),
            )
        return True

    def _stands_in(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Say whether a unit is that of the message behind a lost one (see `consume_queue`)."""
        unit, following = queue.unit(queue_offset), queue.unit(queue_offset + 1)
        if unit is None or following is None or unit[:2] != following[:2]:
            return False
        return self._verdicts.get((queue, queue_offset + 1)) is Verdict.STANDS_IN or self._fits(
            queue, queue_offset + 1, following
        )

    def _remember(self, queue: ConsumeQueue, queue_offset: int, verdict: Verdict) -> None:
        while len(self._verdicts) >= _MAX_REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[queue, queue_offset] = verdict

    def _fits(self, queue: ConsumeQueue, queue_offset: int, unit: Unit | None) -> bool:
        if unit is None:
            return False
        place, size, _ = unit
        base, end, view = self._log.window(place)
        if not base <= place or place + size > end:
            return False
        return queue.owns(queue_offset, view, place - base, place, size)

    # -- saying so --

    def _pass_what_waits(self, queue: ConsumeQueue, queue_offset: int) -> None:
        if queue_offset < self._appended_end(queue.topic, queue.queue_id):
            raise StoreBusyError(
                f"the log has the message at offset {queue_offset} of {queue.topic}/{queue.queue_id}, "
                "whose consume queue waits for room on the disk; try again when there is some",
                code=_CODE_FLOW_CONTROL,
            )

    def _busy(self, search: _Search, queue_offset: int) -> StoreBusyError:
        return StoreBusyError(
            f"the unit of offset {queue_offset} in the consume queue {search.queue.topic}/"
            f"{search.queue.queue_id} is damaged, its record is being looked for between the "
            f"commit-log offsets {search.at} and {search.end}; try again in a moment",
            code=_CODE_FLOW_CONTROL,
        )

    def _say(
        self, say: Callable[..., object], text: str, queue: ConsumeQueue, offset: int, count: int
    ) -> None:
        """Log a line, if there were not too many in the last minute; the next one says how many."""
        now = self._monotonic()
        self._lines = [then for then in self._lines if now - then < _MINUTE_S]
        if len(self._lines) >= _LINES_PER_MINUTE:
            self._left_out += 1
            return
        self._lines.append(now)
        unit = queue.unit(offset)
        say(
            text,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            commit_log_offset=-1 if unit is None else unit.physical_offset,
            count=count,
            path=str(queue.files.directory),
            lines_left_out=self._left_out,
        )
        self._left_out = 0

"""Hold in memory which timed messages fall due soon: a window of the timer queue.

A unit of the queue says in its tags code when its message is due. So finding the messages of the
next hour means reading 20 bytes for each message that waits. The window holds queue offsets by
slot, eight bytes each. Before the window runs out, the queue is scanned for the next one, a few
thousand units at a time. The window holds at most `max_loaded` offsets, or those of one slot if
these are more: a window that would hold more ends earlier.

The offsets of a slot are kept in ascending order, so that nothing is sorted when the slot is due: a
million messages may be wanted at midnight.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from cometmq.broker.delays.timer_progress import TimerProgress
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, ConsumeQueue

WINDOW_MS: Final = 3_600_000
MAX_LOADED: Final = 1_000_000
# A tags code below this is the hash of tags, in a unit that a Java broker wrote.
MIN_TIME_CODE: Final = 2**32
# The size in a unit that the disk had no room for yet, of a message in the transient pool.
_NOT_WRITTEN: Final = 0

# (commit-log offset, size) -> tags code as this broker would have written it
CodeOfRecord = Callable[[int, int], int]


class _Scan:
    """A scan of the queue from offset `at` to `end`, for messages of the slots `low` to `high`."""

    __slots__ = ("at", "end", "first_pending", "high", "low")

    def __init__(self, at: int, end: int, low: int, high: int) -> None:
        self.at = at
        self.end = end
        self.low = low
        self.high = high
        self.first_pending = -1


class _Slot:
    """Holds the offsets of a slot's messages, and those of its recalls."""

    __slots__ = ("messages", "recalls")

    def __init__(self) -> None:
        self.messages = array("q")
        self.recalls = array("q")

    def __len__(self) -> int:
        return len(self.messages) + len(self.recalls)

    def extend(self, later: _Slot) -> None:
        """Take in offsets that are greater than all of these."""
        self.messages.extend(later.messages)
        self.recalls.extend(later.recalls)

    def first(self, default: int) -> int:
        return min(*self.messages[:1], *self.recalls[:1], default, default)


class TimerWindow:
    """Holds queue offsets by slot.

    The window holds every message that waits in a slot below `known_to`. `beyond` is about how many
    messages wait in later slots, `floor` a queue offset below which none waits. For the loop's
    thread only.
    """

    def __init__(
        self,
        queue: Callable[[], ConsumeQueue],
        progress: TimerProgress,
        code_of_record: CodeOfRecord,
        *,
        window_ms: int = WINDOW_MS,
        max_loaded: int = MAX_LOADED,
    ) -> None:
        self._queue = queue
        self._progress = progress
        self._code_of_record = code_of_record
        self._window_ms = window_ms
        self._max_loaded = max_loaded
        self._slots: dict[int, _Slot] = {}
        # Records that arrive while a scan looks for records in front of them in the queue.
        self._late: dict[int, _Slot] = {}
        self._order: list[int] = []
        self._scan: _Scan | None = None
        self._cut_short = False
        # Whether a slot was taken since the last scan. If not, another scan of a window that was
        # cut short would be cut at the same place again.
        self._drained = False
        self.known_to = 0
        self.loaded = 0
        self.beyond = 0
        self.floor = 0

    @property
    def first_slot(self) -> int | None:
        """The earliest slot that holds anything and may be taken."""
        first = self._order[0] if self._order else None
        return first if first is not None and first < self.known_to else None

    def take_first(self) -> tuple[int, array[int], array[int]]:
        """Remove the earliest slot; return it, its messages and its recalls, in queue order.

        The arrays may begin with offsets below the floor: those were rolled, and the window has
        them once more, at a later offset. See `first_of`.
        """
        slot = heapq.heappop(self._order)
        taken = self._slots.pop(slot)
        self.loaded -= len(taken)
        self._drained = True
        return slot, taken.messages, taken.recalls

    def first_of(self, offsets: array[int]) -> int:
        """Return the index of the first offset of a slot that was not rolled."""
        return bisect_left(offsets, self.floor)

    def put_back(self, slot: int, messages: array[int], recalls: array[int]) -> None:
        """Put the rest of a slot that was taken back."""
        back = _Slot()
        back.messages, back.recalls = messages, recalls
        if not back:
            return
        self.loaded += len(back)
        later = self._slots.get(slot)
        if later is None:
            heapq.heappush(self._order, slot)
        else:
            back.extend(later)
        self._slots[slot] = back

    def add(self, slot: int, offset: int, *, recall: bool) -> None:
        """Take in a message that arrived at the end of the queue."""
        late = self._scan is not None and slot >= self._scan.low
        self._add(slot, offset, recall=recall, late=late)

    def _add(self, slot: int, offset: int, *, recall: bool, late: bool = False) -> None:
        high = self._scan.high if self._scan is not None else self.known_to
        if slot >= high:
            self.beyond += not recall
            return
        slots = self._late if late else self._slots
        found = slots.get(slot)
        if found is None:
            if slot not in self._slots and slot not in self._late:
                heapq.heappush(self._order, slot)
            found = slots[slot] = _Slot()
        (found.recalls if recall else found.messages).append(offset)
        self.loaded += 1
        if self.loaded > self._max_loaded and len(self._order) > 1:
            self._cut()

    # -- moving on --

    @property
    def scanning(self) -> bool:
        return self._scan is not None

    def move(self, now_ms: int) -> None:
        """Move the window on if it runs out soon, by beginning a scan if one is needed; see `scan`.

        Not to be called while a slot that was taken is still being delivered.
        """
        if self._scan is not None:
            return
        if self._cut_short:
            if not self._drained or self.loaded > self._max_loaded // 2:
                return
        elif self.known_to - now_ms > self._window_ms // 2:
            return
        # The window's end never goes back, not even when the clock is set back.
        high = max(now_ms + self._window_ms, self.known_to)
        self._cut_short = self._drained = False
        queue = self._queue()
        if not self.beyond and self.known_to:
            self.known_to = high
            self.floor = max(self.floor, self._first_offset(queue.next_offset))
            return
        at = max(self.floor, queue.min_offset)
        self._scan = _Scan(at, queue.next_offset, self.known_to, high)
        self.beyond = 0

    def scan(self, count: int) -> int:
        """Look at up to `count` units of the scan; return how many waiting messages were found."""
        scan = self._scan
        if scan is None:
            return 0
        pending = 0
        queue = self._queue()
        scan.at = max(scan.at, self.floor, queue.min_offset)
        units = queue.units(scan.at, min(count, scan.end - scan.at)) if scan.at < scan.end else None
        for physical_offset, size, tags_code in units or ():
            offset = scan.at
            scan.at += 1
            if size == _NOT_WRITTEN and scan.first_pending < 0:
                scan.first_pending = offset
            if size != PLACEHOLDER_SIZE:
                pending += self._scanned(scan, self._code(physical_offset, size, tags_code), offset)
        if units is None:  # a file that has left the disk
            scan.at += queue.units_per_file - scan.at % queue.units_per_file
        if scan.at >= scan.end:
            floor = scan.first_pending if scan.first_pending >= 0 else scan.end
            self.floor = max(self.floor, floor)
            self.known_to = max(self.known_to, scan.high) if not self._cut_short else scan.high
            self._scan = None
            for slot, late in self._late.items():
                if (found := self._slots.get(slot)) is None:
                    self._slots[slot] = late
                else:
                    found.extend(late)
            self._late.clear()
        return pending

    def _scanned(self, scan: _Scan, code: int, offset: int) -> int:
        if self._is_done(code, offset):
            return 0
        if scan.first_pending < 0:
            scan.first_pending = offset
        recall = code < 0
        slot = abs(code)
        if slot >= scan.low:
            self._add(slot, offset, recall=recall)
        return 0 if recall else 1

    def raise_floor(self, count: int) -> int:
        """Move `floor` over up to `count` messages that are done; return the new floor."""
        queue = self._queue()
        floor = max(self.floor, queue.min_offset)
        end = min(floor + count, queue.next_offset)
        while floor < end:
            units = queue.units(floor, end - floor)
            if units is None:  # a file that has left the disk
                floor += queue.units_per_file - floor % queue.units_per_file
            for physical_offset, size, tags_code in units or ():
                missing = size == PLACEHOLDER_SIZE
                waits = size == _NOT_WRITTEN
                if waits or not (
                    missing or self._is_done(self._code(physical_offset, size, tags_code), floor)
                ):
                    end = floor
                    break
                floor += 1
        self.floor = floor
        return floor

    def needed_code(self, offset: int, saved: TimerProgress, saved_to: int) -> int:
        """Return the tags code of the message at a queue offset if it is still needed, else 0.

        A message is needed while it waits. A recall is needed until its slot is done by the present
        progress and by `saved` as well; `saved` covers records below commit-log offset `saved_to`.
        """
        unit = self._queue().unit(offset)
        if unit is None or unit.size == PLACEHOLDER_SIZE:
            return 0
        code = self._code(*unit)
        done = self._is_done(code, offset)
        if code < 0:
            done &= unit.physical_offset < saved_to and saved.is_slot_done(-code, offset)
        return 0 if done else code

    def _code(self, physical_offset: int, size: int, tags_code: int) -> int:
        if -MIN_TIME_CODE < tags_code < MIN_TIME_CODE:
            return self._code_of_record(physical_offset, size)
        return tags_code

    def _is_done(self, code: int, offset: int) -> bool:
        # A record that does not say when it is due has the code 0 and counts as done.
        if code > 0:
            return self._progress.is_done(code, offset)
        return code == 0 or self._progress.is_slot_done(-code, offset)

    def _first_offset(self, default: int) -> int:
        return min((slot.first(default) for slot in self._slots.values()), default=default)

    def _cut(self) -> None:
        """Drop the latest slots until a quarter of the room is free; a scan finds them later."""
        order = sorted(self._order)
        while self.loaded > self._max_loaded * 3 // 4 and len(order) > 1:
            last = order.pop()
            for slots in (self._slots, self._late):
                if (cut := slots.pop(last, None)) is not None:
                    self.loaded -= len(cut)
                    self.beyond += len(cut.messages)
        # A sorted list is a heap.
        self._order = order
        end = order[-1] + 1
        self._cut_short = True
        self.known_to = min(self.known_to, end)
        if self._scan is not None:
            self._scan.high = end

"""Which timed messages the window holds, how it moves on, and that it is bounded and loses none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from cometmq.broker.delays.timer_progress import WHOLE_SLOT, Segment, TimerProgress
from cometmq.broker.delays.timer_window import MIN_TIME_CODE, TimerWindow
from cometmq.store.queues.consume_queue import NO_MESSAGE, Unit

START = 1_700_000_000_000
MINUTE = 60_000
PER_FILE = 10
# What a Java broker leaves in the timer queue's units: the hash of tags.
HASH = 433_164


class Queue:
    """The timer queue: `append` gives it the message that is due at a time."""

    units_per_file = PER_FILE

    def __init__(self) -> None:
        self.all: list[Unit] = []
        self.min_offset = 0
        self.read = 0

    @property
    def next_offset(self) -> int:
        return len(self.all)

    def append(self, code: int) -> int:
        """Its queue offset. A negative code is a recall's."""
        self.all.append(Unit(len(self.all) * 100, 100, code))
        return len(self.all) - 1

    def lose(self, offset: int) -> None:
        self.all[offset] = NO_MESSAGE

    def unit(self, offset: int) -> Unit | None:
        return self.all[offset] if self.min_offset <= offset < len(self.all) else None

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]] | None:
        if offset < self.min_offset:
            return None
        end = min(offset + count, offset + PER_FILE - offset % PER_FILE, len(self.all))
        self.read += end - offset
        return iter(self.all[offset:end])


class Timers:
    """A window over a queue, as the broker's timers use it."""

    def __init__(self, window_ms: int = 10 * MINUTE, max_loaded: int = 100) -> None:
        self.queue = Queue()
        self.progress = TimerProgress()
        self.codes: dict[int, int] = {}
        self.window = TimerWindow(
            lambda: cast("Any", self.queue),
            self.progress,
            lambda place, _size: self.codes[place],
            window_ms=window_ms,
            max_loaded=max_loaded,
        )

    def put(self, after_ms: int, *, recall: bool = False) -> int:
        """Store a message, or a recall, and report it to the window."""
        slot = START + after_ms
        offset = self.queue.append(-slot if recall else slot)
        self.progress.arrived(slot, offset)
        self.window.add(slot, offset, recall=recall)
        return offset

    def found(self) -> int:
        """Scan to the end; how many waiting messages were found."""
        pending = 0
        while self.window.scanning:
            pending += self.window.scan(3)
        return pending

    def move_to(self, after_ms: int) -> int:
        self.window.move(START + after_ms)
        return self.found()

    def take(self) -> tuple[int, list[int], list[int]]:
        """Take the first slot and note that it is done; its time counts from the start."""
        slot, messages, recalls = self.window.take_first()
        self.progress.finish(slot)
        first_of = self.window.first_of
        return (
            slot - START,
            list(messages[first_of(messages) :]),
            list(recalls[first_of(recalls) :]),
        )


@pytest.fixture
def timers() -> Timers:
    """A window of ten minutes that has been moved to the start."""
    timers = Timers()
    timers.move_to(0)
    return timers


def test_what_is_due_soon_is_held_and_what_is_due_later_counted(timers: Timers) -> None:
    timers.put(5 * MINUTE)
    timers.put(11 * MINUTE)
    timers.put(10 * MINUTE)
    timers.put(12 * MINUTE, recall=True)
    assert (timers.window.loaded, timers.window.beyond) == (1, 2)
    assert timers.window.first_slot == START + 5 * MINUTE


def test_slots_come_in_the_order_of_time_and_messages_in_that_of_the_queue(
    timers: Timers,
) -> None:
    for minute in (3, 1, 2, 1, 3, 1):
        timers.put(minute * MINUTE)
    timers.put(1 * MINUTE, recall=True)
    assert timers.take() == (1 * MINUTE, [1, 3, 5], [6])
    assert timers.take() == (2 * MINUTE, [2], [])
    assert timers.take() == (3 * MINUTE, [0, 4], [])
    assert timers.window.first_slot is None
    assert timers.window.loaded == 0


def test_what_comes_during_a_scan_stands_behind_what_the_scan_finds(timers: Timers) -> None:
    for _ in range(8):
        timers.put(11 * MINUTE)
    timers.window.move(START + 6 * MINUTE)
    timers.window.scan(3)
    arrived = [timers.put(11 * MINUTE), timers.put(11 * MINUTE, recall=True)]
    assert timers.window.scanning
    timers.found()
    assert timers.take() == (11 * MINUTE, [*range(8), arrived[0]], [arrived[1]])


def test_what_is_put_back_stands_in_front_of_what_has_come_since(timers: Timers) -> None:
    for _ in range(4):
        timers.put(MINUTE)
    slot, messages, recalls = timers.window.take_first()
    timers.put(MINUTE)
    timers.window.put_back(slot, messages[2:], recalls)
    assert timers.window.loaded == 3
    assert timers.take() == (MINUTE, [2, 3, 4], [])


def test_what_lies_below_the_floor_was_rolled_and_comes_by_its_copy(timers: Timers) -> None:
    first = timers.put(MINUTE)
    timers.put(MINUTE, recall=True)
    copy = timers.put(MINUTE)
    recall = timers.put(MINUTE, recall=True)
    assert first < copy
    timers.window.floor = copy
    assert timers.take() == (MINUTE, [copy], [recall])


# How it moves on


def test_a_window_that_lasts_is_not_scanned_for(timers: Timers) -> None:
    for minute in range(1, 40):
        timers.put(minute * MINUTE)
    timers.queue.read = 0
    assert timers.move_to(5 * MINUTE - 1) == 0
    assert timers.queue.read == 0
    # Half of it is over: what is due in the ten minutes from now is looked for.
    assert timers.move_to(5 * MINUTE) == 39
    assert timers.queue.read == 39
    assert timers.window.known_to == START + 15 * MINUTE
    assert timers.window.loaded == 14
    assert timers.window.beyond == 25
    assert [timers.take()[0] for _ in range(14)] == [n * MINUTE for n in range(1, 15)]


def test_if_nothing_waits_beyond_it_moves_without_reading(timers: Timers) -> None:
    offset = timers.put(6 * MINUTE)
    timers.queue.read = 0
    timers.move_to(5 * MINUTE)
    assert timers.queue.read == 0
    assert timers.window.known_to == START + 15 * MINUTE
    assert timers.window.floor == offset, "all below the one message that waits is done"
    assert timers.take()[0] == 6 * MINUTE
    timers.move_to(12 * MINUTE)
    assert timers.window.floor == timers.queue.next_offset


def test_an_old_queue_is_found_at_the_start() -> None:
    timers = Timers()
    for minute in (1, 30, 2, 3):
        timers.queue.append(START + minute * MINUTE)
    timers.queue.append(-(START + 2 * MINUTE))
    timers.progress.finish(START + 1 * MINUTE)
    assert timers.move_to(1 * MINUTE) == 3, "one is done, and a recall is no message"
    assert timers.window.beyond == 1
    assert timers.window.floor == 1, "the first that waits"
    assert timers.take() == (2 * MINUTE, [2], [4])
    assert timers.take() == (3 * MINUTE, [3], [])


def test_a_scan_takes_the_steps_that_it_is_given() -> None:
    timers = Timers()
    for _ in range(25):
        timers.queue.append(START + MINUTE)
    timers.window.move(START)
    reads = []
    while timers.window.scanning:
        assert timers.window.first_slot is None, "nothing may be taken before all of it is known"
        timers.queue.read = 0
        timers.window.scan(4)
        reads.append(timers.queue.read)
    # A step ends with its file, too.
    assert reads == [4, 4, 2, 4, 4, 2, 4, 1]
    assert timers.take()[1] == list(range(25))
    assert timers.window.scan(4) == 0, "no scan is under way"


def test_what_arrives_during_a_scan_is_held_once() -> None:
    timers = Timers()
    for _ in range(5):
        timers.queue.append(START + MINUTE)
    timers.window.move(START)
    timers.window.scan(2)
    soon, late = timers.put(MINUTE), timers.put(20 * MINUTE)
    timers.found()
    assert timers.window.beyond == 1
    # What arrived is held before what the scan found behind it, but queue order counts.
    assert timers.take() == (MINUTE, [0, 1, 2, 3, 4, soon], [])
    assert timers.move_to(15 * MINUTE) == 1
    assert timers.take() == (20 * MINUTE, [late], [])


def test_units_without_a_message_are_passed_over() -> None:
    timers = Timers()
    for minute in (1, 2, 3):
        timers.queue.append(START + minute * MINUTE)
    timers.queue.lose(1)
    timers.queue.append(0)  # a record that does not say when it is due
    timers.codes[300] = 0
    assert timers.move_to(0) == 2
    assert [timers.take()[1] for _ in range(2)] == [[0], [2]]


def test_a_file_that_left_the_disk_during_a_scan_is_passed_over() -> None:
    timers = Timers()
    for _ in range(3 * PER_FILE):
        timers.queue.append(START + MINUTE)
    timers.window.move(START)
    timers.window.scan(4)
    timers.queue.min_offset = 2 * PER_FILE
    timers.found()
    assert timers.take()[1] == [0, 1, 2, 3, *range(2 * PER_FILE, 3 * PER_FILE)]


def test_the_record_says_when_a_message_of_java_is_due() -> None:
    timers = Timers()
    for code, minute in ((HASH, 2), (-HASH, 3), (MIN_TIME_CODE - 1, 4), (START + MINUTE, 1)):
        timers.codes[timers.queue.append(code) * 100] = START + minute * MINUTE
    assert timers.move_to(0) == 4
    assert [timers.take() for _ in range(4)] == [
        (MINUTE, [3], []),
        (2 * MINUTE, [0], []),
        (3 * MINUTE, [1], []),
        (4 * MINUTE, [2], []),
    ]


def test_a_clock_that_is_set_back_takes_nothing_out_of_the_window(timers: Timers) -> None:
    timers.put(20 * MINUTE)
    timers.move_to(15 * MINUTE)
    known_to = timers.window.known_to
    timers.put(24 * MINUTE)
    timers.put(40 * MINUTE)
    assert timers.move_to(-60 * MINUTE) == 0
    assert timers.window.known_to == known_to
    assert timers.take()[0] == 20 * MINUTE
    assert timers.take()[0] == 24 * MINUTE


# How it is bounded


def test_a_window_that_gets_too_full_ends_earlier() -> None:
    timers = Timers(max_loaded=8)
    timers.move_to(0)
    for minute in (5, 1, 2, 3, 4, 5, 1, 2):
        timers.put(minute * MINUTE)
    assert timers.window.loaded == 8
    timers.put(3 * MINUTE)
    # Down to three quarters of its room, the latest slots first.
    assert timers.window.loaded == 6
    assert timers.window.beyond == 3
    assert timers.window.known_to == START + 3 * MINUTE + 1
    timers.put(4 * MINUTE)
    assert timers.window.beyond == 4, "what belongs behind the new end is not held"
    assert timers.window.loaded == 6


def test_what_was_dropped_is_found_again_in_time() -> None:
    timers = Timers(max_loaded=8)
    timers.move_to(0)
    for minute in (1, 2, 3, 4, 5):
        for _ in range(2):
            timers.put(minute * MINUTE)
    assert timers.window.known_to < START + 5 * MINUTE
    seen = []
    for minute in (1, 2, 3, 4, 5):
        timers.move_to(minute * MINUTE)
        assert timers.window.first_slot == START + minute * MINUTE
        seen.append(timers.take()[1])
        assert timers.window.loaded <= 8
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_one_slot_may_have_more_than_the_room_there_is() -> None:
    timers = Timers(max_loaded=8)
    timers.move_to(0)
    for _ in range(30):
        timers.put(MINUTE)
    assert timers.window.loaded == 30
    timers.put(2 * MINUTE)
    assert timers.window.loaded == 30
    assert timers.window.beyond == 1
    assert timers.take()[1] == list(range(30))
    timers.move_to(MINUTE)
    assert timers.take() == (2 * MINUTE, [30], [])


def test_a_window_cut_short_is_not_scanned_for_before_something_was_taken() -> None:
    timers = Timers(max_loaded=8)
    timers.move_to(0)
    for minute in range(1, 11):
        timers.put(minute * 30_000)
    timers.queue.read = 0
    for second in range(30):
        timers.move_to(second * 1_000)
    assert timers.queue.read == 0, "it would be cut at the same place again"
    while timers.window.loaded > 4:
        timers.take()
    timers.move_to(4 * 30_000)
    assert timers.queue.read > 0
    assert timers.window.loaded > 4


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_taken_once_and_on_time(seed: int) -> None:
    rng = random.Random(seed)
    timers = Timers(window_ms=rng.choice([2, 10, 60]) * MINUTE, max_loaded=rng.choice([4, 20, 500]))
    timers.move_to(0)
    due: dict[int, int] = {}
    taken: list[tuple[int, int]] = []
    for minute in range(120):
        now_ms = minute * MINUTE
        for _ in range(rng.randrange(4) if minute < 60 else 0):
            after_ms = now_ms + rng.randrange(1, 60) * MINUTE
            due[timers.put(after_ms)] = after_ms
        timers.move_to(now_ms)
        while (first := timers.window.first_slot) is not None and first <= START + now_ms:
            slot, messages, _ = timers.take()
            taken += [(offset, slot) for offset in messages]
            assert slot == now_ms, "no earlier and no later"
            timers.move_to(now_ms)
    assert len(taken) == len(due)
    assert dict(taken) == due


# What is done, and what is still needed


def test_the_floor_rises_over_what_is_done(timers: Timers) -> None:
    for minute in (1, 2, 1, 3, 1):
        timers.put(minute * MINUTE)
    timers.queue.lose(2)
    assert timers.window.raise_floor(100) == 0
    timers.take()
    assert timers.window.raise_floor(100) == 1, "the second is due later and waits"
    timers.take()
    assert timers.window.raise_floor(1) == 2, "no further than it is told"
    assert timers.window.raise_floor(100) == 3
    timers.take()
    assert timers.window.raise_floor(100) == 5 == timers.queue.next_offset
    assert timers.window.raise_floor(100) == 5


def test_the_floor_stays_below_a_unit_that_waits_for_room_on_the_disk(timers: Timers) -> None:
    """It passed over such a unit, and the message was never delivered: seed 7000616."""
    timers.put(MINUTE)
    waiting = timers.put(2 * MINUTE)
    timers.take()
    written = timers.queue.all[waiting]
    timers.queue.all[waiting] = Unit(0, 0, 0)
    assert timers.window.raise_floor(100) == waiting
    timers.queue.all[waiting] = written
    assert timers.window.raise_floor(100) == waiting
    assert list(timers.window.take_first()[1]) == [waiting]


def test_the_floor_passes_over_files_that_left_the_disk(timers: Timers) -> None:
    for _ in range(2 * PER_FILE):
        timers.queue.append(START + MINUTE)
    timers.queue.append(START + 2 * MINUTE)
    timers.queue.min_offset = PER_FILE + 3
    timers.progress.finish(START + MINUTE)
    assert timers.window.raise_floor(100) == 2 * PER_FILE


def test_a_message_is_needed_while_it_waits_and_a_recall_until_that_is_saved(
    timers: Timers,
) -> None:
    message, recall = timers.put(MINUTE), timers.put(MINUTE, recall=True)
    lost = timers.put(MINUTE)
    timers.queue.lose(lost)
    slot = START + MINUTE
    before, after = TimerProgress(), TimerProgress([Segment(0, slot, WHOLE_SLOT)])
    all_saved = timers.queue.next_offset * 100

    def needed(saved: TimerProgress, saved_to: int) -> list[int]:
        offsets = (message, recall, lost, 99)
        return [timers.window.needed_code(offset, saved, saved_to) for offset in offsets]

    assert needed(before, 0) == [slot, -slot, 0, 0]
    timers.take()
    # After a kill the broker would go on from `saved`, and must find the recall then.
    assert needed(before, all_saved) == [0, -slot, 0, 0]
    assert needed(after, recall * 100) == [0, -slot, 0, 0]
    assert needed(after, all_saved) == [0, 0, 0, 0]

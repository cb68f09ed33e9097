"""Run random lives of delayed messages, and compare them with a plain dictionary.

A life puts messages by level and by time, recalls some, lets time pass, sets the clock, saves,
stops, is killed or loses its power; files of the log are deleted while messages wait in them.
Whatever happens, no message comes early or twice, none is lost, and no recalled message comes at
all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.unit.store.store_box import CLIENT, Box, ManualClock, QuickDisk

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.levels import NEVER_MS
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.delays.state import DelayState
from cometmq.broker.delays.timer import recall_key
from cometmq.broker.incoming import IncomingMessage
from cometmq.model import properties as p
from cometmq.model.topic import DataVersion
from cometmq.protocol.fastjson.dialect import decode_body, pretty
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import DiskUsage
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

LEVELS_MS = (1_000, 5_000, 60_000, 1_800_000)
QUEUES = (("orders", 0), ("orders", 1), ("audit", 0))
PRECISION_MS = 1_000
# Milliseconds and messages: so small that a window is moved and cut all the time, and as large as none
# of these lives needs.
SMALL_WINDOWS = ((4_000, 20), (60_000, 20))
LARGE_WINDOW = (3_600_000, 100_000)


def usage(*, full: bool) -> DiskUsage:
    """Return the use of a disk; if `full`, above diskSpaceCleanForciblyRatio, where files are
    deleted whatever their age.
    """
    return DiskUsage(1 << 30, (1 << 27) if full else (1 << 29))


class FillingDisk(QuickDisk):
    full = False

    def usage(self, path: Path) -> DiskUsage:
        return usage(full=self.full)


class FillingFaultDisk(VirtualDisk):
    full = False

    def modified_ms(self, path: Path) -> int:
        return ManualClock().value

    def usage(self, path: Path) -> DiskUsage:
        return usage(full=self.full)


@dataclass
class Expected:
    """A message of the model. `due_ms` is by the wall clock; `elapsed_ms` is the true time when it
    was put; `ahead_ms` is the sum of all that the clock had been set forward by then.
    """

    place: int
    due_ms: int
    delay_ms: int
    elapsed_ms: int
    ahead_ms: int
    timed: bool
    topic: str
    recalled_at: int | None = None
    record_place: int = -1
    delivered: bool = False


class Life:
    """One life. With `power`, each kill also loses what was not flushed."""

    def __init__(self, root: Path, seed: int, *, power: bool, clock_jumps: bool) -> None:
        self.rng = random.Random(seed)
        self.box = Box(
            root,
            mapped_file_size_commit_log=16 * 1024,
            mapped_file_size_consume_queue=20 * 50,
            message_delay_level="1s 5s 1m 30m",
            message_index_enable=False,
            delete_when="",
        )
        self.disk: FillingFaultDisk | FillingDisk = (
            FillingFaultDisk(Randomness(seed)) if power else FillingDisk()
        )
        self.power = power
        self.clock_jumps = clock_jumps
        self.elapsed_ms = 0
        self.ahead_ms = 0
        self.set_back = self.rolled = False
        self.expected: dict[str, Expected] = {}
        self.read_to = dict.fromkeys(QUEUES, 0)
        self.count = 0
        self.gone_files = 0
        self.windows: tuple[tuple[int, int], ...] = SMALL_WINDOWS
        self.saved_text: str | None = None
        self.unsaved: DelayState | None = None
        self.open()

    @property
    def now_ms(self) -> int:
        return self.box.clock.value

    def open(self) -> None:
        self.store: MessageStore = self.box.open(self.disk)
        window_ms, max_loaded = self.rng.choice(self.windows)
        self.delayed = DelayedMessages(
            self.store, PRECISION_MS, window_ms=window_ms, max_loaded=max_loaded
        )
        self.put_rule = MessagePut(BrokerConfig(), self.store, self.box.clock, self.delayed)
        state = None
        if self.saved_text is not None:
            state = decode_body(self.saved_text.encode(), DelayState)
        self.delayed.open(state, self.now_ms)
        self.store.cleaner.on_expiring.append(self.roll)
        self.unsaved = None

    # -- what may happen --

    def put(self) -> None:
        self.count += 1
        unique_id = f"{self.count:032X}"
        topic, queue_id = self.rng.choice(QUEUES)
        properties = {p.UNIQ_CLIENT_MESSAGE_ID: unique_id}
        timed = self.rng.random() < 0.6
        if timed:
            delay_ms = self.rng.choice((1, 700, 1_000, 3_000, 20_000, 90_000, 4_000_000))
            delay_ms = self.rng.randint(1, delay_ms)
            due_ms = self.now_ms + delay_ms
            properties[p.TIMER_DELIVER_MS] = str(due_ms)
        else:
            level = self.rng.randint(1, len(LEVELS_MS))
            delay_ms = LEVELS_MS[level - 1]
            due_ms = self.now_ms + delay_ms
            properties[p.DELAY_TIME_LEVEL] = str(level)
        message = IncomingMessage(topic, queue_id, b"x" * 20, properties, self.now_ms, CLIENT)
        _, place = self.put_rule.put(message)
        self.expected[unique_id] = Expected(
            place, due_ms, delay_ms, self.elapsed_ms, self.ahead_ms, timed, topic
        )

    def recall(self) -> None:
        waiting = [
            unique_id
            for unique_id, message in self.expected.items()
            if message.timed
            and not message.delivered
            and self.delayed.timers.slot_of(message.due_ms) + 1 > self.now_ms
        ]
        if not waiting:
            return
        unique_id = self.rng.choice(waiting)
        message = self.expected[unique_id]
        properties = {
            p.UNIQ_CLIENT_MESSAGE_ID: unique_id,
            p.TIMER_DEL_UNIQKEY: recall_key(message.topic, unique_id),
            p.TIMER_DELIVER_MS: str(self.delayed.timers.slot_of(message.due_ms) + 1),
        }
        order = IncomingMessage(message.topic, 0, b"0", properties, self.now_ms, CLIENT)
        _, place = self.put_rule.put(order)
        if message.recalled_at is None:
            message.recalled_at = place

    def wait(self) -> None:
        self.pass_time(self.rng.choice((1, 50, 300, 1_000, 1_500, 5_000, 40_000)))

    def wait_long(self) -> None:
        self.pass_time(self.rng.choice((600_000, 2_000_000)))

    def pass_time(self, ms: int) -> None:
        self.elapsed_ms += ms
        self.box.clock.value += ms

    def set_clock(self) -> None:
        if not self.clock_jumps:
            return
        ms = self.rng.choice((-3_600_000, -61_000, -1_500, -20, 1_500, 100_000))
        self.box.clock.value += ms
        self.ahead_ms += max(ms, 0)
        self.set_back |= ms < 0

    def run_a_little(self) -> None:
        """Deliver some of the messages that are due, so that a kill may come in between."""
        self.delayed.run(self.now_ms, self.rng.randint(1, 4))
        self.check_arrivals()

    def run_all(self) -> None:
        while self.delayed.run(self.now_ms, 7):
            pass
        self.check_arrivals()
        assert self.delayed.next_due_ms() > self.now_ms
        for unique_id, message in self.expected.items():
            if message.delivered or message.recalled_at is not None:
                continue
            if message.timed:
                late = message.due_ms + PRECISION_MS <= self.now_ms
            else:
                # What left its level for the timer is as precise as that.
                due_ms = message.due_ms + PRECISION_MS * self.rolled
                late = not self.set_back and due_ms <= self.now_ms
            assert not late, f"{unique_id} is late: {message}, now {self.now_ms}"

    def flush(self) -> None:
        self.store.flush_all()

    def roll(self, end_place: int) -> int:
        self.rolled = True
        on_disk = DelayState()
        if self.saved_text is not None:
            on_disk = decode_body(self.saved_text.encode(), DelayState)
        return self.delayed.roll(end_place, self.now_ms, self.rng.randint(1, 4), on_disk)

    def roll_a_little(self) -> None:
        """Copy some of the messages that wait in the oldest file, so that a kill may come in
        between.
        """
        if len(self.store.commit_log.files.files) > 1:
            self.roll(self.store.commit_log.files.files[0].end)

    def clean(self) -> None:
        """Delete the oldest files, perhaps at once, perhaps when their copies are flushed."""
        self.disk.full = True
        before = self.store.commit_log.min_offset
        self.store.cleaner.run_now()
        if self.rng.random() < 0.7:
            self.store.flush_all()
            self.store.cleaner.run_now()
        self.disk.full = False
        self.gone_files += (self.store.commit_log.min_offset - before) // (16 * 1024)

    def save(self) -> None:
        """Save as `Delays` does: write the captured state once the log is on disk that far."""
        if self.unsaved is not None:
            end = self.unsaved.commit_log_offset
            assert end is not None
            if self.store.flushed_offset >= end:
                self.saved_text = pretty(self.unsaved)
        self.unsaved = self.delayed.capture(DataVersion())

    def stop(self) -> None:
        self.store.flush_all()
        self.save()
        self.save()
        self.store.close()
        self.open()

    def kill(self) -> None:
        if self.power:
            assert isinstance(self.disk, VirtualDisk)
            self.disk.lose_power()
            self.store._let_go()
        else:
            self.box.crash(self.store)
        self.open()
        self.forget_what_was_lost()

    # -- what must be so --

    def forget_what_was_lost(self) -> None:
        """Forget what a power failure took with the end of the log: puts, recalls and
        deliveries.
        """
        end = self.store.commit_log.end
        for unique_id, message in list(self.expected.items()):
            if message.place >= end:
                del self.expected[unique_id]
            elif message.recalled_at is not None and message.recalled_at >= end:
                message.recalled_at = None
            if message.record_place >= end:
                message.record_place = -1
            message.delivered = 0 <= message.record_place < self.store.commit_log.min_offset
        self.read_to = {
            (topic, queue_id): self.store.min_offset(topic, queue_id) for topic, queue_id in QUEUES
        }
        self.check_arrivals(early=False)

    def check_arrivals(self, *, early: bool = True) -> None:
        for topic, queue_id in QUEUES:
            for record in self.new_records(topic, queue_id):
                unique_id = record.properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
                message = self.expected[unique_id]
                assert not message.delivered, f"{unique_id} came twice: {message}"
                assert message.recalled_at is None, f"{unique_id} was recalled: {message}"
                message.delivered = True
                message.record_place = record.physical_offset
                if early:
                    self.check_not_early(unique_id, message)

    def new_records(self, topic: str, queue_id: int) -> Iterator[StoredRecord]:
        queue = self.store.queue(topic, queue_id)
        while (unit := queue.unit(self.read_to[topic, queue_id])) is not None:
            self.read_to[topic, queue_id] += 1
            record = self.store.record_at(unit.physical_offset)
            assert record is not None
            yield decode_record(record)

    def check_not_early(self, unique_id: str, message: Expected) -> None:
        if message.timed:
            assert self.now_ms >= message.due_ms, f"{unique_id} is early: {message}"
        else:
            waited_ms = self.elapsed_ms - message.elapsed_ms + self.ahead_ms - message.ahead_ms
            assert waited_ms >= message.delay_ms, f"{unique_id} is early: {message}"

    def end(self) -> None:
        """Let everything fall due, and check that every message that was not recalled has come."""
        if self.rng.random() < 0.8:
            # It is a long time: small windows would be scanned for in most of a life's run time.
            self.windows = (LARGE_WINDOW,)
            self.stop()
        while (due_ms := self.delayed.next_due_ms()) != NEVER_MS:
            self.pass_time(max(1, due_ms - self.now_ms))
            self.run_all()
        assert self.delayed.pending == 0
        for unique_id, message in self.expected.items():
            assert message.delivered == (message.recalled_at is None), f"{unique_id}: {message}"
        self.store.close()


def live(root: Path, seed: int, steps: int, *, power: bool, clock_jumps: bool) -> Counter[str]:
    """Run one life; return how often each thing happened."""
    counts = Counter({"steps": steps})
    life = Life(root, seed, power=power, clock_jumps=clock_jumps)
    actions = (
        [life.put] * 40
        + [life.recall] * 6
        + [life.wait] * 14
        + [life.run_a_little] * 14
        + [life.run_all] * 8
        + [life.flush] * 4
        + [life.save] * 6
        + [life.roll_a_little] * 2
        + [life.clean] * 2
        + [life.wait_long, life.set_clock, life.set_clock, life.stop, life.kill, life.kill]
    )
    for _ in range(steps):
        action = life.rng.choice(actions)
        counts[action.__name__] += 1
        action()
    life.end()
    counts["files gone"] = life.gone_files
    return counts

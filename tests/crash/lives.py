"""Runs of a store that end in a crash, and what must hold after each.

Everything follows from a seed: which messages, which flushes, where the disk fails, what a power loss
takes. `Campaign(seed).run()` raises AssertionError, or whatever the store raised against the rules.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.cleaning import clean
from tests.crash.replay import compare, replayed
from tests.unit.store.store_box import CLIENT, HOST, LOG_FILE, ManualClock
from tests.waits import WAIT_S

from cometmq.errors import StoreBusyError, StoreError, StoreFullError
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.record import StoredRecord, decode_record, decode_records
from cometmq.runtime.randomness import Randomness
from cometmq.store.config import StoreConfig
from cometmq.store.offline.repair import check
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

QUEUES = [("a", 0), ("a", 1), ("b", 0)]
ALWAYS = 1e9

T = TypeVar("T")


class Message(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: str
    key: str

    def is_in(self, record: StoredRecord) -> bool:
        return self[:5] == (
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.body,
            record.properties,
        )


class Campaign:
    """The lives of one store directory."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = random.Random(seed)
        self.disk = VirtualDisk(Randomness(seed))
        self.clock = ManualClock()
        self.stored: dict[int, Message] = {}
        self.crash_count = 0
        self._unsure: dict[str, Message] = {}
        # Records of a topic below its offset belong to a life of it that was ended.
        self._deleted: dict[str, int] = {}
        # Below it retention has been; what the disk did not let go comes back without its keys.
        self._retired = 0
        self._numbers = itertools.count()
        pooled = self.rng.random() < 0.15
        self._deletes = self.rng.random() < 0.3
        self.config = StoreConfig(
            store_path_root_dir=root,
            mapped_file_size_commit_log=LOG_FILE * self.rng.choice((1, 4)),
            mapped_file_size_consume_queue=self.rng.choice((100, 2000)),
            max_hash_slot_num=20,
            max_index_num=self.rng.choice((30, 1000)),
            transient_store_pool_enable=pooled,
            delete_when="",
        )

    def run(self) -> int:
        """Returns how many crashes there were."""
        for _ in range(self.rng.randrange(2, 5)):
            flushed = self._live()
            self._die_while_recovering()
            store = self._open()
            self._verify(store, flushed)
            # The recovery itself leaves nothing that a second one sees differently.
            self._crash(store)
            store = self._open()
            self._verify(store, flushed)
            store.close()
            _, report = check(self.config, self.disk)
            assert report.findings == [], report.findings
        return self.crash_count

    # -- life and death --

    def new(self) -> MessageStore:
        return MessageStore(self.config, clock=self.clock, store_host=HOST, disk=self.disk)

    def _open(self) -> MessageStore:
        store = self.new()
        store.open()
        return store

    def _crash(self, store: MessageStore) -> None:
        self.disk.lose_power()
        self.disk.mend()
        self.crash_count += 1
        # Of a process that died only its lock has to go.
        store.abandon()

    def _arm(self, error: str, operations: int) -> None:
        """Fail the write operation that comes after so many others."""
        self.disk.fail("any", error, after=operations)

    def _live(self) -> int:
        """A life with faults, up to its end; the flushed offset then."""
        store = self._open()
        if self.rng.random() < 0.6:
            fault = self.rng.choice(("ENOSPC", "EIO"))
            self._arm(fault, self.rng.randrange(self.rng.choice((5, 40))))
        actions = self._actions(store)
        for _ in range(self.rng.randrange(60)):
            self.clock.value += self.rng.choice((0, 1, 500, 2000))
            try:
                self.rng.choice(actions)()
            except StoreFullError:
                self.disk.mend()
            except StoreError:
                if store.failure is None:
                    self.disk.mend()
        flushed = store.flushed_offset
        # A later life may find again, and keep, what the disk did not let go.
        self._retired = max(self._retired, store.commit_log.min_offset)
        if self.rng.random() < 0.2:
            end = store.commit_log.end
            try:
                store.close()
            except StoreError:
                self._crash(store)
                return flushed
            self.disk.mend()
            return end
        self._crash(store)
        return flushed

    def _die_while_recovering(self) -> None:
        """Crash at any write of the recovery, some times; or fail, which must do no harm either."""
        while self.rng.random() < 0.3:
            self._arm(self.rng.choice(("ENOSPC", "EIO")), self.rng.randrange(12))
            store = self.new()
            try:
                store.open()
            except StoreError:
                if self.rng.random() < 0.5:
                    self.disk.mend()
                    continue
            self._crash(store)

    # -- what a broker does --

    def _actions(self, store: MessageStore) -> list[Callable[[], object]]:
        actions: list[Callable[[], object]] = [lambda: self._put(store)] * 20
        actions += [lambda: self._put_batch(store)] * 2
        actions += [store.flush_commit_log] * 2
        actions += [store.flush_consume_queues, store.flush_all, store.flush_checkpoint]
        actions += [store.prepare_next, store.index.build, lambda: self._clean(store)]
        if self._deletes:
            actions += [lambda: self._delete(store)] * 2
        if self.config.uses_transient_pool:
            actions += [store.commit, store.commit, lambda: store.publish(10), store.publish] * 2
        return actions

    def _put(self, store: MessageStore) -> None:
        topic, queue_id = self.rng.choice(QUEUES)
        body = self.rng.randbytes(self.rng.choice((0, 10, 700)))
        tags = "t" * self.rng.choice((1, 30, 1000))
        key = f"k{next(self._numbers)}"
        properties = f"TAGS\x01{tags}\x02KEYS\x01{key}\x02"
        offset, place = store.append(
            store.queue(topic, queue_id), body, properties.encode(), java_hash(tags), 1, CLIENT
        )
        self._remember(place, Message(topic, queue_id, offset, body, properties, key))

    def _put_batch(self, store: MessageStore) -> None:
        topic, queue_id = self.rng.choice(QUEUES)
        keys = [f"k{next(self._numbers)}" for _ in range(5)]
        entries = [
            BatchEntry(0, self.rng.randbytes(200), f"KEYS\x01{key}\x02".encode()) for key in keys
        ]
        messages = [
            Message(topic, queue_id, -1, entry.body, entry.properties.decode(), key)
            for entry, key in zip(entries, keys, strict=True)
        ]
        self._unsure |= {message.properties: message for message in messages}
        first, places = store.append_batch(
            store.queue(topic, queue_id), entries, [0] * 5, 1, CLIENT
        )
        for number, (place, message) in enumerate(zip(places, messages, strict=True)):
            del self._unsure[message.properties]
            self._remember(place, message._replace(queue_offset=first + number))

    def _remember(self, place: int, message: Message) -> None:
        assert all(place != other for other in self.stored), "a place is given twice"
        self.stored[place] = message

    def _clean(self, store: MessageStore) -> None:
        used_ratio = self.rng.choice((0.5, 0.5, 0.87))
        self.disk.fill(int(self.disk.capacity_bytes * (1 - used_ratio)))
        clean(store)
        self.disk.free()

    def _delete(self, store: MessageStore) -> None:
        """Only the crash comes in between: what a failure leaves is a matter of unit tests."""
        topic, _ = self.rng.choice(QUEUES)
        with self.disk.at_peace():
            store.delete_topic(topic)
        self._deleted[topic] = store.commit_log.end
        for place in [place for place, message in self.stored.items() if message.topic == topic]:
            del self.stored[place]

    # -- what must hold --

    def _verify(self, store: MessageStore, flushed: int) -> None:
        log = store.commit_log
        gone = [place for place in self.stored if place < log.min_offset]
        lost = [place for place in self.stored if place >= log.end]
        assert all(place >= flushed for place in lost), (lost, flushed)
        for place in gone + lost:
            del self.stored[place]
        self._deleted = {topic: min(at, log.end) for topic, at in self._deleted.items()}
        self._retired = min(self._retired, log.end)
        assert store.index.catch_up(log.end, ALWAYS)
        queued = self._verify_queues(store)
        assert queued == set(self.stored), "messages without a place in their queue"
        for place in sorted(queued):
            self._verify_found(store, place, self.stored[place])

    def _verify_queues(self, store: MessageStore) -> set[int]:
        """The queues equal a replay of the log, are dense, and hold what was sent."""
        expected = replayed(store, self._deleted)
        queued = set()
        for topic, queue_id in QUEUES:
            compare(store, topic, queue_id, expected.get((topic, queue_id), []))
            for record in served(store, topic, queue_id):
                place = record.physical_offset
                if place not in self.stored:
                    self._adopt(record)
                assert self.stored[place].is_in(record)
                queued.add(place)
        return queued

    def _adopt(self, record: StoredRecord) -> None:
        """A batch that failed in its middle: its sender got an error, some of it was stored."""
        message = self._unsure.pop(record.properties)
        self.stored[record.physical_offset] = message._replace(queue_offset=record.queue_offset)

    def _verify_found(self, store: MessageStore, place: int, message: Message) -> None:
        """By place, by queue offset, by key and by time."""
        data = store.record_at(place)
        assert data is not None
        record = decode_record(data, check_crc=True)
        assert message.is_in(record)
        found = store.index.query(message.topic, message.key, 64, 0, 2**62).offsets
        assert place in found or place < self._retired, (message.key, found)
        queue = message.topic, message.queue_id
        at = when_free(partial(store.offset_by_time, *queue, record.store_timestamp))
        assert at <= message.queue_offset
        time_of_it = when_free(partial(store.store_timestamp, *queue, at))
        assert time_of_it == record.store_timestamp


def when_free(read: Callable[[], T]) -> T:
    """Read as clients do, who come again in a moment while a damaged unit is being repaired: on a
    busy machine one step of that takes longer than a call may.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return read()
        except StoreBusyError:
            assert time.monotonic() < deadline, "a repair goes on for ever"
            time.sleep(0.001)


def served(store: MessageStore, topic: str, queue_id: int) -> list[StoredRecord]:
    """All messages of a queue, read as a consumer would."""
    offset = store.min_offset(topic, queue_id)
    found: list[StoredRecord] = []
    while offset < store.max_offset(topic, queue_id):
        result = when_free(partial(store.get, topic, queue_id, offset, 32))
        assert result.next_begin_offset > offset, result
        for data in result.slices:
            found += decode_records(data)
        offset = result.next_begin_offset
    return found

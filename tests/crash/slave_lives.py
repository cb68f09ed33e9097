"""Lives of a slave's store that end in a crash, and mendings of its log that do.

As in `lives`, everything follows from a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cleaning import clean
from tests.crash.replay import ExpectedUnit, compare
from tests.unit.replication.two_logs import LogOf
from tests.unit.store.store_box import CLIENT, HOST, LOG_FILE, ManualClock

from cometmq.errors import StoreError, StoreFullError
from cometmq.model.java.hashing import java_hash
from cometmq.model.sysflag import TRANSACTION_PREPARED
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.replication.divergence import find_common, find_divergence
from cometmq.runtime.randomness import Randomness
from cometmq.store.config import StoreConfig
from cometmq.store.log.scan import LogScan, ScannedRecord
from cometmq.store.offline.rejoin import OwnLog, RejoinPlan, plan_rejoin, rejoin
from cometmq.store.offline.repair import check
from cometmq.store.offline.store import open_offline
from cometmq.store.queues.dispatch import tags_code_of
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

TOPICS = ("a", "b", "c")
QUEUES = 2


class TwoStores:
    """A master's store, which never fails, and one that copies its log, on disks in memory."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = VirtualDisk(Randomness(seed))
        self.crash_count = 0
        self._deleted: dict[str, list[int]] = {}
        # The file of a log of a large message is written in more than one window of numpy's.
        log_file = self.rng.choice((LOG_FILE, 4 * LOG_FILE, 1 << 18))
        self._master_config, self.config = (
            StoreConfig(
                store_path_root_dir=root / name,
                mapped_file_size_commit_log=log_file,
                mapped_file_size_consume_queue=self.rng.choice((100, 2000)),
                max_hash_slot_num=20,
                max_index_num=1000,
                delete_when="",
            )
            for name in ("master", "slave")
        )
        self._master_disk = VirtualDisk(Randomness(seed))
        self.master = self.new(self._master_config, self._master_disk)
        self.master.open()

    def new(self, config: StoreConfig, disk: VirtualDisk) -> MessageStore:
        return MessageStore(config, clock=self.clock, store_host=HOST, disk=disk)

    def open(self) -> MessageStore:
        store = self.new(self.config, self.disk)
        store.open()
        return store

    def crash(self, store: MessageStore) -> None:
        self.disk.lose_power()
        self.disk.mend()
        self.crash_count += 1
        store.abandon()

    # -- the master's life --

    def put(self, store: MessageStore, count: int) -> None:
        for _ in range(count):
            self.clock.value += self.rng.choice((0, 1, 500))
            topic, tags = self.rng.choice(TOPICS), "t" * self.rng.choice((0, 1, 300))
            queue = store.queue(topic, self.rng.randrange(QUEUES))
            body = self.rng.randbytes(self.rng.choice((0, 10, 700)))
            if self.rng.random() < 0.1:
                entries = [BatchEntry(0, self.rng.randbytes(100), b"")] * 4
                store.append_batch(queue, entries, [0] * 4, 1, CLIENT)
                continue
            store.append(
                queue,
                body,
                f"TAGS\x01{tags}\x02".encode() if tags else b"",
                java_hash(tags) if tags else 0,
                1,
                CLIENT,
                sys_flag=TRANSACTION_PREPARED if self.rng.random() < 0.1 else 0,
            )

    def receive(self, store: MessageStore, part: int) -> None:
        """Take up to `part` bytes of what the store lacks."""
        log = self.master.commit_log
        start = store.replicated_end
        if not store.commit_log.files.files and start == 0:
            # The beginning of the master's last file, or of its log.
            start = self._beginning
        if start >= log.end:
            return
        base, end, view = log.window(start)
        end = min(end, start + part)
        store.append_replicated(
            start, view[start - base : end - base], self.rng.choice((0, 5, 999))
        )

    _beginning = 0

    def receive_all(self, store: MessageStore) -> None:
        store.forget_partial_record()
        while store.replicated_end < self.master.commit_log.end:
            self.receive(store, 1 << 20)
        while store.publish():
            pass

    # -- what must hold --

    def verify(self, store: MessageStore) -> None:
        """The log is a part of the master's, and the queues are what a replay makes of it."""
        log, theirs = store.commit_log, self.master.commit_log
        for file in log.files.files:
            stop = min(file.end, log.end)
            base, _, view = theirs.window(file.base)
            assert base == file.base
            assert file.view[: stop - base] == view[: stop - base], (
                "bytes that are not the master's"
            )
        expected = _replayed(store, self._deleted)
        for (topic, queue_id), units in expected.items():
            compare(store, topic, queue_id, units)
        assert asyncio.run(find_divergence(store, LogOf(self.master))) is None

    def verify_whole(self, store: MessageStore) -> None:
        self.receive_all(store)
        self.verify(store)
        for queue in self.master.queues:
            last = queue.last_message()
            # A slave that began in the middle of the log knows no queue that ended before.
            if last is not None and last.physical_offset >= store.commit_log.min_offset:
                behind = store.max_offset(queue.topic, queue.queue_id)
                assert behind == queue.next_offset, (queue.topic, queue.queue_id)
        store.close()
        _, report = check(self.config, self.disk)
        assert report.findings == [], report.findings


def _replayed(
    store: MessageStore, deleted: Mapping[str, list[int]]
) -> dict[tuple[str, int], list[ExpectedUnit]]:
    """The units by queue, of the last life of each topic: `deleted` has the ends of the others.

    A queue without a message of that life is nobody's. The store may know of a deletion although a
    power loss took the records that report it.
    """
    log = store.commit_log
    begun = {
        topic: max([end for end in ends if end <= log.end] + [store.deleted_at(topic)])
        for topic, ends in deleted.items()
    }
    found: dict[tuple[str, int], list[ExpectedUnit]] = {}
    for record in LogScan(log.files, log.min_offset, check_crc=True):
        if record.sys_flag & TRANSACTION_PREPARED or record.offset < begun.get(record.topic, 0):
            continue
        units = found.setdefault((record.topic, record.queue_id), [])
        assert not units or record.queue_offset == units[-1][0] + 1, "a gap or a repetition"
        units.append((record.queue_offset, record.offset, record.size, tags_code_of(record, ())))
    return found


class SlaveLives(TwoStores):
    """Receives a log in parts, and crashes; it goes on from where it is."""

    def run(self) -> int:
        """Returns how many crashes there were."""
        self.put(self.master, self.rng.randrange(60))
        if self.rng.random() < 0.3:
            end = self.master.commit_log.end
            self._beginning = end - end % self.config.mapped_file_size_commit_log
        for _ in range(self.rng.randrange(2, 5)):
            flushed = self._live()
            self._die_while_opening()
            store = self.open()
            assert store.commit_log.end >= flushed
            self.verify(store)
            self.crash(store)
            store = self.open()
            self.verify(store)
            store.close()
        self.verify_whole(self.open())
        return self.crash_count

    def _live(self) -> int:
        store = self.open()
        if self.rng.random() < 0.5:
            self.disk.fail("any", self.rng.choice(("ENOSPC", "EIO")), after=self.rng.randrange(40))
        actions = self._actions(store)
        for _ in range(self.rng.randrange(60)):
            self.clock.value += self.rng.choice((0, 1, 500))
            try:
                self.rng.choice(actions)()
            except StoreFullError:
                self.disk.mend()
            except StoreError:
                if store.failure is None:
                    self.disk.mend()
        flushed = store.flushed_offset
        if self.rng.random() < 0.3:
            try:
                store.close()
            except StoreError:
                pass
            else:
                self.disk.mend()
                return flushed
        self.crash(store)
        return flushed

    def _actions(self, store: MessageStore) -> list[Callable[[], object]]:
        actions: list[Callable[[], object]] = [
            lambda: self.receive(store, self.rng.choice((1, 50, 700, 5000, 1 << 20)))
        ] * 20
        actions += [lambda: self.put(self.master, self.rng.choice((1, 1, 5, 200)))] * 6
        actions += [store.flush_commit_log, store.flush_all, store.flush_consume_queues]
        actions += [store.publish, store.prepare_next, store.index.build, store.flush_checkpoint]
        actions += [lambda: self._clean(store), store.forget_partial_record]
        actions += [self._delete]
        return actions

    def _delete(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.master.delete_topic(topic)
        self._deleted.setdefault(topic, []).append(self.master.commit_log.end)

    def _clean(self, store: MessageStore) -> None:
        used_ratio = self.rng.choice((0.5, 0.5, 0.87))
        self.disk.fill(int(self.disk.capacity_bytes * (1 - used_ratio)))
        clean(store)
        self.disk.free()

    def _die_while_opening(self) -> None:
        while self.rng.random() < 0.3:
            self.disk.fail("any", "EIO", after=self.rng.randrange(12))
            store = self.new(self.config, self.disk)
            try:
                store.open()
            except StoreError:
                if self.rng.random() < 0.5:
                    self.disk.mend()
                    continue
            self.crash(store)


class Rejoins(TwoStores):
    """Mends a log that has diverged, and crashes meanwhile."""

    def run(self) -> int:
        """Returns how many crashes there were."""
        self.put(self.master, self.rng.randrange(40))
        former = self.open()
        self.receive_all(former)
        common = former.commit_log.end
        self.put(former, self.rng.randrange(60))
        self.put(self.master, self.rng.randrange(60))
        former.flush_commit_log()
        if self.rng.random() < 0.5:
            self.crash(former)
        else:
            former.close()
        # As it is after a start: the crash may have taken records that nobody had waited for.
        former = self.open()
        tail = {
            record.offset: record.topic
            for record in LogScan(former.commit_log.files, common, check_crc=True)
        }
        former.close()
        kept = self._mend()
        store = self.open()
        # A blank behind the last common record may be that of both.
        file_size = self.config.mapped_file_size_commit_log
        assert store.commit_log.end in (common, -(-common // file_size) * file_size)
        self.verify(store)
        self.verify_whole(store)
        found: dict[int, str] = {}
        for place in kept:
            config = StoreConfig(
                store_path_root_dir=place,
                mapped_file_size_commit_log=self.config.mapped_file_size_commit_log,
            )
            with open_offline(config, self.disk) as part:
                found |= {
                    record.offset: record.topic
                    for record in part.records()
                    if isinstance(record, ScannedRecord)
                }
        missing = tail.items() - found.items()
        assert not missing, f"a part that was cut off is not kept: {sorted(missing)} in {kept}"
        return self.crash_count

    def _mend(self) -> set[Path]:
        """Mend the store, killed again and again; return where parts may be kept."""
        kept: set[Path] = set()
        while self.rng.random() < 0.7:
            self.disk.fail("any", "EIO", after=self.rng.randrange(30), times=None)
            try:
                plan = self._plan()
                if not plan.is_empty:
                    kept.add(plan.kept)
                    rejoin(plan, self.disk, clock=self.clock, master="m")
            except StoreError:
                pass
            self.disk.lose_power()
            self.disk.mend()
            self.crash_count += 1
            if self.rng.random() < 0.2:
                self.open().close()
        plan = self._plan()
        if not plan.is_empty:
            kept.add(plan.kept)
            rejoin(plan, self.disk, clock=self.clock, master="m")
        return {place for place in kept if self.disk.is_directory(place / "commitlog")}

    def _plan(self) -> RejoinPlan:
        with open_offline(self.config, self.disk) as store:
            log = OwnLog(store)
            common = asyncio.run(find_common(log, LogOf(self.master)))
            return plan_rejoin(store, log, common.offset, whole=common.whole)

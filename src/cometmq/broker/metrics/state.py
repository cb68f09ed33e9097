"""Collect the state of a broker: its tables, its clients, its store, what waits in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.groups.clients import Member
from cometmq.broker.metrics.series import PairSlots, is_system
from cometmq.broker.parts import Parts
from cometmq.broker.pulls.waiter import State
from cometmq.broker.traffic import Traffic
from cometmq.broker.transactions.service import TransactionService
from cometmq.metrics import catalogue as m
from cometmq.metrics.exposition import Exposition
from cometmq.protocol.codes import MQVersion
from cometmq.remoting.http.monitoring import LATENCY_BOUNDS_S

_STORAGE: Final = ("local", "disk")
_REMOTING: Final = "remoting"
_CONSUME_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}
# A client may name any number as its version; Java knows some five hundred.
_MAX_VERSION: Final = 1_000


class _Disk(NamedTuple):
    log_ratio: float
    queue_ratio: float
    free_bytes: int


class BrokerState:
    """Collects the figures of one broker. For the loop's thread only, but for `look_at_disk`."""

    def __init__(
        self,
        parts: Parts,
        delayed: DelayedMessages,
        transactions: TransactionService,
        traffic: Traffic,
        waiting_sends: Callable[[], int],
        pairs: PairSlots,
    ) -> None:
        self._parts = parts
        self._delayed = delayed
        self._transactions = transactions
        self._traffic = traffic
        self._waiting_sends = waiting_sends
        self._pairs = pairs
        self._disk: _Disk | None = None
        # Where the log begins, and the store timestamp there.
        self._oldest = (-1, -1)

    def look_at_disk(self) -> None:
        """Ask the disk how full it is. Blocks; for any thread."""
        config, disk = self._parts.store.config, self._parts.disk
        of_log = disk.usage(config.commit_log_path)
        of_queues = disk.usage(config.store_path_root_dir)
        self._disk = _Disk(of_log.used_ratio, of_queues.used_ratio, of_queues.free_bytes)

    def collect(self, out: Exposition) -> Iterator[None]:
        self._tables(out)
        yield from self._clients(out)
        self._waits(out)
        yield
        self._totals(out)
        yield
        self._storage(out)
        yield

    def _tables(self, out: Exposition) -> None:
        parts = self._parts
        out.one(m.BROKER_PERMISSION, parts.config.broker_permission)
        out.one(m.TOPIC_NUMBER, len(parts.topics.all()))
        out.one(m.GROUP_NUMBER, len(parts.groups.all()))

    def _clients(self, out: Exposition) -> Iterator[None]:
        clients = self._parts.clients
        producers: dict[tuple[str, ...], int] = {}
        for group in clients.producer_groups():
            for member in clients.producers(group):
                _count(producers, _labels(member))
                yield
        consumers: dict[tuple[str, ...], int] = {}
        for group in clients.consumer_groups():
            info = clients.consumer_group(group)
            if info is None:
                continue
            name = self._pairs.group(group)
            mode = _CONSUME_MODES.get(info.consume_type, "other")
            for member in list(info.members.values()):
                language, version, protocol = _labels(member)
                labels = (name, language, version, mode, protocol, is_system("", name))
                _count(consumers, labels)
                yield
        for metric, counts in (
            (m.PRODUCER_CONNECTIONS, producers),
            (m.CONSUMER_CONNECTIONS, consumers),
        ):
            out.begin(metric)
            for values, count in counts.items():
                out.sample(count, *values)
                yield

    def _waits(self, out: Exposition) -> None:
        parts = self._parts
        out.begin(m.PROCESSOR_WATERMARK)
        out.sample(self._waiting_sends(), "send")
        out.sample(parts.waiting.count(State.MESSAGES), "pull")
        out.sample(parts.waiting.count(State.FILTERS), "filter")
        out.sample(parts.long_answers.waiting_count, "admin")
        out.one(m.HELD_PULLS_LIMIT, parts.config.max_held_pulls)
        out.one(m.HALF_MESSAGES, self._transactions.unresolved_count)
        timers = self._delayed.timers
        out.one(m.TIMING_MESSAGES, timers.pending)
        out.one(m.TIMER_DEQUEUE_LATENCY, timers.late_ms(parts.clock.now_ms()) / 1000)
        out.begin(m.DELAYED_MESSAGES)
        for level, count in self._delayed.levels.pending().items():
            out.sample(count, str(level))

    def _totals(self, out: Exposition) -> None:
        store = self._parts.store
        out.one(m.APPENDED, store.appended_count)
        out.begin(m.REFUSED_MESSAGES)
        for cause, count in store.refusals.counts.items():
            out.sample(count, cause.value)
        out.begin(m.PULLS)
        out.sample(self._traffic.found_count, "found")
        out.sample(self._traffic.missed_count, "missed")
        committed, rolled_back = self._transactions.ended_counts
        out.one(m.COMMIT_MESSAGES, committed)
        out.one(m.ROLLBACK_MESSAGES, rolled_back)
        out.one(m.DELAYED_DELIVERED, self._delayed.delivered_count)
        out.one(m.UNITS_REPAIRED, store.mender.mended_count)
        out.one(m.MESSAGES_LOST, store.mender.lost_count)

    def _storage(self, out: Exposition) -> None:
        store, log = self._parts.store, self._parts.store.commit_log
        for metric, value in (
            (m.STORAGE_SIZE, log.end - log.min_offset),
            (m.FLUSH_BEHIND, log.end - store.flushed_offset),
            (m.DISPATCH_BEHIND, log.readable_end - log.dispatched_end),
            (m.RESERVE_TIME, self._reserve_ms()),
        ):
            out.begin(metric)
            out.sample(max(0, value), *_STORAGE)
        out.one(m.INDEX_BEHIND, store.index.lag_bytes)
        out.one(m.MARK_WAIT, store.cleaner.waited_ms / 1000)
        out.begin(m.FILES_UNMARKED)
        for reason, count in store.cleaner.unmarked_counts.items():
            out.sample(count, reason)
        out.begin(m.FLUSH_DURATION, LATENCY_BOUNDS_S)
        out.histogram(store.flush_times.counts, store.flush_times.total / 1e6)
        out.one(m.SLOWEST_APPEND, store.longest_append_ms / 1000)
        if self._disk is not None:
            out.begin(m.DISK_USED_RATIO)
            out.sample(self._disk.log_ratio, "commitlog")
            out.sample(self._disk.queue_ratio, "consumequeue")
            out.one(m.DISK_FREE, self._disk.free_bytes)

    def _reserve_ms(self) -> int:
        """Return the age of the log's first message; look at it once for each beginning."""
        log = self._parts.store.commit_log
        if log.end == log.min_offset:
            return 0
        if self._oldest[0] != log.min_offset:
            self._oldest = (log.min_offset, log.store_timestamp_at(log.min_offset))
        stored_ms = self._oldest[1]
        return self._parts.clock.now_ms() - stored_ms if stored_ms >= 0 else 0


def _labels(member: Member) -> tuple[str, str, str]:
    return member.language.lower(), _version(member.version), _REMOTING


def _version(ordinal: int) -> str:
    try:
        return MQVersion(ordinal).name.lower()
    except ValueError:
        return str(ordinal) if 0 <= ordinal < _MAX_VERSION else "other"


def _count(counts: dict[tuple[str, ...], int], labels: tuple[str, ...]) -> None:
    counts[labels] = counts.get(labels, 0) + 1

"""Count how many messages go in and out of a broker, and how fast.

Java: StoreStatsService and BrokerStats. The messages that groups take from topics are counted here,
too; their sums over a minute, an hour and a day are in `operation/broker_stats.py`.

Sends cost nothing here, because the store itself counts what it appends. A pull that finds messages
costs one call.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from datetime import date, datetime
from operator import itemgetter
from typing import Final, NamedTuple

from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.stats_item import StatsItem
from cometmq.broker.topics.topics import TopicManager
from cometmq.model.measures.histogram import latencies
from cometmq.model.names import SYSTEM_TOPICS, TIMER_TOPIC
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import OnDemand, TaskOwner
from cometmq.store.store import MessageStore

_SAMPLE_PERIOD_S: Final = 1.0
RATE_SPANS_S: Final = (10, 60, 600)
# One for each second, and one more, because timers may be a little early.
_MAX_SAMPLES: Final = RATE_SPANS_S[-1] + 2
_SAMPLE_TIME: Final = itemgetter(0)
# For so many queues of groups the next offset to hand out is kept, 200 bytes each. Of other queues
# no messages are reported as in flight.
MAX_PULLED_QUEUES: Final = 500_000
# Messages that groups take are counted for at most this many pairs of a group and a topic. A pair that
# is busy in each hour of a day takes 3 KB.
MAX_COUNTED_PAIRS: Final = 50_000
# Java: StoreStatsService.PUT_MESSAGE_ENTIRE_TIME_MAX_DESC. Each with the first ms above its range.
_PUT_TIMES: Final = (
    ("[<=0ms]", 1),
    ("[0~10ms]", 10),
    ("[10~50ms]", 50),
    ("[50~100ms]", 100),
    ("[100~200ms]", 200),
    ("[200~500ms]", 500),
    ("[500ms~1s]", 1_000),
    ("[1~2s]", 2_000),
    ("[2~3s]", 3_000),
    ("[3~4s]", 4_000),
    ("[4~5s]", 5_000),
    ("[5~10s]", 10_000),
    ("[10s~]", 2**63),
)


class Sample(NamedTuple):
    """Totals since the start at one time of the monotonic clock."""

    at_s: float
    put: int
    found: int
    missed: int
    transferred: int
    timer_put: int
    timer_delivered: int


class Taken:
    """Counts what one group takes of one topic, and sends back.

    `next_offsets` has, by queue id, the offset up to which the group's members were handed
    messages. `latencies` has the pulls by their time, and `item` keeps samples of the other
    attributes, which only grow.
    """

    __slots__ = (
        "byte_count",
        "item",
        "latencies",
        "latency_us",
        "message_count",
        "next_offsets",
        "pull_count",
        "sent_back_count",
    )

    def __init__(self) -> None:
        self.message_count = 0
        self.pull_count = 0
        self.byte_count = 0
        self.latency_us = 0
        self.latencies = latencies()
        self.sent_back_count = 0
        self.next_offsets: dict[int, int] = {}
        self.item: StatsItem | None = None


class Traffic:
    """Counts what pulls take and samples all totals once a second, as long as they change. For the
    loop's thread only.

    Users' messages are those in topics that the broker does not keep for itself. So a delayed
    message counts when it is delivered. Rates, mornings and put times are those of the last sample;
    call `look` before reading them.
    """

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        topics: TopicManager,
        delayed: DelayedMessages,
        max_pulled_queues: int = MAX_PULLED_QUEUES,
        max_counted_pairs: int = MAX_COUNTED_PAIRS,
    ) -> None:
        self._max_pulled_queues = max_pulled_queues
        self.max_counted_pairs = max_counted_pairs
        self._clock = clock
        self._store = store
        self._delayed = delayed
        self._system_topics = topics.system_topics | SYSTEM_TOPICS | {TIMER_TOPIC}
        self.monotonic = clock.monotonic
        self.found_count = 0
        self.missed_count = 0
        self.transferred_count = 0
        self.user_taken = 0
        self.longest_get_s = 0.0
        # How late the last sample was; any request may have waited for its turn as long.
        self.loop_delay_s = 0.0
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        # Begins the sampling again. None while it goes on.
        self._arm: Callable[[], None] | None = None
        # By group and topic, and the groups by topic.
        self.taken: dict[str, dict[str, Taken]] = {}
        self._groups: dict[str, set[str]] = {}
        self.pair_count = 0
        self._pulled_count = 0
        self._day = self._today()
        self.put_mornings = (0, 0)
        self.taken_mornings = (0, 0)
        # When the last full minute ended.
        self._minute_s = self.monotonic()
        self._put_in_minute = 0
        self._put_at_minute = 0
        self._slow_puts: dict[int, int] = {}

    # -- pulls --

    def took(
        self,
        group: str,
        topic: str,
        queue_id: int,
        next_offset: int,
        count: int,
        byte_count: int,
        began_s: float,
    ) -> None:
        """Count a pull that brought `count` messages of `byte_count` bytes in all."""
        if self._arm is not None:
            self._wake()
        self.found_count += 1
        self.transferred_count += count
        if topic not in self._system_topics:
            self.user_taken += count
        took_s = self.monotonic() - began_s
        if took_s > self.longest_get_s:  # noqa: PLR1730 - max() takes longer
            self.longest_get_s = took_s
        of_group = self.taken.get(group)
        taken = of_group.get(topic) if of_group is not None else None
        if taken is None:
            taken = self._new_pair(group, topic)
            if taken is None:
                return
        taken.message_count += count
        taken.pull_count += 1
        taken.byte_count += byte_count
        took_us = int(took_s * 1e6)
        taken.latency_us += took_us
        taken.latencies.add(took_us)
        next_offsets = taken.next_offsets
        if queue_id in next_offsets:
            next_offsets[queue_id] = next_offset
        elif self._pulled_count < self._max_pulled_queues:
            next_offsets[queue_id] = next_offset
            self._pulled_count += 1

    def pulled_bytes(self, group: str) -> int:
        """Return how many bytes of messages a group has pulled from all topics."""
        return sum(taken.byte_count for taken in self.taken.get(group, {}).values())

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message of a topic that a group wants again later."""
        taken = self.taken.get(group, {}).get(topic) or self._new_pair(group, topic)
        if taken is not None:
            taken.sent_back_count += 1

    def missed(self) -> None:
        """Count a look at a queue that brought nothing."""
        if self._arm is not None:
            self._wake()
        self.missed_count += 1

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which the group's members were handed messages; -1 if unknown."""
        taken = self.taken.get(group, {}).get(topic)
        return -1 if taken is None else taken.next_offsets.get(queue_id, -1)

    def members_changed(self, group: str, members: Sequence[object]) -> None:
        """Forget up to where a group was handed messages, once it has no members."""
        if not members:
            for taken in self.taken.get(group, {}).values():
                self._pulled_count -= len(taken.next_offsets)
                taken.next_offsets = {}

    # -- pairs of a group and a topic --

    @property
    def is_full(self) -> bool:
        """Whether further pairs would not be counted."""
        return self.pair_count >= self.max_counted_pairs

    def _new_pair(self, group: str, topic: str) -> Taken | None:
        if self.is_full:
            return None
        taken = self.taken.setdefault(group, {})[topic] = Taken()
        self._groups.setdefault(topic, set()).add(group)
        self.pair_count += 1
        return taken

    def forget(self, group: str, topic: str) -> None:
        """Forget what was counted for a pair."""
        of_group = self.taken.get(group)
        taken = of_group.pop(topic, None) if of_group is not None else None
        if of_group is None or taken is None:
            return
        if not of_group:
            del self.taken[group]
        self._forget(taken, group, topic)

    def _forget(self, taken: Taken, group: str, topic: str) -> None:
        self.pair_count -= 1
        self._pulled_count -= len(taken.next_offsets)
        groups = self._groups[topic]
        groups.remove(group)
        if not groups:
            del self._groups[topic]

    def group_removed(self, group: str) -> None:
        """Forget what was counted for a group that was deleted."""
        for topic, taken in self.taken.pop(group, {}).items():
            self._forget(taken, group, topic)

    def topic_removed(self, topic: str) -> None:
        """Forget what was counted for a topic whose queues are deleted."""
        for group in list(self._groups.get(topic, ())):
            self.forget(group, topic)

    # -- samples --

    def start(self, tasks: TaskOwner) -> None:
        """Sample from now on."""
        sampling = OnDemand(tasks, self._idle_s, self._rest)
        sampling.every(_SAMPLE_PERIOD_S, self.sample, "traffic", first_s=0)

    def sample(self) -> None:
        """Take the totals of this second."""
        now_s = self.monotonic()
        if self._samples:
            passed_s = now_s - self._samples[-1].at_s
            self.loop_delay_s = max(0.0, passed_s - _SAMPLE_PERIOD_S)
        self._take(now_s)

    def look(self) -> None:
        """Bring the figures up to date while nothing is sampled."""
        if self._arm is not None:
            self._take(self.monotonic())

    def _idle_s(self) -> float:
        samples = self._samples
        return math.inf if len(samples) > 1 and samples[-1][1:] == samples[-2][1:] else 0.0

    def _rest(self, arm: Callable[[], None]) -> None:
        self._arm = arm
        self._store.at_growth(self._wake)

    def _wake(self) -> None:
        """Sample again, because something is about to be counted: until now nothing was."""
        arm = self._arm
        if arm is not None:
            self.look()
            self._arm = None
            arm()

    def _take(self, now_s: float) -> None:
        samples, sample = self._samples, self._totals(now_s)
        # Of a stretch without change the first sample and the last one say all.
        if len(samples) > 1 and samples[-2][1:] == samples[-1][1:] == sample[1:]:
            samples[-1] = sample
        else:
            samples.append(sample)
        # Rounded, because timers may be a little early.
        if minutes := round(now_s - self._minute_s, 1) // 60:
            # Messages counted before an idle minute are not of the last minute.
            is_last, put, slow = minutes == 1, sample.put, self._store.take_slow_appends()
            self._put_in_minute = put - self._put_at_minute if is_last else 0
            self._slow_puts = slow if is_last else {}
            self._put_at_minute, self._minute_s = put, now_s
        # A clock set back does not make a new day.
        today = self._today()
        for _ in range(min((today - self._day).days, 2)):
            self.put_mornings = (self.put_mornings[1], self.user_put())
            self.taken_mornings = (self.taken_mornings[1], self.user_taken)
        self._day = max(today, self._day)

    def _totals(self, now_s: float) -> Sample:
        timer_put = self._store.max_offset(TIMER_TOPIC, 0)
        return Sample(
            now_s,
            self._store.appended_count,
            self.found_count,
            self.missed_count,
            self.transferred_count,
            timer_put,
            timer_put - self._delayed.timers.pending,
        )

    def user_put(self) -> int:
        """Return how many messages were put to users' topics since the start."""
        totals = self._store.queues.put_totals
        own = [totals[topic] for topic in self._system_topics if topic in totals]
        return self._store.appended_count - sum(total.message_count for total in own)

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).date()  # noqa: DTZ006 - an operator's day

    def put_rates(self) -> list[float | None]:
        return self._rates(1)

    def found_rates(self) -> list[float | None]:
        return self._rates(2)

    def missed_rates(self) -> list[float | None]:
        return self._rates(3)

    def transferred_rates(self) -> list[float | None]:
        return self._rates(4)

    def timer_rates(self) -> tuple[float, float]:
        """Return how many timed messages a second arrived and were delivered, over ten seconds."""
        return self._rates(5)[0] or 0.0, self._rates(6)[0] or 0.0

    def _rates(self, field: int) -> list[float | None]:
        """Return rates per second over RATE_SPANS_S; None until so much time has passed."""
        return [self._rate(field, span_s) for span_s in RATE_SPANS_S]

    def _rate(self, field: int, span_s: int) -> float | None:
        samples = self._samples
        if not samples or samples[-1].at_s - samples[0].at_s < span_s:
            return None
        begin_s = samples[-1].at_s - span_s
        place = bisect_right(samples, begin_s, key=_SAMPLE_TIME)
        before, after = samples[place - 1], samples[place]
        # Between two samples totals grow evenly.
        part = (begin_s - before.at_s) / (after.at_s - before.at_s)
        total = before[field] + part * (after[field] - before[field])
        return (samples[-1][field] - total) / span_s

    # -- times --

    def put_time_counts(self) -> list[tuple[str, int]]:
        """Return how many puts of the last full minute took how long, by range."""
        counts = dict.fromkeys((name for name, _ in _PUT_TIMES), 0)
        counts[_PUT_TIMES[0][0]] = max(0, self._put_in_minute - sum(self._slow_puts.values()))
        for took_ms, count in self._slow_puts.items():
            counts[next(name for name, beyond in _PUT_TIMES if took_ms < beyond)] += count
        return list(counts.items())

    def put_time_ms(self, part: float) -> float:
        """Return the ms that `part` of the last full minute's puts took at most; 0.99 for 99 %."""
        beyond = self._put_in_minute * (1 - part)
        for took_ms in sorted(self._slow_puts, reverse=True):
            beyond -= self._slow_puts[took_ms]
            if beyond < 0:
                return float(took_ms)
        return 0.0

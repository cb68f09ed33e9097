"""Count how many messages go in and out of a broker, and how fast.

Java: StoreStatsService, BrokerStats and the parts of BrokerStatsManager whose figures tools read.

Sends cost nothing here: their number is read from the store's own counter and queues once a second
and on request. A pull that finds messages costs one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import date, datetime
from typing import Final, NamedTuple

from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.topics.topics import TopicManager
from cometmq.model.names import SCHEDULE_TOPIC, SYSTEM_TOPICS, TIMER_TOPIC
from cometmq.runtime.clock import Clock
from cometmq.store.store import MessageStore

SAMPLE_PERIOD_S: Final = 1.0
RATE_SPANS_S: Final = (10, 60, 600)
# Rates of a group come from this many spans of so many samples each: a minute, as in Java.
_SPAN_SAMPLES: Final = 10
_SPANS_KEPT: Final = 6
_MINUTE_SAMPLES: Final = 60
# For so many queues of groups the next offset to hand out is kept, 200 bytes each. Of other queues
# no messages are reported as in flight.
MAX_PULLED_QUEUES: Final = 500_000
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


class Span(NamedTuple):
    """How many messages each group took of each topic within `length_s`."""

    length_s: float
    taken: dict[tuple[str, str], int]


class Traffic:
    """Counts what pulls take and samples all totals once a second. For the loop's thread only.

    Users' messages are those in topics that the broker does not keep for itself. So a delayed
    message counts when it is delivered.
    """

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        topics: TopicManager,
        delayed: DelayedMessages,
        max_pulled_queues: int = MAX_PULLED_QUEUES,
    ) -> None:
        self._max_pulled_queues = max_pulled_queues
        self._clock = clock
        self._store = store
        self._topics = topics
        self._delayed = delayed
        self._system_topics = topics.system_topics | SYSTEM_TOPICS | {TIMER_TOPIC}
        self._system_put_before = self._system_put()
        self.monotonic = clock.monotonic
        self.found_count = 0
        self.missed_count = 0
        self.transferred_count = 0
        self.user_taken = 0
        self.longest_get_s = 0.0
        # How late the last sample was; any request may have waited for its turn as long.
        self.loop_delay_s = 0.0
        self._samples: deque[Sample] = deque(maxlen=RATE_SPANS_S[-1] + 1)
        self._taken: dict[tuple[str, str], int] = {}
        self._taken_since_s = clock.monotonic()
        self._spans: deque[Span] = deque(maxlen=_SPANS_KEPT)
        # By group, so that all entries of a group that has left can be dropped at once.
        self._pulled: dict[str, dict[tuple[str, int], int]] = {}
        self._pulled_count = 0
        self._sample_count = 0
        self._day = self._today()
        self.put_mornings = (0, 0)
        self.taken_mornings = (0, 0)
        self._put_in_minute = 0
        self._put_at_minute = 0
        self._slow_puts: dict[int, int] = {}

    # -- pulls --

    def took(
        self, group: str, topic: str, queue_id: int, next_offset: int, count: int, began_s: float
    ) -> None:
        """Count a pull that brought `count` messages."""
        self.found_count += 1
        self.transferred_count += count
        if topic not in self._system_topics:
            self.user_taken += count
        key = (group, topic)
        self._taken[key] = self._taken.get(key, 0) + count
        place = (topic, queue_id)
        pulled = self._pulled.get(group)
        if pulled is not None and place in pulled:
            pulled[place] = next_offset
        elif self._pulled_count < self._max_pulled_queues:
            self._pulled.setdefault(group, {})[place] = next_offset
            self._pulled_count += 1
        took_s = self.monotonic() - began_s
        self.longest_get_s = max(self.longest_get_s, took_s)

    def missed(self) -> None:
        """Count a look at a queue that brought nothing."""
        self.missed_count += 1

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which the group's members were handed messages; -1 if unknown."""
        pulled = self._pulled.get(group)
        return -1 if pulled is None else pulled.get((topic, queue_id), -1)

    def members_changed(self, group: str, members: Sequence[object]) -> None:
        """Forget up to where a group was handed messages, once it has no members."""
        if not members:
            self._pulled_count -= len(self._pulled.pop(group, ()))

    def group_tps(self, group: str, topic: str) -> float:
        """Return how many messages a second the group took of the topic in the last minute (Java:
        tpsGroupGetNums)."""
        key = (group, topic)
        length_s = sum(span.length_s for span in self._spans)
        taken = sum(span.taken.get(key, 0) for span in self._spans)
        return taken / length_s if length_s > 0 else 0.0

    # -- samples --

    def sample(self) -> None:
        """Take the totals of this second."""
        now_s = self.monotonic()
        if self._samples:
            passed_s = now_s - self._samples[-1].at_s
            self.loop_delay_s = max(0.0, passed_s - SAMPLE_PERIOD_S)
        timer_put = self._store.max_offset(TIMER_TOPIC, 0)
        self._samples.append(
            Sample(
                now_s,
                self._store.appended_count,
                self.found_count,
                self.missed_count,
                self.transferred_count,
                timer_put,
                timer_put - self._delayed.timers.pending,
            )
        )
        self._sample_count += 1
        if self._sample_count % _SPAN_SAMPLES == 0:
            self._spans.append(Span(now_s - self._taken_since_s, self._taken))
            self._taken, self._taken_since_s = {}, now_s
        if self._sample_count % _MINUTE_SAMPLES == 0:
            put = self._store.appended_count
            self._put_in_minute, self._put_at_minute = put - self._put_at_minute, put
            self._slow_puts = self._store.take_slow_appends()
        today = self._today()
        # A clock set back does not make a new day.
        if today > self._day:
            self._day = today
            self.put_mornings = (self.put_mornings[1], self.user_put())
            self.taken_mornings = (self.taken_mornings[1], self.user_taken)

    def user_put(self) -> int:
        """Return how many messages were put to users' topics since the start."""
        return self._store.appended_count - (self._system_put() - self._system_put_before)

    def _system_put(self) -> int:
        """Return how many messages the broker's own topics ever had; their queues are few."""
        levels = sum(self._delayed.levels.ends().values())
        return levels + sum(map(self._put_to, self._system_topics - {SCHEDULE_TOPIC}))

    def _put_to(self, name: str) -> int:
        topic = self._topics.get(name)
        queue_nums = topic.write_queue_nums if topic is not None else 1
        return sum(self._store.max_offset(name, i) for i in range(queue_nums))

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
        samples = self._samples
        rates: list[float | None] = []
        for span in RATE_SPANS_S:
            if len(samples) <= span:
                rates.append(None)
                continue
            first, last = samples[-(span + 1)], samples[-1]
            passed_s = last.at_s - first.at_s
            rates.append((last[field] - first[field]) / passed_s if passed_s > 0 else 0.0)
        return rates

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

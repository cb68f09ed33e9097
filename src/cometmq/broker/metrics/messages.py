"""Collect what went in and out of a broker, by topic and group, and how far groups are behind.

Nothing is counted here: the store counts what is put to a topic, `Traffic` what groups take.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.broker.config import BrokerConfig
from cometmq.broker.metrics.lags import Lag, Lags, QueueLag, age_ms
from cometmq.broker.metrics.series import Pair, PairSlots, Slots, Sums, is_retry, is_system
from cometmq.broker.parts import Parts
from cometmq.broker.traffic import Traffic
from cometmq.metrics import catalogue as m
from cometmq.metrics.catalogue import REST
from cometmq.metrics.exposition import Exposition
from cometmq.model.measures.histogram import BUCKETS, SIZE_BITS, bounds
from cometmq.model.names import DLQ_PREFIX
from cometmq.remoting.http.monitoring import LATENCY_BOUNDS_S

# Looks into the log for the ages of messages in one scrape, 10 to 20 µs each where its pages are in
# memory, and the time that they may take where these are on disk only. Beyond them an age is that of
# the last scrape.
MAX_LOOKS: Final = 5_000
_LOOK_FOR_S: Final = 0.25
# Queues of groups that one scrape compares with the offsets there, about 2 µs each.
MAX_QUEUES: Final = 20_000
# So many queues of one group may have series of their own.
QUEUES_OF_A_GROUP: Final = 100


class TopicMessages:
    """Collects what was put to topics. For the loop's thread only."""

    def __init__(self, parts: Parts, pairs: PairSlots) -> None:
        self._config = parts.config
        self._store = parts.store
        self._pairs = pairs
        self._slots = Slots()
        self._histogram_slots = Slots()
        self._counts = Sums()
        self._histograms = Sums()
        self._dead = Sums()
        self.left_out = self.histograms_left_out = 0

    def collect(self, out: Exposition) -> Iterator[None]:
        yield from self._add_up()
        for metric, place in ((m.MESSAGES_IN, 0), (m.THROUGHPUT_IN, 1)):
            out.begin(metric)
            for (topic, _), row in self._counts.rows.items():
                out.sample(row[place], topic, is_system(topic))
                yield
        for metric, bounds_, begin, divisor in (
            (m.MESSAGE_SIZE, [float(bound) for bound in bounds(SIZE_BITS)], 0, 1.0),
            (m.PUT_LATENCY, LATENCY_BOUNDS_S, BUCKETS + 1, 1e6),
        ):
            out.begin(metric, bounds_)
            for (topic, _), row in self._histograms.rows.items():
                total = row[begin + BUCKETS] / divisor
                out.histogram(row[begin : begin + BUCKETS], total, topic, is_system(topic))
                yield
        out.begin(m.SENT_TO_DLQ)
        for (group, _), row in self._dead.rows.items():
            out.sample(row[0], group, is_system("", group))
            yield

    def _add_up(self) -> Iterator[None]:
        config = self._config
        self._slots.begin(config.metrics_max_topics)
        self._histogram_slots.begin(config.metrics_max_histograms)
        for sums in (self._counts, self._histograms, self._dead):
            sums.begin()
        totals = self._store.queues.put_totals
        # A list of the names, because topics may come and go between two slices.
        for topic in list(totals):
            yield
            put = totals.get(topic)
            if put is None or not put.message_count:
                continue
            name = topic if self._slots.take(topic) else REST
            self._counts.add((name, ""), (put.message_count, put.byte_count))
            if topic.startswith(DLQ_PREFIX):
                group = self._pairs.group(topic.removeprefix(DLQ_PREFIX))
                self._dead.add((group, ""), (put.message_count,))
            if put.latencies is not None and put.sizes is not None:
                name = topic if self._histogram_slots.take(topic) else REST
                sizes, times = put.sizes, put.latencies
                row = [*sizes.counts, sizes.total, *times.counts, times.total]
                self._histograms.add((name, ""), row)
        self._slots.end()
        self._histogram_slots.end()
        for sums in (self._counts, self._histograms, self._dead):
            yield from sums.end()
        self.left_out = self._slots.left_out
        self.histograms_left_out = self._histogram_slots.left_out


class GroupMessages:
    """Collects what groups took of topics. For the loop's thread only."""

    def __init__(self, config: BrokerConfig, traffic: Traffic, pairs: PairSlots) -> None:
        self._config = config
        self._traffic = traffic
        self._pairs = pairs
        self._histogram_slots = Slots()
        self._counts = Sums()
        self._histograms = Sums()
        self.histograms_left_out = 0

    def collect(self, out: Exposition) -> Iterator[None]:
        yield from self._add_up()
        rows = self._counts.rows
        for metric, place in ((m.MESSAGES_OUT, 0), (m.THROUGHPUT_OUT, 1)):
            out.begin(metric)
            for (group, topic), row in rows.items():
                out.sample(row[place], topic, group, is_system(topic, group), is_retry(topic))
                yield
        out.begin(m.SENT_BACK)
        for (group, topic), row in rows.items():
            if row[2]:
                out.sample(row[2], topic, group, is_system(topic, group))
            yield
        out.begin(m.GET_LATENCY, LATENCY_BOUNDS_S)
        for (group, topic), row in self._histograms.rows.items():
            labels = (topic, group, is_system(topic, group), is_retry(topic))
            out.histogram(row[:BUCKETS], row[BUCKETS] / 1e6, *labels)
            yield

    def _add_up(self) -> Iterator[None]:
        self._histogram_slots.begin(self._config.metrics_max_histograms)
        self._counts.begin()
        self._histograms.begin()
        taken = self._traffic.taken
        for group in list(taken):
            for topic, pair in list(taken.get(group, {}).items()):
                labels = self._pairs.place(group, topic)
                self._counts.add(
                    labels, (pair.message_count, pair.byte_count, pair.sent_back_count)
                )
                if pair.pull_count:
                    if not self._histogram_slots.take((group, topic)):
                        labels = (REST, REST)
                    else:
                        labels = (group, topic)
                    self._histograms.add(labels, [*pair.latencies.counts, pair.latency_us])
                yield
        self._histogram_slots.end()
        yield from self._counts.end()
        yield from self._histograms.end()
        self.histograms_left_out = self._histogram_slots.left_out


class _OfGroup(NamedTuple):
    """How far one group is behind: by topic (or REST), in each of its queues that are furthest behind,
    as (messages, topic, queue id, time of the oldest), and in the other queues together.
    """

    by_topic: dict[str, Lag]
    queues: list[tuple[int, str, int, int]]
    others: QueueLag


class GroupLags:
    """Collects how far groups are behind. For the loop's thread only.

    A group that has committed nothing gets no sample: its lag is unknown, not 0.

    A scrape looks at MAX_QUEUES queues of groups, and at a group as a whole. Where there are more,
    it reports what an earlier scrape found for the other groups, and the next scrape begins with
    them.
    """

    def __init__(self, parts: Parts, traffic: Traffic, pairs: PairSlots) -> None:
        self._config = parts.config
        self._now_ms = parts.clock.now_ms
        self._pairs = pairs
        self._lags = Lags(parts, traffic)
        # By group, those that were looked at longest ago first.
        self._found: dict[str, _OfGroup] = {}
        self.queues_left_out = self.pairs_left_out = self.unlooked = 0

    def collect(self, out: Exposition) -> Iterator[None]:
        yield from self._look()
        by_labels: dict[Pair, Lag] = {}
        # The queues that are furthest behind, the least of them first.
        queues: list[tuple[int, str, str, int, int]] = []
        others: dict[str, QueueLag] = {}
        yield from self._add_up(by_labels, queues, others)
        now_ms = self._now_ms()
        for metric, value in (
            (m.LAG_MESSAGES, lambda lag: lag.messages),
            (m.LAG_LATENCY, lambda lag: age_ms(lag.oldest_ms, now_ms)),
            (m.INFLIGHT_MESSAGES, lambda lag: lag.inflight),
            (m.READY_MESSAGES, lambda lag: lag.ready),
            (m.QUEUEING_LATENCY, lambda lag: age_ms(lag.ready_oldest_ms, now_ms)),
        ):
            out.begin(metric)
            for (group, topic), lag in by_labels.items():
                if not lag.unknown_count:
                    out.sample(value(lag), group, topic, is_system(topic, group), is_retry(topic))
                yield
        out.begin(m.QUEUE_LAG_MESSAGES)
        for behind, group, topic, queue_id, _ in queues:
            out.sample(behind, group, topic, str(queue_id))
            yield
        for group, rest in others.items():
            out.sample(rest.messages, group, REST, REST)
            yield
        out.begin(m.QUEUE_LAG_AGE)
        for _, group, topic, queue_id, oldest_ms in queues:
            out.sample(age_ms(oldest_ms, now_ms) / 1000, group, topic, str(queue_id))
            yield
        for group, rest in others.items():
            out.sample(age_ms(rest.oldest_ms, now_ms) / 1000, group, REST, REST)
            yield

    def _look(self) -> Iterator[None]:
        """Look at groups until MAX_QUEUES are done, first at groups of which nothing is known yet."""
        groups = self._lags.groups()
        yield
        order = []
        for group in groups:
            if group not in self._found:
                order.append(group)
            yield
        for group in list(self._found):
            if group in groups:
                order.append(group)
            else:
                del self._found[group]
            yield
        self._lags.begin(MAX_LOOKS, _LOOK_FOR_S)
        left = MAX_QUEUES
        unlooked = len(order)
        self.pairs_left_out = 0
        for group in order:
            if left <= 0:
                break
            unlooked -= 1
            of_group = _OfGroup({}, [], QueueLag(-1, 0, -1))
            for topic in self._lags.topics_of(group):
                lag = Lag()
                of_queues: list[QueueLag] = []
                yield from self._lags.look(group, topic, lag, of_queues.append)
                _, name = self._pairs.place(group, topic)
                self.pairs_left_out += name == REST
                of_group.by_topic.setdefault(name, Lag()).add(lag)
                for queue in of_queues:
                    of_group = _with_queue(of_group, topic, queue)
                left -= lag.queue_count
            # At the end again, behind those that were looked at before it.
            self._found.pop(group, None)
            self._found[group] = of_group
            yield
        self.unlooked = unlooked + self._lags.unlooked

    def _add_up(
        self,
        by_labels: dict[Pair, Lag],
        queues: list[tuple[int, str, str, int, int]],
        others: dict[str, QueueLag],
    ) -> Iterator[None]:
        limit = self._config.metrics_max_queues
        self.queues_left_out = 0
        for group, found in self._found.items():
            for topic, lag in found.by_topic.items():
                labels = (
                    (self._pairs.group(group), REST)
                    if topic == REST
                    else self._pairs.place(group, topic)
                )
                by_labels.setdefault(labels, Lag()).add(lag)
                yield
            for messages, topic, queue_id, oldest_ms in found.queues:
                entry = (messages, group, topic, queue_id, oldest_ms)
                if len(queues) < limit:
                    heapq.heappush(queues, entry)
                    continue
                if limit:
                    entry = heapq.heappushpop(queues, entry)
                self._leave_out(others, entry[1], entry[0], entry[4])
                yield
            if found.others.messages:
                self._leave_out(others, group, found.others.messages, found.others.oldest_ms)
            yield

    def _leave_out(
        self, others: dict[str, QueueLag], group: str, messages: int, oldest_ms: int
    ) -> None:
        self.queues_left_out += 1
        name = self._pairs.group(group)
        others[name] = _merged(others.get(name, QueueLag(-1, 0, -1)), messages, oldest_ms)


def _with_queue(found: _OfGroup, topic: str, queue: QueueLag) -> _OfGroup:
    """Add a queue to those of a group that are furthest behind, or to the others."""
    entry = (queue.messages, topic, queue.queue_id, queue.oldest_ms)
    if len(found.queues) < QUEUES_OF_A_GROUP:
        heapq.heappush(found.queues, entry)
        return found
    messages, _, _, oldest_ms = heapq.heappushpop(found.queues, entry)
    return found._replace(others=_merged(found.others, messages, oldest_ms))


def _merged(one: QueueLag, messages: int, oldest_ms: int) -> QueueLag:
    times = [each for each in (one.oldest_ms, oldest_ms) if each >= 0]
    return QueueLag(-1, one.messages + messages, min(times, default=-1))

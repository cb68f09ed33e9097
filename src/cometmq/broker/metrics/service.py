"""Put together the metrics that a broker shows to monitoring systems, and say when it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.metrics.lags import LagPage
from cometmq.broker.metrics.messages import GroupLags, GroupMessages, TopicMessages
from cometmq.broker.metrics.pops import PopMessages
from cometmq.broker.metrics.series import PairSlots
from cometmq.broker.metrics.state import BrokerState
from cometmq.broker.parts import Parts, Service
from cometmq.broker.pop.state import PopState
from cometmq.broker.replication.metrics import collect_replication
from cometmq.broker.replication.service import Replication
from cometmq.broker.traffic import Traffic
from cometmq.broker.transactions.service import TransactionService
from cometmq.metrics import catalogue as m
from cometmq.metrics.exposition import Exposition
from cometmq.model.sysflag import PERM_WRITE
from cometmq.remoting.http.monitoring import Monitoring


class Metrics(Service):
    """Adds the broker's figures and the lag of groups to the pages of `monitoring`.

    `waiting_sends` says how many sends wait for the disk or for slaves.
    """

    def __init__(
        self,
        parts: Parts,
        monitoring: Monitoring,
        delayed: DelayedMessages,
        transactions: TransactionService,
        traffic: Traffic,
        waiting_sends: Callable[[], int],
        copies: Replication,
        pops: PopState,
    ) -> None:
        self._parts = parts
        self._copies = copies
        self._monitoring = monitoring
        self._pairs = pairs = PairSlots()
        self._state = BrokerState(parts, delayed, transactions, traffic, waiting_sends, pairs)
        self._topics = TopicMessages(parts, pairs)
        self._groups = GroupMessages(parts.config, traffic, pairs)
        self._pops = PopMessages(parts, pops, pairs)
        self._lags = GroupLags(parts, traffic, pairs)
        self._lag_page = LagPage(parts, traffic)

    async def open(self) -> None:
        self._monitoring.http.add("/lag/", self._lag_page.answer)
        self._monitoring.machine.append(self._state.look_at_disk)
        self._monitoring.collectors.append(self._collect)

    def ready(self) -> str:
        """Return why the broker takes no messages, "" if it does."""
        refusal = self._parts.store.refusal
        if refusal is not None:
            return str(refusal)
        permission = self._parts.config.broker_permission
        if not permission & PERM_WRITE:
            return f"brokerPermission is {permission}, so the broker takes no messages; 6 is usual"
        return ""

    def _collect(self, out: Exposition) -> Iterator[None]:
        limit = self._parts.config.metrics_max_pairs
        self._pairs.begin(limit)
        yield from self._state.collect(out)
        collect_replication(self._copies, out)
        yield from self._topics.collect(out)
        yield from self._groups.collect(out)
        yield from self._pops.collect(out)
        taken_left_out = self._pairs.left_out
        slave = self._copies.slave
        # Else sums over a name's brokers would have each message that waits twice.
        if slave is None or not slave.is_connected:
            yield from self._lags.collect(out)
        # Most pairs were asked for by both.
        pairs_left_out = max(taken_left_out, self._lags.pairs_left_out)
        self._pairs.end()
        out.begin(m.LEFT_OUT)
        histograms = self._topics.histograms_left_out + self._groups.histograms_left_out
        for what, count in (
            ("metricsMaxTopics", self._topics.left_out),
            ("metricsMaxPairs", pairs_left_out),
            ("metricsMaxQueues", self._lags.queues_left_out),
            ("metricsMaxHistograms", histograms),
            ("looks", self._lags.unlooked),
        ):
            out.sample(count, what)

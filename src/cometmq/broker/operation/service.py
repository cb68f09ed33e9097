"""Serve operators: inspection, configuration and run-time figures."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.operation.broker_stats import BrokerStats
from cometmq.broker.operation.config_handlers import ConfigHandlers, GivenConfig
from cometmq.broker.operation.consume_stats import ConsumeStatsHandlers
from cometmq.broker.operation.inspection import InspectionHandlers
from cometmq.broker.operation.overviews import Overviews
from cometmq.broker.operation.runtime_info import RuntimeInfo
from cometmq.broker.parts import Parts, Service
from cometmq.broker.stats_item import SAMPLE_PERIOD_S
from cometmq.broker.traffic import Traffic
from cometmq.broker.transactions.service import TransactionService


class Operation(Service):
    """Serves operators. `given` says where the settings come from, for requests on them, and `popped` up to where a
    group has popped a queue.
    """

    def __init__(
        self,
        parts: Parts,
        given: GivenConfig,
        traffic: Traffic,
        delayed: DelayedMessages,
        transactions: TransactionService,
        popped: Callable[[str, str, int], int],
    ) -> None:
        self._parts = parts
        self._given = given
        self._traffic = traffic
        self._stats = BrokerStats(
            parts.config.broker_cluster_name,
            parts.store,
            parts.clock,
            traffic,
            parts.clients.subscribes,
        )
        self._delayed = delayed
        self._transactions = transactions
        self._popped = popped

    async def open(self) -> None:
        parts = self._parts
        parts.clients.on_members_changed.append(self._traffic.members_changed)
        parts.topics.on_remove.append(self._traffic.topic_removed)
        parts.groups.on_remove.append(self._traffic.group_removed)
        self._stats.register(parts.handlers)
        InspectionHandlers(parts, self._stats).register(parts.handlers)
        ConsumeStatsHandlers(parts, self._traffic, self._stats, self._popped).register(
            parts.handlers
        )
        ConfigHandlers(parts, self._given).register(parts.handlers)
        RuntimeInfo(parts, self._delayed, self._transactions, self._traffic).register(
            parts.handlers
        )
        Overviews(parts).register(parts.handlers)

    def start(self) -> None:
        self._traffic.start(self._parts.tasks)
        self._parts.tasks.every(SAMPLE_PERIOD_S, self._stats.sample, "broker stats", first_s=0)

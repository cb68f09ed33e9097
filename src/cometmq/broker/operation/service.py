"""Serve operators: inspection, configuration and run-time figures."""

from __future__ import annotations

from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.operation.config_handlers import ConfigHandlers, GivenConfig
from cometmq.broker.operation.inspection import InspectionHandlers
from cometmq.broker.operation.overviews import Overviews
from cometmq.broker.operation.runtime_info import RuntimeInfo
from cometmq.broker.parts import Parts, Service
from cometmq.broker.traffic import SAMPLE_PERIOD_S, Traffic
from cometmq.broker.transactions.service import TransactionService


class Operation(Service):
    """Serves operators. `given` says where the settings come from, for requests on them."""

    def __init__(
        self,
        parts: Parts,
        given: GivenConfig,
        traffic: Traffic,
        delayed: DelayedMessages,
        transactions: TransactionService,
    ) -> None:
        self._parts = parts
        self._given = given
        self._traffic = traffic
        self._delayed = delayed
        self._transactions = transactions

    async def open(self) -> None:
        parts = self._parts
        parts.clients.on_members_changed.append(self._traffic.members_changed)
        InspectionHandlers(parts, self._traffic).register(parts.handlers)
        ConfigHandlers(parts, self._given).register(parts.handlers)
        RuntimeInfo(parts, self._delayed, self._transactions, self._traffic).register(
            parts.handlers
        )
        Overviews(parts).register(parts.handlers)

    def start(self) -> None:
        self._parts.tasks.every(SAMPLE_PERIOD_S, self._traffic.sample, "traffic", first_s=0)

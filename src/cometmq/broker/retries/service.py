"""Serve retries and redrives."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.delays.put import MessagePut
from cometmq.broker.parts import Parts, Service
from cometmq.broker.retries.budget import RetryBudget
from cometmq.broker.retries.max_reconsume import RetryLimits
from cometmq.broker.retries.redrive import Redrives
from cometmq.broker.retries.redrive_handlers import RedriveHandlers
from cometmq.broker.retries.retry import RetryHandler


class Retries(Service):
    """Serves retries and redrives. `holds_queue_locks` says whether group members lock queues;
    `on_sent_back` is called with group and topic of a message that was sent back; `pulled_bytes`
    returns how many bytes a group has pulled.
    """

    runs_on_slave = False

    def __init__(
        self,
        parts: Parts,
        put: MessagePut,
        holds_queue_locks: Callable[[str], bool],
        on_sent_back: Callable[[str, str], None],
        pulled_bytes: Callable[[str], int],
    ) -> None:
        self._parts = parts
        self._limits = RetryLimits(parts.clients.consumers)
        self.handler = RetryHandler(
            parts.config,
            parts.store,
            parts.topics,
            parts.groups,
            put,
            holds_queue_locks,
            self._limits,
            parts.randomness,
            on_sent_back,
            RetryBudget(pulled_bytes),
        )
        self._redrives = Redrives(
            parts.store,
            parts.clock,
            parts.topics,
            lambda: parts.flusher.flush(0),
            parts.state,
            parts.randomness,
            parts.files,
        )

    async def open(self) -> None:
        parts = self._parts
        self._redrives.open()
        parts.clients.on_members_changed.append(self._limits.members_changed)
        self.handler.register(parts.handlers)
        RedriveHandlers(self._redrives, parts.tasks).register(parts.handlers)

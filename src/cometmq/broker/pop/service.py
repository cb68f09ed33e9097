"""Serve consumers that pop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cometmq.broker.parts import Parts, Service
from cometmq.broker.pop.acks import AckHandler
from cometmq.broker.pop.checks import PopChecks
from cometmq.broker.pop.holders import Holders
from cometmq.broker.pop.pop import PopHandler
from cometmq.broker.pop.progress import PopQuestions
from cometmq.broker.pop.revival import Revival
from cometmq.broker.pop.state import PopState
from cometmq.broker.storage.group_commit import GroupCommit
from cometmq.broker.traffic import Traffic


class Pops(Service):
    """Serves pops and acknowledgements. With `group_commit` their answers wait as those to sends do.

    `mode_of(topic, group)` returns what operators chose. Where no group pops, the service has no timer and nothing in the log.
    """

    runs_on_slave = False

    def __init__(
        self,
        parts: Parts,
        traffic: Traffic,
        group_commit: GroupCommit | None,
        mode_of: Callable[[str, str], tuple[str, int]],
    ) -> None:
        self._parts = parts
        self.state = PopState(parts)
        checks = PopChecks(parts)
        holders = Holders()
        self._pops = PopHandler(parts, self.state, checks, holders, traffic, group_commit)
        self._acks = AckHandler(
            parts, self.state, checks, holders, self._pops.became_visible, group_commit
        )
        self._questions = PopQuestions(parts, self.state, holders, mode_of)
        self.revival = Revival(parts, self.state, self._pops.became_visible)
        self.roll = self.state.roll

    async def open(self) -> None:
        """Find out what is in flight."""
        # In a thread, because it reads the log.
        await asyncio.get_running_loop().run_in_executor(None, self.state.open)
        parts = self._parts
        parts.topics.on_remove.append(self.state.forget_topic)
        parts.groups.on_remove.append(self.state.forget_group)
        self._pops.register(parts.handlers)
        self._acks.register(parts.handlers)
        self._questions.register(parts.handlers)

    def start(self) -> None:
        self.state.start()
        self.revival.start()

    def close(self) -> None:
        self.revival.close()
        self.state.close()

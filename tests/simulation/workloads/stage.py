"""Gives the workloads of one run what they share: the cluster, the history, and numbers for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.simulation.history import AnyEvent, History, SendAcknowledged

from cometmq.testing.cluster import Cluster
from cometmq.testing.virtual.clock import EPOCH_MS
from cometmq.testing.virtual.node import Node
from cometmq.testing.virtual.world import World

OPERATOR: Final = "operator"
# Where brokers of a cluster in virtual time listen.
BROKER_PORT: Final = 10911


class Stage:
    """Holds what workloads share. Numbers of messages, sends and deliveries are those of the run."""

    def __init__(self, cluster: Cluster, history: History, directory: Path) -> None:
        self.cluster = cluster
        self.history = history
        self._directory = directory
        self._world = World.current()
        self.began_s = self.at_s
        # Is told of each acknowledgement in the moment in which its producer is.
        self.acknowledged: Callable[[SendAcknowledged], None] = lambda _: None
        self._messages = itertools.count()
        self._sends = itertools.count()
        self._deliveries = itertools.count()

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    @property
    def at_s(self) -> float:
        """The world's time. A node's own clock may be wrong."""
        return self._world.loop.now_s

    @property
    def now_ms(self) -> int:
        """The world's time as a wall clock shows it."""
        return EPOCH_MS + int(self.at_s * 1000)

    @property
    def elapsed_s(self) -> float:
        """The time since the schedule began."""
        return self.at_s - self.began_s

    async def sleep_until(self, elapsed_s: float) -> None:
        """Wait for a time of the schedule; return at once if it is past."""
        if (left_s := elapsed_s - self.elapsed_s) > 0:
            await asyncio.sleep(left_s)

    def node(self, name: str) -> Node:
        return self.cluster.node(name)

    def directory(self, name: str) -> Path:
        """Return a directory for the files of a client."""
        return self._directory / name

    def kill(self, name: str) -> None:
        """End a client's process without a word."""
        self.cluster.kill(name)

    def record(self, event: AnyEvent) -> None:
        self.history.record(event)
        if isinstance(event, SendAcknowledged):
            self.acknowledged(event)

    def next_message(self) -> int:
        return next(self._messages)

    def next_send(self) -> int:
        return next(self._sends)

    def next_delivery(self) -> int:
        return next(self._deliveries)

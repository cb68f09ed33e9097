"""Simulates one process: `namesrv-0`, `broker-a`, `app-1`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, Token, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from cometmq.runtime.surroundings import SURROUNDINGS, Surroundings
from cometmq.testing.virtual.clock import NodeClock
from cometmq.testing.virtual.loop import NODE
from cometmq.testing.virtual.workers import NodeWorkers

if TYPE_CHECKING:
    from cometmq.testing.virtual.world import World

T = TypeVar("T")


class NodeKilledError(RuntimeError):
    """The node was killed while somebody outside of it awaited its work."""


class Node:
    """Has an address, a clock, workers and surroundings of its own. `World.node` makes it.

    What is made inside of `with node:` belongs to it: tasks, timers, clients, servers.
    """

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.clock = NodeClock(world.loop)
        self.workers = NodeWorkers(self, world.randomness_of(f"workers of {name}"))
        self.surroundings = Surroundings(
            clock=self.clock,
            randomness=world.randomness_of(name),
            network=world.network.of(host),
            workers=self.workers,
            is_virtual=True,
        )
        self.is_paused = False
        self.is_killed = False
        self._held: list[asyncio.Handle] = []
        self._entered: list[tuple[Token[Node | None], Token[Surroundings]]] = []

    def __enter__(self) -> Node:
        self._entered.append((NODE.set(self), SURROUNDINGS.set(self.surroundings)))
        return self

    def __exit__(self, *_: object) -> None:
        node, surroundings = self._entered.pop()
        SURROUNDINGS.reset(surroundings)
        NODE.reset(node)

    def context(self) -> Context:
        """Return a new context of the node, for `call_soon(…, context=…)` from outside of it."""
        with self:
            return copy_context()

    async def run_in(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` as a task of this node and return its result.

        Raises NodeKilledError if the node is killed meanwhile.
        """
        task = asyncio.get_running_loop().create_task(coroutine, context=self.context())
        return await task

    def pause(self) -> None:
        """Run nothing of this node until `resume`. Its clock goes on."""
        self.is_paused = True

    def resume(self) -> None:
        """Run what was kept while the node was paused, and go on."""
        self.is_paused = False
        held, self._held = self._held, []
        self.world.loop.run_again(held)

    def kill(self) -> None:
        """End this node: nothing of it runs any more, not even a `finally`."""
        self.is_killed = True

    def skew_clock(self, ms: int) -> None:
        """Set the wall clock forward by `ms`, back if that is negative."""
        self.clock.skew(ms)

    def drift_clock(self, rate: float) -> None:
        """Let both clocks go `rate` times as fast as the loop's time."""
        self.clock.drift(rate)

    def takes(self, handle: asyncio.Handle) -> bool:
        """Return whether `handle` may run now. For the loop; keeps the handle of a paused node."""
        if self.is_killed:
            return False
        if self.is_paused:
            self._held.append(handle)
            return False
        return True

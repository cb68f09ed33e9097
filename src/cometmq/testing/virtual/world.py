"""Holds all nodes of one virtual loop and what they draw from one seed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.runtime.randomness import Randomness
from cometmq.testing.virtual.loop import NODE, VirtualLoop
from cometmq.testing.virtual.network import VirtualNetwork
from cometmq.testing.virtual.node import Node

T = TypeVar("T")

MAIN: Final = "main"


class Event(NamedTuple):
    time_s: float
    node: str
    event: str


class World:
    """Makes nodes, and runs coroutines on them. One seed gives one history."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.history: list[Event] = []
        self._randomness: dict[str, Randomness] = {}
        self.network = VirtualNetwork(self.randomness_of("network"))
        self.nodes: dict[str, Node] = {}

    @staticmethod
    def current() -> World:
        """Return the world of the running code. Raises RuntimeError outside of any."""
        node = NODE.get()
        if node is None:
            raise RuntimeError(
                "this code runs on no node of a virtual world; call it inside of run()"
            )
        return node.world

    def randomness_of(self, use: str) -> Randomness:
        """Return the generator of one use, always the same one.

        Its numbers depend on the seed and on `use`: a draw for one use shifts no other.
        """
        if use not in self._randomness:
            made = Randomness()
            made.seed(f"{self.seed}:{use}")
            self._randomness[use] = made
        return self._randomness[use]

    def node(self, name: str) -> Node:
        """Return the node called `name`; make it, with the next free address, if there is none."""
        if name not in self.nodes:
            number = len(self.nodes)
            self.nodes[name] = Node(self, name, f"10.0.{number // 250}.{number % 250 + 1}")
        return self.nodes[name]

    def record(self, event: str, node: Node | str | None = None) -> None:
        """Add to `history` what happened to `node` (default: the running code's) now."""
        if node is None:
            node = NODE.get()
        name = node.name if isinstance(node, Node) else node or ""
        self.history.append(Event(self.loop.now_s, name, event))

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` on the node `main` and return its result. A world runs once."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            return runner.run(main, context=self.node(MAIN).context())

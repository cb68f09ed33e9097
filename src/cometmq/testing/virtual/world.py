"""Hold all nodes of one virtual loop, and their random numbers from one seed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, Self, TypeVar

from cometmq.runtime.randomness import Randomness
from cometmq.testing.faults import MAIN
from cometmq.testing.virtual.errors import LeftBehindError
from cometmq.testing.virtual.loop import NODE, VirtualLoop
from cometmq.testing.virtual.node import Node, close_coroutine
from cometmq.testing.virtual.origins import innermost_of_users
from cometmq.testing.virtual.wire.network import VirtualNetwork

T = TypeVar("T")

# How long it takes until a closed connection is closed at the other end, too.
_SETTLING_S: Final = 1.0
# How long a task that is cancelled at the end of a run may take for its `finally`.
_CANCELLING_S: Final = 60.0


class Event(NamedTuple):
    time_s: float
    node: str
    event: str


class World:
    """Makes nodes, and runs coroutines among them. One seed gives one history.

    with World(seed=7) as world:
        world.run(main())

    The end of the `with` statement reports tasks, timers and connections that are left.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.history: list[Event] = []
        self._randomness: dict[str, Randomness] = {}
        self.network = VirtualNetwork(
            self.randomness_of("network"), record=lambda node, event: self.record(event, node)
        )
        # By name, the last process of each; `processes` has those before it, too.
        self.nodes: dict[str, Node] = {}
        self.processes: list[Node] = []
        # It lets Ctrl-C end the run. It is not closed: `_end` knows what has been killed.
        self._runner = asyncio.Runner(loop_factory=lambda: self.loop)

    @staticmethod
    def current() -> World:
        """Return the world of the running code. Raises RuntimeError outside of any."""
        node = NODE.get()
        if node is None:
            raise RuntimeError(
                "this code runs on no node of a virtual world; call it in a coroutine that "
                'cometmq.testing.run(…) runs, or write `with Cluster(clock="virtual")`'
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
            host = f"10.0.{number // 250}.{number % 250 + 1}"
            self.network.add(name, host)
            self.nodes[name] = Node(self, name, host)
        return self.nodes[name]

    def restart(self, name: str) -> Node:
        """Begin a new process on the machine of a killed node, and return it as the node `name`.

        It has the same address, and its clocks go on.
        """
        former = self.nodes[name]
        if not former.is_killed:
            raise RuntimeError(f"{name} runs; kill it before its restart")
        node = self.nodes[name] = Node(self, name, former.host)
        return node

    def record(self, event: str, node: Node | str | None = None) -> None:
        """Add an event of `node` (default: the running code's) to `history`, with the present
        time.
        """
        if node is None:
            node = NODE.get()
        name = node.name if isinstance(node, Node) else node or ""
        self.history.append(Event(self.loop.now_s, name, event))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """End the world. Raises LeftBehindError if something is left, unless there is an error."""
        __tracebackhide__ = True  # pytest shows the message, not these lines
        left: list[str] = []
        try:
            if error is None:
                self.loop.run_until_complete(asyncio.sleep(_SETTLING_S))
                left = self._left_behind()
        finally:
            self._end()
        if left:
            raise LeftBehindError(
                "the run has ended and left behind (close clients and servers, cancel timers, await "
                "tasks):" + "".join(f"\n  {each}" for each in left)
            )

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` on the node `main` and return its result. May be called again.

        A Ctrl-C raises KeyboardInterrupt at the line of the user's where `main` was.
        """
        try:
            return self._runner.run(main, context=self.node(MAIN).context())
        except KeyboardInterrupt as error:
            # The runner raises a new one, behind the cancellation of `main`, at a line of its own.
            before = error.__context__
            is_runners = type(error) is KeyboardInterrupt and isinstance(
                before, asyncio.CancelledError
            )
            interrupted = innermost_of_users(before) if is_runners else None
            if interrupted is None:
                raise
        line, traceback = interrupted
        raise KeyboardInterrupt(f"at {line}").with_traceback(traceback)

    def _left_behind(self) -> list[str]:
        tasks, timers = self.loop.tasks(), self.loop.timers()
        return [
            *(f"the task {task.described()}; made at {task.made_at}" for task in tasks),
            *(timer.described() for timer in timers),
            *self.network.open_connections(),
        ]

    def _end(self) -> None:
        """Cancel the remaining tasks, and close the loop."""
        loop = self.loop
        for node in self.processes:
            node.resume()
        try:
            if tasks := loop.tasks():
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCELLING_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            for task in loop.tasks():
                task.forget()
                close_coroutine(task.get_coro())
            for node in self.processes:
                node.bury()
            loop.close()

"""Simulate one process: `namesrv-0`, `broker-a`, `app-1`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
from collections.abc import Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.runtime.surroundings import SURROUNDINGS, Surroundings
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing.virtual.clock import NodeClock
from cometmq.testing.virtual.errors import NodeKilledError
from cometmq.testing.virtual.handles import NODE, Handle, VirtualTask
from cometmq.testing.virtual.storage.disk import VirtualDisk
from cometmq.testing.virtual.workers import NodeWorkers

if TYPE_CHECKING:
    from cometmq.testing.virtual.world import World

T = TypeVar("T")

# A clean-up with more awaits than this is given up, and Python reports it on stderr.
_CLOSED_AT_MOST: Final = 100
# The contexts to which `with node:` returns, the innermost last. They belong to the task that entered.
_OUTER: Final[ContextVar[tuple[tuple[Node | None, Surroundings], ...]]] = ContextVar(
    "cometmq.outer_nodes", default=()
)


class Node:
    """Has an address, a clock, a disk, workers and surroundings of its own. `World.node` makes it.

    Tasks, timers, clients and servers that are made inside of `with node:` belong to it. A second
    node of one name is the next process on the same machine: its clocks go on, and
    it has the disk.
    """

    def __init__(self, world: World, name: str, host: str) -> None:
        number = len(world.processes) + 1
        self.world = world
        self.name = name
        self.host = host
        former = world.nodes.get(name)
        self.clock: NodeClock = NodeClock(world.loop) if former is None else former.clock
        self.disk: VirtualDisk = former.disk if former is not None else self._new_disk()
        self.workers = NodeWorkers(self, world.randomness_of(f"workers of {name}"))
        self.surroundings = Surroundings(
            clock=self.clock,
            randomness=world.randomness_of(name),
            network=world.network.of(host),
            workers=self.workers,
            files=self.disk.files,
            process_id=lambda: number,
            is_killed=lambda: self.is_killed,
            is_virtual=True,
        )
        self.is_paused = False
        self.is_killed = False
        self._held: list[Handle] = []
        # The coroutines that ran when the node was killed. As long as they are kept, no `finally` of
        # them runs.
        self._remains: tuple[list[VirtualTask[Any]], list[Handle]] = ([], [])
        self._awaited_outside: dict[asyncio.Future[Any], None] = {}
        self._tasks = TaskOwner(name)
        world.processes.append(self)

    def __repr__(self) -> str:
        state = "killed" if self.is_killed else "paused" if self.is_paused else "running"
        return f"<{self.name} at {self.host}, {state}>"

    def _new_disk(self) -> VirtualDisk:
        return VirtualDisk(
            self.world.randomness_of(f"disk of {self.name}"),
            self.clock,
            record=partial(self.world.record, node=self.name),
        )

    def __enter__(self) -> Node:
        _OUTER.set((*_OUTER.get(), (NODE.get(), SURROUNDINGS.get())))
        NODE.set(self)
        SURROUNDINGS.set(self.surroundings)
        return self

    def __exit__(self, *_: object) -> None:
        *outer, (node, surroundings) = _OUTER.get()
        _OUTER.set(tuple(outer))
        NODE.set(node)
        SURROUNDINGS.set(surroundings)

    def context(self) -> Context:
        """Return a new context of the node, for `call_soon(…, context=…)` from outside of it."""
        with self:
            return copy_context()

    async def run_in(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` as a task of this node and return its result.

        Raises NodeKilledError if the node is killed before the task has ended.
        """
        if self.is_killed:
            coroutine.close()
            raise self._killed()
        with self:
            task = self._tasks.spawn(coroutine, "run_in", log_failure=False)
        outside: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited_outside[outside] = None
        task.add_done_callback(lambda _: None if outside.done() else outside.set_result(None))
        try:
            await outside
        except asyncio.CancelledError:
            if not self.is_killed:
                task.cancel()
            raise
        finally:
            del self._awaited_outside[outside]
        return task.result()

    def pause(self) -> None:
        """Run nothing of this node until `resume`. Its clock goes on. Idempotent."""
        self.is_paused = True

    def resume(self) -> None:
        """Run what was kept while the node was paused, and go on. Idempotent."""
        self.is_paused = False
        held, self._held = self._held, []
        self.world.loop.run_again(held)

    def kill(self) -> None:
        """End this node: nothing of it runs any more, not even a `finally`. Idempotent.

        Call it from another node: the callback that runs at the moment goes on to its end.
        """
        if self.is_killed:
            return
        self.is_killed = True
        tasks, handles = self.world.loop.drop(self)
        self._remains = (tasks, [*handles, *self._held])
        self._held = []
        for outside in self._awaited_outside:
            if not outside.done():
                outside.set_exception(self._killed())

    def bury(self) -> None:
        """Let go of what ran when the node was killed. For the world, when its run has ended."""
        tasks, handles = self._remains
        for handle in handles:
            handle.cancel()
        for task in tasks:
            close_coroutine(task.get_coro())
        self._remains = ([], [])

    def skew_clock(self, ms: int) -> None:
        """Set the wall clock forward by `ms`, back if that is negative."""
        self.clock.skew(ms)

    def drift_clock(self, rate: float) -> None:
        """Let both clocks go `rate` times as fast as the loop's time, and the timers with them."""
        former = copy.copy(self.clock)
        self.clock.drift(rate)
        self.world.loop.rescale(self, former.at)

    def lets_run(self, handle: Handle) -> bool:
        """Return whether `handle` may run now. For the loop; keeps the handle of a paused node."""
        if self.is_killed:
            self._remains[1].append(handle)
            return False
        if self.is_paused:
            self._held.append(handle)
            return False
        return True

    def _killed(self) -> NodeKilledError:
        return NodeKilledError(f"{self.name} was killed; restart it, or await nothing of it")


def close_coroutine(outermost: Any) -> None:
    """End a coroutine that is suspended, and those that it awaits, whatever their `finally` do.

    A `finally` that awaits goes on from there when it is closed once more, and one that needs the
    loop fails. A coroutine that is still suspended then is reported on stderr.
    """
    kept = list(_awaited(outermost))
    for each in kept:
        for _ in range(_CLOSED_AT_MOST):
            if inspect.getcoroutinestate(each) == inspect.CORO_CLOSED:
                break
            kept += _awaited(each)
            with contextlib.suppress(BaseException):
                each.close()


def _awaited(outermost: Any) -> Iterator[Coroutine[Any, Any, Any]]:
    """Give a coroutine and those that it waits for, or will once it begins, the outermost first."""
    while inspect.iscoroutine(outermost):
        yield outermost
        if inspect.getcoroutinestate(outermost) == inspect.CORO_CREATED:
            for argument in inspect.getcoroutinelocals(outermost).values():
                yield from _awaited(argument)
        outermost = outermost.cr_await

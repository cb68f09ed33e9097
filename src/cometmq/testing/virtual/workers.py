"""Do the work of a node's workers in the loop's thread, at times drawn from the seed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.runtime.randomness import Randomness
from cometmq.testing.virtual.errors import NodeKilledError

if TYPE_CHECKING:
    from cometmq.testing.virtual.node import Node

_SHORTEST_S: Final = 0.0001
_LONGEST_S: Final = 0.005


class _Work(Future[Any]):
    """Is a piece of work. A caller that blocks on it has the worker do all that it has left."""

    def __init__(self, worker: VirtualWorker) -> None:
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> Any:
        self._finish()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._finish()
        return super().exception(timeout)

    def _finish(self) -> None:
        if not self.done():
            self._worker.finish()


class VirtualWorker(Executor):
    """Does one piece of work after the other, each `delay_s()` after the former one was done.

    The worker of a `node` is paused and killed with it, even if another node hands it work.
    """

    def __init__(
        self,
        name: str,
        delay_s: Callable[[], float],
        on_done: Callable[[str], None],
        node: Node | None = None,
    ) -> None:
        self._node = node
        self._name = name
        self._delay_s = delay_s
        self._on_done = on_done
        self._waiting: deque[tuple[_Work, Callable[[], Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_shut_down:
            raise RuntimeError(f"the worker {self._name} is shut down")
        work = _Work(self)
        self._waiting.append((work, partial(fn, *args, **kwargs)))
        self._arm()
        return work

    def finish(self) -> None:
        """Do at once all that is left."""
        while self._waiting:
            self._do_one()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert wait, "a worker that nobody waits for would outlive its server"
        assert not cancel_futures
        self._is_shut_down = True
        self.finish()

    def _arm(self) -> None:
        if self._waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            context = None if self._node is None else self._node.context()
            self._timer = loop.call_later(self._delay_s(), self._driven, context=context)

    def _driven(self) -> None:
        self._timer = None
        self._do_one()
        self._arm()

    def _do_one(self) -> None:
        if self._node is not None and self._node.is_killed:
            self._waiting.clear()
            raise NodeKilledError(f"the worker {self._name} of {self._node.name} was killed")
        work, call = self._waiting.popleft()
        if not work.set_running_or_notify_cancel():
            return
        try:
            work.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it reaches the caller that waits for the work
            work.set_exception(error)
        self._on_done(self._name)


class NodeWorkers:
    """Makes the workers of a node. `slow_down(s)` adds that much to each piece of work."""

    def __init__(self, node: Node, randomness: Randomness) -> None:
        self._node = node
        self._randomness = randomness
        self._extra_s = 0.0

    def worker(self, name: str) -> VirtualWorker:
        return VirtualWorker(name, self._draw_s, self._done, self._node)

    def slow_down(self, seconds: float) -> None:
        """Let each piece of work take `seconds` longer from now on; 0 ends that."""
        self._extra_s = seconds

    def _draw_s(self) -> float:
        return (
            self._extra_s
            + self._node.disk.slow_s
            + self._randomness.uniform(_SHORTEST_S, _LONGEST_S)
        )

    def _done(self, name: str) -> None:
        self._node.world.record(f"worker {name}", self._node)

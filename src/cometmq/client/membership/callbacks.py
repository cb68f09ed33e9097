"""Call the user when queues come and go (Java: MessageQueueListener)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from cometmq.client.consuming.listeners.listening import takes_await
from cometmq.client.namespaces import Namespace
from cometmq.client.pulling.gates import Gates
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.runtime.daemon_threads import DaemonThreads
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# Takes the queues that came or go. A function runs in a thread of its own, a coroutine function on the loop.
QueueCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]

# Threads for functions. A function that never returns takes a thread for good.
_THREADS: Final = 4


class QueueCallbacks:
    """Calls `on_assigned` and `on_revoked`, one at a time, each for `limit_s` at most. For the loop's thread.

    A queue is expected while it is begun. Its gate is closed until `on_assigned` has returned, so that none
    of its messages is consumed before. `on_revoked` is called only for queues that `on_assigned` got.
    Before `open` nothing is called, since the methods of a consumer work only once it has started.
    """

    def __init__(
        self,
        group: str,
        namespace: Namespace,
        gates: Gates,
        on_assigned: QueueCallback | None,
        on_revoked: QueueCallback | None,
        limit_s: float,
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._gates = gates
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._limit_s = limit_s
        self._owner = TaskOwner(f"callbacks-{group}")
        self._threads = DaemonThreads(_THREADS, f"callbacks-{group}")
        self._expected: set[MessageQueue] = set()
        self._announced: set[MessageQueue] = set()
        self._turn = asyncio.Lock()
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Begin to call; queues that came before are announced now."""
        self._opened.set()

    async def close(self) -> None:
        await self._owner.close()
        self._threads.close()

    @property
    def _idle(self) -> bool:
        return self._on_assigned is None and self._on_revoked is None

    def expect(self, queue: MessageQueue) -> None:
        """Keep a queue's gate closed until it is announced or forgotten."""
        if not self._idle:
            self._expected.add(queue)
            self._gates.hold(queue)

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Expect queues no longer, because they could not be begun or go before they were announced."""
        for queue in queues:
            if queue in self._expected:
                self._expected.discard(queue)
                self._gates.release(queue)

    async def announce(self) -> None:
        """Call `on_assigned` for the queues expected. Before `open`, do not wait for the call."""
        if not self._expected:
            return
        task = self._owner.spawn(self._announce(), "on_assigned")
        if self._opened.is_set():
            await asyncio.wait((task,))

    async def revoke(self, queues: Iterable[MessageQueue]) -> None:
        """Call `on_revoked` for those of `queues` that were announced."""
        if self._idle or not self._opened.is_set():
            return
        async with self._turn:
            gone = [queue for queue in queues if queue in self._announced]
            self._announced.difference_update(gone)
            if gone and self._on_revoked is not None:
                await self._call("on_revoked", self._on_revoked, gone)

    async def _announce(self) -> None:
        async with self._turn:
            await self._opened.wait()
            queues, self._expected = sorted(self._expected), set()
            self._announced.update(queues)
            try:
                if queues and self._on_assigned is not None:
                    await self._call("on_assigned", self._on_assigned, queues)
            finally:
                for queue in queues:
                    self._gates.release(queue)

    async def _call(self, name: str, callback: QueueCallback, queues: list[MessageQueue]) -> None:
        visible = [self._namespace.unwrap_queue(queue) for queue in sorted(queues)]
        task = self._owner.spawn(self._run(callback, visible), name, log_failure=False)
        await asyncio.wait((task,), timeout=self._limit_s)
        if not task.done():
            task.cancel()
            log.error(
                "a callback takes too long, the consumer goes on without it",
                callback=name,
                function=getattr(callback, "__qualname__", repr(callback)),
                group=self._group,
                queues=[str(queue) for queue in visible],
                rebalance_callback_timeout_s=self._limit_s,
                remedy="do long work elsewhere, or set rebalance_callback_timeout_ms",
            )
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a callback failed, the consumer goes on",
                callback=name,
                group=self._group,
                queues=[str(queue) for queue in visible],
                exc_info=error,
            )

    async def _run(self, callback: QueueCallback, queues: list[MessageQueue]) -> None:
        if takes_await(callback):
            outcome = callback(queues)
        else:
            outcome = await self._threads.run(callback, queues)
        if inspect.isawaitable(outcome):
            await outcome

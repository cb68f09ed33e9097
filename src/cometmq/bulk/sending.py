"""Many requests under way at once, in order where order is asked for. For one loop.

What is to be sent comes as parcels: a batch of messages that are encoded already, or one message that
cannot go into a batch. The parcels of one queue that are `ordered` go one after the other, the next
when the one before is acknowledged, so that a retry overtakes nothing; all others at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from cometmq.errors import CometMQError, Stored
from cometmq.model.queue import MessageQueue
from cometmq.runtime.back_off import BackOff
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

FIRST_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one request carries.

    `properties` is None for a batch of `count` messages, whose encoding `body` is (see
    `cometmq.protocol.batch`); else the properties string of one message, with its unique id.
    Unless `ordered`, another queue of the topic does as well.
    """

    queue: MessageQueue
    body: bytes
    count: int
    ordered: bool
    properties: str | None = None
    flag: int = 0
    sys_flag: int = 0


# One attempt, the number of which (from 0) may choose another queue.
Send = Callable[[Parcel, int], Awaitable[None]]


class BulkSending:
    """Sends parcels with `send`, at most `in_flight` at a time.

    What fails is sent again for `patience_s`. With `once`, what may have been stored is not: all
    stops then, and `doubt` is the failure.
    """

    def __init__(
        self, send: Send, *, in_flight: int, patience_s: float, once: bool = False
    ) -> None:
        self._send = send
        self._patience_s = patience_s
        self._once = once
        self._room = asyncio.Semaphore(in_flight)
        self._tasks = TaskOwner("bulk-sending")
        self._lanes: dict[MessageQueue, deque[Parcel]] = {}
        self._error: CometMQError | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.doubt: CometMQError | None = None

    async def put(self, parcels: Iterable[Parcel]) -> None:
        """Begin to send these, in their order; returns when all are under way or wait for their turn.

        Raises what failed for good since then.
        """
        for parcel in parcels:
            await self._room.acquire()
            if self._stopped:
                self._room.release()
                break
            self._begin(parcel)
        self._raise()

    async def flush(self) -> None:
        """Wait until all that was put is acknowledged. Raises what failed for good."""
        while self._running:
            await asyncio.wait(self._running)
        self._raise()

    async def close(self) -> None:
        """Give up what is under way."""
        await self._tasks.close()

    # Inside

    @property
    def _stopped(self) -> bool:
        return self.doubt is not None or self._error is not None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _begin(self, parcel: Parcel) -> None:
        if not parcel.ordered:
            self._spawn(self._deliver(parcel))
            return
        lane = self._lanes.get(parcel.queue)
        if lane is not None:
            lane.append(parcel)
            return
        self._lanes[parcel.queue] = deque((parcel,))
        self._spawn(self._drain(parcel.queue))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.spawn(work, "send")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _drain(self, queue: MessageQueue) -> None:
        lane = self._lanes[queue]
        try:
            while lane:
                await self._deliver(lane.popleft())
        finally:
            del self._lanes[queue]

    async def _deliver(self, parcel: Parcel) -> None:
        try:
            if not self._stopped:
                await self._try(parcel)
        except CometMQError as error:
            if self._error is None:
                self._error = error
        finally:
            self._room.release()

    async def _try(self, parcel: Parcel) -> None:
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        back_off, attempt = BackOff(FIRST_PAUSE_S), 0
        while True:
            try:
                await self._send(parcel, attempt)
            except CometMQError as error:
                if error.stored is Stored.UNKNOWN and self._once:
                    log.warning("it is not known what is stored", reason=str(error))
                    self.doubt = error
                    return
                # The first failure starts the clock, not the wait for a slow answer before it.
                deadline = deadline or loop.time() + self._patience_s
                if not error.retriable or loop.time() > deadline:
                    raise
            else:
                return
            if self._stopped:
                return
            await back_off.wait()
            attempt += 1

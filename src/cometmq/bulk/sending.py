"""Send many requests at once, and keep order where callers ask for it. For one loop.

Callers put parcels: batches of messages that are encoded already, or single messages that cannot go
into a batch. The `ordered` parcels of one queue are sent one after the other: the next one when the
one before is acknowledged, so that a retry overtakes no parcel. All other parcels are sent at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from cometmq.errors import CometMQError, Stored
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.runtime.back_off import BackOff
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

FIRST_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Parcel:
    """Holds the content of one request.

    For a batch of `count` messages `properties` is None and `body` is the batch's encoding (see
    `cometmq.protocol.messages.batch`). For one message `properties` is its properties string, with its
    unique id. A parcel that is not `ordered` may also go to another queue of the topic.
    """

    queue: MessageQueue
    body: bytes
    count: int
    ordered: bool
    properties: str | None = None
    flag: int = 0
    sys_flag: int = 0


# Makes one attempt. The attempt's number, from 0, may make it choose another queue.
Send = Callable[[Parcel, int], Awaitable[None]]


class BulkSending:
    """Sends parcels with `send`, at most `in_flight` at a time.

    A parcel that fails is sent again for `patience_s`. With `once`, a parcel that may have been
    stored is not sent again: then all sending stops, and `doubt` has the failure.
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
        """Begin to send parcels, in order. Return when all are under way or wait for their turn.

        Raises the error of the first parcel, of this call or an earlier one, that failed for good.
        """
        for parcel in parcels:
            await self._room.acquire()
            if self._stopped:
                self._room.release()
                break
            self._begin(parcel)
        self._raise()

    async def flush(self) -> None:
        """Wait until all parcels are acknowledged.

        Raises the error of the first parcel that failed for good.
        """
        while self._running:
            await asyncio.wait(self._running)
        self._raise()

    async def close(self) -> None:
        """Give up the parcels under way."""
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
                    log.warning("the stored messages are not known", reason=str(error))
                    self.doubt = error
                    return
                # The patience begins at the first failure: a slow answer before it does not count.
                deadline = deadline or loop.time() + self._patience_s
                if not error.retriable or loop.time() > deadline:
                    raise
            else:
                return
            if self._stopped:
                return
            await back_off.wait()
            attempt += 1

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
from enum import Enum
from typing import Any, Final

import structlog

from cometmq.errors import (
    AccessDeniedError,
    CometMQError,
    ConnectError,
    RemoteError,
    RemotingError,
    RouteNotFoundError,
    TooManyRequestsError,
)
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_LAST_S: Final = 1.0

# Answers of a broker that has not stored the message and may do so later.
_NOT_NOW: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
    }
)


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


class Outcome(Enum):
    """What a failed request says of its messages."""

    NOT_STORED = "not stored"
    UNKNOWN = "stored or not"
    REFUSED = "refused for good"


def outcome_of(error: CometMQError) -> Outcome:
    if isinstance(error, (ConnectError, RouteNotFoundError, TooManyRequestsError)):
        return Outcome.NOT_STORED
    if isinstance(error, RemotingError):
        return Outcome.UNKNOWN
    if isinstance(error, RemoteError) and not isinstance(error, AccessDeniedError):
        if error.code in _NOT_NOW:
            return Outcome.NOT_STORED
        if error.code == ResponseCode.SYSTEM_ERROR:
            return Outcome.UNKNOWN
    return Outcome.REFUSED


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
        pause_s, attempt = RETRY_FIRST_S, 0
        while True:
            try:
                await self._send(parcel, attempt)
            except CometMQError as error:
                outcome = outcome_of(error)
                if outcome is Outcome.UNKNOWN and self._once:
                    log.warning("it is not known what is stored", reason=str(error))
                    self.doubt = error
                    return
                # The first failure starts the clock, not the wait for a slow answer before it.
                deadline = deadline or loop.time() + self._patience_s
                if outcome is Outcome.REFUSED or loop.time() > deadline:
                    raise
            else:
                return
            if self._stopped:
                return
            await asyncio.sleep(pause_s)
            pause_s, attempt = min(pause_s * 2, RETRY_LAST_S), attempt + 1

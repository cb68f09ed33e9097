"""The requests of this side of a connection that wait for their answers.

    a call is      until                                and then
    on its way     its answer comes                     returns the answer
    on its way     its timeout is over                  raises RequestTimeoutError
    on its way     the connection is lost               raises ConnectionLostError
    over           its answer comes after all           the answer is dropped

One timer looks for calls that have timed out. A timer for each call would cost a sender of many
messages more than the send of its request, and nearly all timers would be cancelled. A look costs time for each call
that waits. So the interval between looks grows with their number, and a call may time out late by
one interval.

For the loop's thread only.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from cometmq.errors import ConnectionLostError, RequestTimeoutError, TooManyRequestsError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.command import RemotingCommand

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection

log = get_logger(__name__)

_MAX_OPAQUE: Final = 0x7FFF_FFFF
# The opaque of an answer that no request asked for; its remark says why the server closes the
# connection. No client gives a request this opaque.
UNASKED: Final = -1
# If a timer fires later than this, the process itself held it up.
_LATE_S: Final = 0.05
# A timer of uvloop may fire this much too early.
_TICK_S: Final = 0.001
# The time from one look to the next, for each call that waits: ten times what a look costs, and less than
# _LATE_S with as many calls as may wait. No clock measures the look, because others may have the processor.
_APART_S: Final = 0.5e-6


class Calls:
    """The calls of one connection, by their opaques. Methods take the connection as an argument: an
    attribute would make a reference cycle, which only the garbage collector frees.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By opaque: the future, the time at which the request was sent, and the timeout in s.
        self._waiting: dict[int, tuple[asyncio.Future[RemotingCommand], float, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        # No look is due before.
        self._rest_until = 0.0
        self._next_opaque = 0
        # Why the server closes the connection, if it has said so.
        self._last_words = ""

    @property
    def count(self) -> int:
        """Return how many calls wait for their answers."""
        return len(self._waiting)

    def take_opaque(self) -> int:
        """Return the opaque of the next request."""
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & _MAX_OPAQUE
        return opaque

    def begin(
        self, connection: Connection, opaque: int, timeout_s: float
    ) -> asyncio.Future[RemotingCommand]:
        """Return the future of the answer to a request that is sent now."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        sent_at = loop.time()
        self._waiting[opaque] = (future, sent_at, timeout_s)
        due_at = max(sent_at + timeout_s, self._rest_until)
        if due_at < self._timer_at:
            self._look_at(connection, loop, due_at, set())
        return future

    def check_room(self, connection: Connection) -> None:
        """Raise TooManyRequestsError if as many calls wait as may."""
        if len(self._waiting) >= self._limit:
            raise TooManyRequestsError(
                f"{len(self._waiting)} calls to {connection.peer} wait for an answer, the limit "
                f"max_outstanding_calls is {self._limit}; wait for some before sending more",
                address=connection.peer,
            )

    def answered(self, connection: Connection, command: RemotingCommand) -> None:
        """Hand an answer to the call that waits for it."""
        call = self._waiting.pop(command.opaque, None)
        if call is not None and not call[0].done():
            call[0].set_result(command)
            return
        if command.opaque == UNASKED and not connection.is_of_server:
            self._last_words = command.remark or ""
        log.debug("answer came too late", peer=connection.peer, opaque=command.opaque)

    def lost(self, connection: Connection, reason: Exception | None) -> None:
        """Fail all calls: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        calls, self._waiting = self._waiting, {}
        for future, _, _ in calls.values():
            if not future.done():
                error = self.lost_before(connection, "the answer came")
                error.__cause__ = connection.fault or reason
                future.set_exception(error)

    def lost_before(self, connection: Connection, event: str) -> ConnectionLostError:
        """Return the error of a call whose connection closed before `event`."""
        hint = ""
        if not connection.heard and not connection.is_of_server:
            hint = "; the peer has never answered: it may require TLS, or not accept it"
        if connection.fault is not None:
            hint = f": it does not speak RocketMQ's protocol ({connection.fault})"
        if self._last_words:
            hint = f": {self._last_words}"
        return ConnectionLostError(
            f"the connection to {connection.peer} closed before {event}{hint}",
            address=connection.peer,
        )

    def _look_at(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        at_s: float,
        doubted: set[int],
    ) -> None:
        """Look at `at_s` for calls that are over. The calls in `doubted` were over at the previous look."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at_s
        self._timer = loop.call_at(at_s, self._look, connection, doubted)

    def _look(self, connection: Connection, doubted: set[int]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer, self._timer_at = None, math.inf
        next_at, any_silent = math.inf, False
        over: list[int] = []
        unclear: set[int] = set()
        for opaque, (future, sent_at, timeout_s) in self._waiting.items():
            if future.done():  # its caller was cancelled
                over.append(opaque)
                continue
            deadline = sent_at + timeout_s
            if deadline > now + _TICK_S:
                next_at = min(next_at, deadline)
                continue
            silent = connection.is_silent(sent_at, now)
            if opaque not in doubted and (silent or now > deadline + _LATE_S):
                # The loop of this process may have been blocked. Bytes that the peer sent meanwhile are
                # read before it counts as silent: uvloop serves timers before it reads.
                unclear.add(opaque)
                continue
            over.append(opaque)
            any_silent = any_silent or silent
            future.set_exception(
                RequestTimeoutError(
                    f"{connection.peer} did not answer within {timeout_s * 1000:.0f} ms",
                    address=connection.peer,
                )
            )
        if unclear:
            next_at = now + 0.001
        self._rest_until = now + _APART_S * len(self._waiting)
        if next_at < math.inf:
            self._look_at(connection, loop, max(next_at, self._rest_until), unclear)
        if any_silent:
            connection.drop_silent()
        for opaque in over:
            self._waiting.pop(opaque, None)

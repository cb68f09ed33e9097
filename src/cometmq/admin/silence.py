"""Know which servers are silent, so that a caller in haste waits for each of them once.

A page of the console asks a server many questions, and the next page asks it again. A server that
has fallen silent (its process hangs, or its packets are dropped) would cost each question the full
timeout. Calls within `in_haste` give up if the server has sent nothing to any caller since they asked
it, and do not ask a server that is known to be silent. All other calls wait for the usual time; they
notice when the server answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from cometmq.errors import ConnectError, RequestTimeoutError, SilentServerError
from cometmq.runtime.clock import Clock

T = TypeVar("T")

# For so long after its last unanswered question a silent server gets no questions in haste. The console
# asks every server at least every ten seconds without haste.
KEPT_S: Final = 15.0
# A question that is asked without haste counts its server as silent after so long a wait.
LEAST_S: Final = 1.0
# If a timer fires later than this, the process itself stood still, and has to read what servers sent meanwhile.
_LATE_S: Final = 0.05
# Addresses come and go where containers do.
_MOST_SERVERS: Final = 4096
_HASTE: Final[ContextVar[float | None]] = ContextVar("cometmq.admin.haste", default=None)


@contextmanager
def in_haste(silence_s: float) -> Iterator[None]:
    """Have all calls in this block, and in the tasks that begin in it, give up a server that stays
    silent for `silence_s`. They raise SilentServerError for it.
    """
    token = _HASTE.set(silence_s)
    try:
        yield
    finally:
        _HASTE.reset(token)


@dataclass(frozen=True, slots=True)
class _Silence:
    """Says since when a server is silent, and until when it is spared, by the loop's clock."""

    since_s: float
    since_ms: int
    until_s: float


class Silences:
    """Listens to the servers of one client. For the loop's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard_s: dict[str, float] = {}
        self._silent: dict[str, _Silence] = {}

    def check(self, address: str, what: str) -> None:
        """Raise SilentServerError if the caller is in haste and the server is known to be
        silent.
        """
        found = self._silent.get(address)
        if _HASTE.get() is None or found is None:
            return
        if found.until_s > asyncio.get_running_loop().time():
            raise self._error(address, what, found)

    async def listen(
        self, address: str, what: str, call: Awaitable[T], *, passed_on: bool = False
    ) -> T:
        """Return the result of a call of a server, and note whether the server answers.

        A question that is `passed_on` waits for a client of the server, which may hang: the server's
        silence then says nothing. Raises SilentServerError if the caller is in haste.
        """
        began_s, silence_s = asyncio.get_running_loop().time(), _HASTE.get()
        try:
            if silence_s is None or passed_on:
                answer = await call
            else:
                answer = await self._while_it_speaks(address, what, call, began_s, silence_s)
        except SilentServerError:
            raise
        except (ConnectError, RequestTimeoutError, asyncio.CancelledError):
            waited_s = asyncio.get_running_loop().time() - self._last_s(address, began_s)
            if not passed_on and waited_s >= LEAST_S:
                self._note(address, began_s)
            raise
        self._spoke(address)
        return answer

    async def _while_it_speaks(
        self, address: str, what: str, call: Awaitable[T], began_s: float, silence_s: float
    ) -> T:
        """Await a call until the server has said nothing to anybody for `silence_s`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                timer: asyncio.TimerHandle

                def look(*, again: bool = False) -> None:
                    nonlocal timer
                    due_s = self._last_s(address, began_s) + silence_s
                    if due_s > loop.time():
                        timer = loop.call_at(due_s, look)
                    elif loop.time() > due_s + _LATE_S and not again:
                        timer = loop.call_later(_LATE_S, partial(look, again=True))
                    else:
                        limit.reschedule(loop.time())

                timer = loop.call_at(began_s + silence_s, look)
                try:
                    return await call
                finally:
                    timer.cancel()
        except RequestTimeoutError:  # the call's own
            raise
        except TimeoutError as error:
            raise self._error(address, what, self._note(address, began_s)) from error

    def _last_s(self, address: str, began_s: float) -> float:
        return max(began_s, self._heard_s.get(address, began_s))

    def _spoke(self, address: str) -> None:
        if len(self._heard_s) >= _MOST_SERVERS:
            self._heard_s.clear()
        self._heard_s[address] = asyncio.get_running_loop().time()
        self._silent.pop(address, None)

    def _note(self, address: str, began_s: float) -> _Silence:
        now_s = asyncio.get_running_loop().time()
        since_s = self._last_s(address, began_s)
        known = self._silent.get(address)
        if known is None:
            if len(self._silent) >= _MOST_SERVERS:
                self._silent.clear()
            since_ms = self._clock.now_ms() - round((now_s - since_s) * 1000)
            known = _Silence(since_s, since_ms, 0.0)
        noted = _Silence(known.since_s, known.since_ms, now_s + KEPT_S)
        self._silent[address] = noted
        return noted

    @staticmethod
    def _error(address: str, what: str, silence: _Silence) -> SilentServerError:
        silent_s = asyncio.get_running_loop().time() - silence.since_s
        error = SilentServerError(
            f"{address} has answered nothing for {silent_s:.1f} s, so it was not "
            f"asked for {what}; check that the server runs, can be reached from here and does not hang",
            address=address,
        )
        error.since_ms = silence.since_ms
        return error

"""Wait until something is the case: `eventually` on a thread, `until` on an event loop.

A test reads the time and pauses by `CLOCK`, so that it runs in real and in virtual time alike.

All deadlines of tests come from here. They are as much longer as the machine was slower when the tests
started, which `tests.pace` measures once.

Both ask again and again, for what tests wait for rarely announces itself. A deadline is for what never
comes, so it is long: a busy machine may take all of it. The error of a wait in vain shows the condition
as the test has it in its source, the value seen last, and the values of its names.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from tests.pace import PACE
from tests.real_sleeps import check_sleep

from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock

# What must come has all the time that a busy machine may need.
WAIT_S = 60.0 * PACE
# A program that a test runs: Python starts again, and it may run a whole example.
PROCESS_WAIT_S = 200.0 * PACE
# Spark, and what else takes a JVM or two of the same machine.
JVM_WAIT_S = 600.0 * PACE
# What an answer to a send may take. Clients wait for three seconds unless they are told otherwise.
SEND_WAIT_MS = int(WAIT_S * 1000)

# How often about, at most, something is looked at in virtual time that does not come soon.
_LOOKS = 400

# What a test or a client reads from the machine's clock and what a broker says may differ by so much:
# both cut a time to whole milliseconds, and the broker looks at that clock only now and then. A wait of
# a second from one to the other has come to 999 ms.
CLOCKS_APART_MS = 5

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 300
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxset = _SHOWN.maxdict = 20

T = TypeVar("T")


class RunningClock:
    """Reads the time of the test that runs: the machine's, or its virtual cluster's.

    In virtual time `sleep` has the cluster run for so long.
    """

    def __init__(self) -> None:
        self._clock: BlockingClock = SYSTEM_CLOCK

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float, /) -> None:
        if self._clock is SYSTEM_CLOCK:
            check_sleep(seconds)
        self._clock.sleep(seconds)

    def next_pause(self, pause_s: float, wait_s: float) -> float:
        """Return how long to wait after the next look of a wait for up to `wait_s`.

        In virtual time each look costs more than the wait, so they become rarer.
        """
        if self._clock is SYSTEM_CLOCK:
            return pause_s
        return max(pause_s, min(1.2 * pause_s, wait_s / _LOOKS))

    @contextmanager
    def of(self, clock: BlockingClock) -> Iterator[None]:
        before, self._clock = self._clock, clock
        try:
            yield
        finally:
            self._clock = before


CLOCK = RunningClock()


@overload
def eventually(
    look: Callable[[], T | None],
    *,
    wait_s: float = WAIT_S,
    pause_s: float = 0.01,
    passing: tuple[type[Exception], ...] = (),
    note: str = "",
) -> T: ...
@overload
def eventually(
    look: Callable[[], T],
    fits: Callable[[T], object],
    *,
    wait_s: float = WAIT_S,
    pause_s: float = 0.01,
    passing: tuple[type[Exception], ...] = (),
    note: str = "",
) -> T: ...
def eventually(
    look: Callable[[], Any],
    fits: Callable[[Any], object] = bool,
    *,
    wait_s: float = WAIT_S,
    pause_s: float = 0.01,
    passing: tuple[type[Exception], ...] = (),
    note: str = "",
) -> Any:
    """Return what `look` sees as soon as it `fits`, which is any true value unless said otherwise.

    AssertionError after `wait_s`. An error that `look` raises ends the wait, unless it is `passing`:
    from a server that is away for a while, for example. The text of a failure has `note`, such as a
    seed.
    """
    deadline = CLOCK.monotonic() + wait_s
    while True:
        try:
            seen = look()
        except passing as error:
            seen = error
        else:
            if fits(seen):
                return seen
        if CLOCK.monotonic() >= deadline:
            raise AssertionError(_in_vain(look, fits, wait_s, seen) + (note and f"\n{note}"))
        CLOCK.sleep(pause_s)
        pause_s = CLOCK.next_pause(pause_s, wait_s)


async def until(
    look: Callable[[], Any],
    fits: Callable[[Any], object] = bool,
    *,
    wait_s: float = WAIT_S,
    pause_s: float = 0.005,
) -> Any:
    """Do what `eventually` does, and let the loop go on meanwhile. `look` may be a coroutine function.

    A coroutine that does not return in time is cancelled.
    """
    seen: Any = "nothing yet"
    try:
        async with asyncio.timeout(wait_s) as scope:
            while True:
                seen = look()
                if inspect.isawaitable(seen):
                    seen = await seen
                if fits(seen):
                    return seen
                await asyncio.sleep(pause_s)
    except TimeoutError as error:
        if not scope.expired():
            raise  # of `look` itself
        raise AssertionError(_in_vain(look, fits, wait_s, seen)) from error


def _in_vain(
    look: Callable[..., object], fits: Callable[..., object], wait_s: float, seen: object
) -> str:
    names = {**_names_of(fits), **_names_of(look)}
    stood_for = "".join(f"\n    {name} = {_SHOWN.repr(value)}" for name, value in names.items())
    return (
        f"waited in vain for {wait_s:g} s:\n{textwrap.indent(_source(look), '    ')}\n"
        f"last seen: {_SHOWN.repr(seen)}" + (f"\nwith{stood_for}" if stood_for else "")
    )


def _source(look: Callable[..., object]) -> str:
    # A bound method says of which object it is, and a partial has no source.
    if not inspect.isfunction(look):
        return repr(look)
    return textwrap.dedent(inspect.getsource(look)).strip()


def _names_of(look: Callable[..., object]) -> dict[str, Any]:
    return dict(inspect.getclosurevars(look).nonlocals) if inspect.isfunction(look) else {}

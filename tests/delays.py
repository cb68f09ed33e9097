"""A pytest plugin that finds tests which assume that something is prompt: it makes it late, at random.

    .venv/bin/python -m pytest -p tests.delays -n 3 tests/integration

What is late is what the protocol promises only for some time: a call's answer, the registration of a
topic, a rebalance, a state file, the end of a listener, a thread's beginning. COMETMQ_DELAYS names some
of them (`calls,listeners,…`), else all are; `stalls` stops the whole process now and then, and is for
whoever asks for it. A test that fails under these delays fails in CI some day.

Nothing is late in virtual time but threads and stalls: a slow machine does not change such a run, and its tests
state the moment at which each thing happens. The simulator (`make sim`) draws how slow its network is.

The last lines print COMETMQ_DELAYS_SEED. With it the same delays are drawn again, but threads and processes
may take them in another order.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from cometmq.testing.virtual.loop import VirtualLoop

# Workers of xdist inherit it from the process that starts them.
SEED = os.environ.setdefault("COMETMQ_DELAYS_SEED", str(secrets.randbelow(1_000_000)))
_CHANCE = random.Random(SEED)


def _in_virtual_time() -> bool:
    return isinstance(asyncio._get_running_loop(), VirtualLoop)


def pytest_configure() -> None:
    wanted = os.environ.get("COMETMQ_DELAYS")
    kinds = wanted.split(",") if wanted else [kind for kind in DELAYS if kind != "stalls"]
    for kind in kinds:
        DELAYS[kind]()


# At the end, since `-q` leaves out what pytest says at the beginning.
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"with delays: COMETMQ_DELAYS_SEED={SEED}")


def _wrapped(owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
    before = getattr(owner, name)
    setattr(owner, name, functools.wraps(before)(wrap(before)))


def _soon(owner: type, name: str, *delays_s: float) -> None:
    """Delay the calls of a method of the loop's thread that returns nothing."""

    def wrap(method: Callable[..., None]) -> Callable[..., None]:
        def later(*arguments: Any) -> None:
            if _in_virtual_time():
                method(*arguments)
            else:
                asyncio.get_running_loop().call_later(_CHANCE.choice(delays_s), method, *arguments)

        return later

    _wrapped(owner, name, wrap)


def _blocking(owner: type, name: str, *delays_s: float, after: bool = False) -> None:
    def pause() -> None:
        if not _in_virtual_time():
            time.sleep(_CHANCE.choice(delays_s))

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any) -> Any:
            if not after:
                pause()
            outcome = method(*arguments)
            if after:
                pause()
            return outcome

        return late

    _wrapped(owner, name, wrap)


def _calls() -> None:
    from cometmq.remoting.client import RemotingClient

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        async def late(self: Any, address: str, command: Any, timeout_s: float) -> Any:
            if _in_virtual_time():
                return await call(self, address, command, timeout_s)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            # Calls to one address stay in their order, as on its connection.
            turns: dict[str, asyncio.Lock] = self.__dict__.setdefault("turns", {})
            async with turns.setdefault(address, asyncio.Lock()):
                if _CHANCE.random() < 0.3:
                    await asyncio.sleep(min(_CHANCE.uniform(0, 0.15), timeout_s / 2))
            # The caller waits no longer than it would for an answer that is late.
            left_s = max(timeout_s - (loop.time() - began_s), timeout_s / 2)
            return await call(self, address, command, left_s)

        return late

    _wrapped(RemotingClient, "call", wrap)


def _registrations() -> None:
    from cometmq.broker.operation import registration

    usual_s = registration._ANNOUNCEMENT_WAIT_S

    def wrap(announced: Callable[..., Any]) -> Callable[..., Any]:
        async def briefly(self: Any) -> None:
            # A test that relies on the announcement has set a longer wait.
            wanted = usual_s < registration._ANNOUNCEMENT_WAIT_S
            # The first send to a topic waits at most this long until the name servers know the topic.
            wait_s = None if wanted or _in_virtual_time() else 0.01
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await announced(self)

        return briefly

    def wrap_changes(register: Callable[..., Any]) -> Callable[..., Any]:
        async def later(self: Any) -> None:
            if not _in_virtual_time():
                await asyncio.sleep(_CHANCE.choice((0, 0, 0.3)))
            await register(self)

        return later

    _wrapped(registration.Registration, "announced", wrap)
    _wrapped(registration.Registration, "_register_changes", wrap_changes)


def _rebalances() -> None:
    from cometmq.client.membership.rebalance import Rebalancer

    _soon(Rebalancer, "soon", 0, 0.1, 0.6)


def _files() -> None:
    from cometmq.runtime.state_files.json_file import JsonFile

    _blocking(JsonFile, "write", 0, 0.05, 0.2)


def _listeners() -> None:
    from tests.integration.client_faces import Received

    _blocking(Received, "handle", 0, 0, 0, 0.02, 0.1, after=True)


def _threads() -> None:
    _blocking(threading.Thread, "run", 0, 0, 0.05)


# On a busy machine a process may stand still for a whole second, but short stalls are more frequent.
_STALLS_US = (20_000, 80_000, 250_000, 1_000_000)
_STALL_WEIGHTS = (4, 3, 2, 1)


def _stalls() -> None:
    # Called so, a function of C keeps the interpreter lock.
    pause_us = ctypes.PyDLL(None).usleep

    def stall() -> None:
        while True:
            time.sleep(_CHANCE.uniform(0, 0.4))
            pause_us(_CHANCE.choices(_STALLS_US, _STALL_WEIGHTS)[0])

    threading.Thread(target=stall, daemon=True).start()


DELAYS = {
    "calls": _calls,
    "registrations": _registrations,
    "rebalances": _rebalances,
    "files": _files,
    "listeners": _listeners,
    "threads": _threads,
    "stalls": _stalls,
}

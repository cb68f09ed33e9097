"""Refuses what would hold up the only thread of virtual time, or leave its world."""

from __future__ import annotations

import builtins
import functools
import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cometmq.runtime.clock import SystemClock
from cometmq.testing.virtual.errors import BlockingCallError
from cometmq.testing.virtual.origins import calling_line

_ELSEWHERE: Final = "have a fake of what is there in virtual time, or run this test in real time"
_SLEEP: Final = "write `await asyncio.sleep(…)`"
_AWAIT: Final = "await it: in virtual time there is no other thread that could end this wait"
_THREAD: Final = "make it a task, or write `await asyncio.to_thread(…)`, which is done at once"

# What is refused: its owner, its attribute, its name for the message, and the remedy.
_REFUSED: Final[tuple[tuple[Any, str, str, str], ...]] = (
    (SystemClock, "sleep", "time.sleep", _SLEEP),
    (threading.Thread, "start", "threading.Thread.start", _THREAD),
    (threading.Condition, "wait", "a wait for another thread", _AWAIT),
    (socket.socket, "connect", "socket.connect", _ELSEWHERE),
    (socket.socket, "connect_ex", "socket.connect_ex", _ELSEWHERE),
    (socket.socket, "bind", "socket.bind", _ELSEWHERE),
    (socket.socket, "sendto", "socket.sendto", _ELSEWHERE),
    (socket, "getaddrinfo", "socket.getaddrinfo", _ELSEWHERE),
    (socket, "gethostbyname", "socket.gethostbyname", _ELSEWHERE),
    (subprocess.Popen, "__init__", "subprocess.Popen", _ELSEWHERE),
    (os, "system", "os.system", _ELSEWHERE),
    (os, "fork", "os.fork", _ELSEWHERE),
    (builtins, "input", "input", "pass what it would return"),
)
_REAL_SLEEP: Final = time.sleep
_LOOK_UP: Final = socket.getaddrinfo
_WAIT: Final = threading.Condition.wait


def refusal(name: str, remedy: str) -> BlockingCallError:
    """Return the error that names the line of the caller."""
    line, _ = calling_line()
    return BlockingCallError(f"{name} was called in virtual time, at {line}; {remedy}")


# Whom to tell of a refused call, by the thread whose loop runs.
_fail_of: Final[dict[int, Callable[[BlockingCallError], None]]] = {}


@contextmanager
def refuse_blocking_calls(fail: Callable[[BlockingCallError], None]) -> Iterator[None]:
    """Have blocking calls of this thread raise BlockingCallError, and `fail` called with it.

    `fail` is there because whoever calls a listener may catch its errors and go on. A test that
    drives a cluster from outside of its loop comes here for each wait, so this takes microseconds.
    """
    thread = threading.get_ident()
    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, attribute: str, replacement: Any) -> None:
        undo.append((owner, attribute, vars(owner).get(attribute, _NOT_THERE)))
        setattr(owner, attribute, replacement)

    _fail_of[thread] = fail
    for owner, attribute, replacement in _replacements():
        replace(owner, attribute, replacement)
    sleep = _refusing_sleep()
    _find_holders_of_sleep()
    for module, attribute in _holders_of_sleep:
        if vars(module).get(attribute) is _REAL_SLEEP:
            replace(module, attribute, sleep)
    try:
        yield
    finally:
        for owner, attribute, former in reversed(undo):
            if former is _NOT_THERE:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, former)
        del _fail_of[thread]


def _refusing(real: Callable[..., Any], name: str, remedy: str) -> Callable[..., Any]:
    @functools.wraps(real)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        fail = _fail_of.get(threading.get_ident())
        if fail is None or (real is _LOOK_UP and _is_address(args[0])):
            return real(*args, **kwargs)
        if real is _WAIT and _is_over_at_once(*args[1:], **kwargs):
            return real(*args, **kwargs)
        if args and isinstance(args[0], socket.socket):
            args[0].close()  # nobody else will: its maker expects an OSError
        error = refusal(name, remedy)
        fail(error)
        raise error

    return refuse


@functools.cache
def _replacements() -> list[tuple[Any, str, Any]]:
    """Return what takes the place of each refused call: its owner, its attribute, and that."""
    made = []
    for owner, attribute, name, remedy in _REFUSED:
        refuse = _refusing(getattr(owner, attribute), name, remedy)
        made.append((owner, attribute, staticmethod(refuse) if owner is SystemClock else refuse))
    return made


@functools.cache
def _refusing_sleep() -> Callable[..., Any]:
    return _refusing(_REAL_SLEEP, "time.sleep", _SLEEP)


_NOT_THERE: Final = object()


def _is_over_at_once(timeout: float | None = None) -> bool:
    """Return whether a wait only looks, as the pool does that is about to start a thread."""
    return timeout is not None and timeout <= 0


def _is_address(host: object) -> bool:
    """Return whether a look-up of `host` asks nobody."""
    try:
        ipaddress.ip_address(str(host))
    except ValueError:
        return False
    return True


# The modules looked at, and those that have `time.sleep`, also by `from time import sleep`.
_known: set[str] = set()
_holders_of_sleep: list[tuple[Any, str]] = []


def _find_holders_of_sleep() -> None:
    """Look at the modules imported since the last look: to look at all takes milliseconds."""
    if len(sys.modules) == len(_known):
        return
    for name in sys.modules.keys() - _known:
        _known.add(name)
        module = sys.modules[name]
        names = getattr(module, "__dict__", None) or {}
        _holders_of_sleep.extend(
            (module, name)
            for name, value in list(names.items())
            if value is _REAL_SLEEP and module is not sys.modules[__name__]
        )

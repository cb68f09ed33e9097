"""Refuse calls that would hold up the only thread of virtual time, or leave its world."""

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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cometmq.logs.line_writer import THREAD_NAME
from cometmq.runtime.clock import SystemClock
from cometmq.testing.virtual.errors import BlockingCallError
from cometmq.testing.virtual.origins import calling_line

_ELSEWHERE: Final = "use a fake of it in virtual time, or run this test in real time"
_SLEEP: Final = "write `await asyncio.sleep(…)`"
_AWAIT: Final = "await it: in virtual time there is no other thread that could end this wait"
_THREAD: Final = "make it a task, or write `await asyncio.to_thread(…)`, which is done at once"

# The refused calls: owner, attribute, name for the message, and the remedy.
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
_START: Final = threading.Thread.start


def refusal(name: str, remedy: str) -> BlockingCallError:
    """Return the error that names the line of the caller."""
    line, _ = calling_line()
    return BlockingCallError(f"{name} was called in virtual time, at {line}; {remedy}")


# The functions to call with the error of a refused call, by the thread whose loop runs.
_fail_of: Final[dict[int, Callable[[BlockingCallError], None]]] = {}
# The replaced functions: owner, attribute and original. Threads that run loops at the same time share
# the replacements; the last of them puts everything back.
_replaced: Final[list[tuple[Any, str, Any]]] = []
_changing: Final = threading.RLock()  # also for what the garbage collector runs in here


@contextmanager
def refuse_blocking_calls(fail: Callable[[BlockingCallError], None]) -> Iterator[None]:
    """Have blocking calls of this thread raise BlockingCallError, and `fail` called with it.

    `fail` is there because the caller of a listener may catch its errors and go on. A test that
    drives a cluster from outside of its loop comes here for each wait, so this takes microseconds.
    """
    thread = threading.get_ident()
    with _changing:
        former = _fail_of.get(thread)
        _replace(everything=not _fail_of)
        _fail_of[thread] = fail
    try:
        yield
    finally:
        with _changing:
            if former is not None:  # a run within a run, which the loop refuses
                _fail_of[thread] = former
            else:
                del _fail_of[thread]
            if not _fail_of:
                _put_back()


def _replace(*, everything: bool) -> None:
    def replace(owner: Any, attribute: str, replacement: Any) -> None:
        _replaced.append((owner, attribute, vars(owner).get(attribute, _NOT_THERE)))
        setattr(owner, attribute, replacement)

    if everything:
        for owner, attribute, name, remedy in _REFUSED:
            refuse = _refusing(getattr(owner, attribute), name, remedy)
            replace(owner, attribute, staticmethod(refuse) if owner is SystemClock else refuse)
    # Frameworks on anyio call their users' functions in anyio's threads. A program may import anyio late.
    threads = sys.modules.get("anyio.to_thread")
    if threads is not None and not any(owner is threads for owner, _, _ in _replaced):
        replace(threads, "run_sync", _at_once(threads.run_sync))
    sleep = _refusing(_REAL_SLEEP, "time.sleep", _SLEEP)
    _find_holders_of_sleep()
    for module, attribute in _holders_of_sleep:
        if vars(module).get(attribute) is _REAL_SLEEP:
            replace(module, attribute, sleep)


def _put_back() -> None:
    while _replaced:
        owner, attribute, former = _replaced.pop()
        if former is _NOT_THERE:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, former)


# It is asked for the same few in each run; a test may have put a fake into the place of one.
@functools.lru_cache(256)
def _refusing(real: Callable[..., Any], name: str, remedy: str) -> Callable[..., Any]:
    @functools.wraps(real)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        fail = _fail_of.get(threading.get_ident())
        if fail is None or (real is _LOOK_UP and _is_address(args[0] if args else kwargs["host"])):
            return real(*args, **kwargs)
        if real is _WAIT and _is_over_at_once(*args[1:], **kwargs):
            return real(*args, **kwargs)
        if real is _START and args[0].name == THREAD_NAME:
            return _let_through(lambda: real(*args, **kwargs))
        if args and isinstance(args[0], socket.socket):
            args[0].close()  # nobody else will: its maker expects an OSError
        error = refusal(name, remedy)
        fail(error)
        raise error

    return refuse


def _at_once(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return `anyio.to_thread.run_sync` for virtual time: like `asyncio.to_thread`, it calls in this thread."""

    @functools.wraps(real)
    async def run_sync(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if threading.get_ident() in _fail_of:
            return func(*args)
        return await real(func, *args, **options)

    return run_sync


def _let_through(call: Callable[[], Any]) -> Any:
    """Return what `call` does, and refuse nothing meanwhile: it is over at once."""
    thread = threading.get_ident()
    with _changing:
        fail = _fail_of.pop(thread)
        try:
            return call()
        finally:
            _fail_of[thread] = fail


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


# The modules looked at, in the order of `sys.modules`, and those of all that were ever seen there that
# have `time.sleep`, also by `from time import sleep`.
_looked_at: list[Any] = []
_holders_of_sleep: Final[list[tuple[Any, str]]] = []


def _find_holders_of_sleep() -> None:
    """Look at the modules that are new since the last look: to look at all takes milliseconds.

    New ones are found by identity. Their number or names would not do: tests take modules out of
    `sys.modules`, and import others, or the same ones again.
    """
    global _looked_at  # noqa: PLW0603 - what is at hand belongs to the interpreter, as `sys.modules`
    modules = list(sys.modules.values())
    if modules == _looked_at:
        return
    known = set(map(id, _looked_at))
    for module in modules:
        names = getattr(module, "__dict__", None) or {}
        if id(module) not in known and names is not globals():  # here it must stay the real one
            _holders_of_sleep.extend(
                (module, name) for name, value in list(names.items()) if value is _REAL_SLEEP
            )
    _looked_at = [module for module in modules if not _is_being_imported(module)]


def _is_being_imported(module: Any) -> bool:
    """Return whether `module` may still be given names, so that it has to be looked at again."""
    names = getattr(module, "__dict__", None) or {}
    return getattr(names.get("__spec__"), "_initializing", False) is True

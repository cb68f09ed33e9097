"""Refuse sleeps of a second or more of real time in tests, but for those that have a reason.

Longer waits belong into virtual time: `pytest.mark.faces("virtual")` or `Cluster(clock="virtual")`.
`asyncio.sleep` and `tests.waits.CLOCK` are asked when they are called, for only then is it known whose
time passes; `time.sleep` is always real, so `blocking_sleeps` reads the source.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

TESTS: Final = Path(__file__).parent
ROOMS: Final = ("unit", "integration", "crash")
LIMIT_S: Final = 1.0

# Tests that may, and why, with the function that sleeps.
REASONS: Final[dict[str, str]] = {
    "integration/test_descriptor_limits.py::test_silent_connections_give_their_place_to_who_speaks": (
        "a server in a process of its own, whose descriptors count, takes no connection for silent "
        "in its first second"
    ),
    "integration/test_orderly.py::test_a_slow_listener_keeps_its_queue_until_it_is_done": (
        "the blocking face is proved, too: another member asks for the lock once a second"
    ),
    "unit/client/fakes.py::FakeRemoting.call": "stands for a broker that never answers; it is cancelled",
    "unit/remoting/test_holdings.py::test_the_one_who_stalls_is_cut_and_not_the_one_who_sends_more": (
        "bytes held by a socket count by how long they are held, and the next bytes take a moment"
    ),
}


class RealSleepError(AssertionError):
    """A test sleeps for long in real time. The message says where, and what to do."""


def check_sleep(seconds: float) -> None:
    """Refuse a sleep of real time by a test that has no reason for one so long."""
    if seconds < LIMIT_S:
        return
    place = _test_of(sys._getframe(1))
    if place is not None and place not in REASONS:
        raise RealSleepError(
            f"tests/{place} sleeps {seconds:g} s of real time; run it in virtual time, wait for what "
            "it waits for by tests.waits, or name it in tests/real_sleeps.py with the reason"
        )


def watch_asyncio() -> None:
    """Have `asyncio.sleep` refuse what tests may not sleep on a loop of the machine."""
    real = asyncio.sleep

    @functools.wraps(real)
    def sleep(delay: float, result: Any = None) -> Any:
        if delay >= LIMIT_S and _room(sys._getframe(1).f_code.co_filename) and _is_real_time():
            check_sleep(delay)
        return real(delay, result)

    asyncio.sleep = sleep


def blocking_sleeps(source: str, name: str) -> Iterator[str]:
    """Yield the place of each `time.sleep` of a second or more in a test module's source."""
    if "sleep(" not in source:
        return
    module = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for outer in module.body:
        for node in ast.walk(outer):
            if not (isinstance(node, ast.Call) and _is_blocking_sleep(node.func)):
                continue
            for argument in node.args[:1]:
                value: Any = None
                if isinstance(argument, ast.Constant):
                    value = argument.value
                elif isinstance(argument, ast.Name):
                    value = constants.get(argument.id)
                if isinstance(value, int | float) and value >= LIMIT_S:
                    yield f"{name}::{getattr(outer, 'name', '')}"


def _is_blocking_sleep(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "sleep"
    return isinstance(function, ast.Attribute) and ast.unparse(function) == "time.sleep"


def _is_real_time() -> bool:
    """Say whether a loop of the machine runs here."""
    loop = asyncio._get_running_loop()
    return isinstance(loop, asyncio.SelectorEventLoop) or type(loop).__module__ == "uvloop"


def _room(file: str) -> str | None:
    """Return the path below `tests` of a test's source, None for other files."""
    path = Path(file)
    below = path.relative_to(TESTS) if path.is_relative_to(TESTS) else None
    return below.as_posix() if below is not None and below.parts[0] in ROOMS else None


def _test_of(frame: FrameType | None) -> str | None:
    """Return the outermost test, or else the innermost function of the tests, that is running."""
    found = None
    while frame is not None:
        room = _room(frame.f_code.co_filename)
        if room is not None:
            function = frame.f_code.co_qualname.partition(".<locals>")[0]
            if found is None or function.startswith("test_"):
                found = f"{room}::{function}"
        frame = frame.f_back
    return found

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S, WAIT_S

from cometmq.runtime.loop import run
from cometmq.runtime.signals import stop_event


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_sets_the_event(number: signal.Signals) -> None:
    async def main() -> bool:
        with stop_event() as stop:
            os.kill(os.getpid(), number)
            async with asyncio.timeout(WAIT_S):
                await stop.wait()
            return stop.is_set()

    before = signal.getsignal(signal.SIGTERM)
    assert run(main())
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_ends_the_process_at_once() -> None:
    script = """
import asyncio, os, signal
from cometmq.runtime.loop import run
from cometmq.runtime.signals import stop_event
async def main():
    with stop_event() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=PROCESS_WAIT_S, check=False)
    assert ended.returncode == 128 + signal.SIGTERM


def test_the_loop_is_asyncios_own_where_uvloop_is_hidden() -> None:
    """CI runs a part of the integration tests like this, which would prove nothing on uvloop."""
    tests = Path(__file__).parents[2]
    program = (
        "from cometmq.runtime.loop import new_event_loop as new; print(type(new()).__module__)"
    )
    answer = subprocess.check_output(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tests / "without_uvloop")},
        text=True,
    )
    assert answer.strip() == "asyncio.unix_events"


def test_the_loop_is_uvloop_where_it_is_installed() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), uvloop.Loop)

    assert run(main())

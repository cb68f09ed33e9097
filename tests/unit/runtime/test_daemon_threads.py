"""Users' functions run in daemon threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from tests.waits import PROCESS_WAIT_S, WAIT_S

from cometmq.runtime.daemon_threads import DaemonThreads


async def test_results_and_errors_come_back() -> None:
    threads = DaemonThreads(2, "t")

    def divide(a: int, *, by: int) -> float:
        return a / by

    assert await threads.run(divide, 6, by=3) == 2
    with pytest.raises(ZeroDivisionError):
        await threads.run(divide, 1, by=0)
    for kind in (SystemExit, StopIteration, KeyboardInterrupt):

        def fail(kind: type[BaseException] = kind) -> None:
            raise kind("x")

        with pytest.raises(RuntimeError, match=f"the function raised {kind.__name__}"):
            await threads.run(fail)
    threads.close()


async def test_no_more_run_than_the_limit_and_all_are_daemons() -> None:
    threads = DaemonThreads(3, "limited")
    inside = threading.Semaphore(0)
    go_on = threading.Event()
    names = set()

    def wait() -> None:
        names.add(threading.current_thread().name)
        assert threading.current_thread().daemon
        inside.release()
        assert go_on.wait(WAIT_S)

    calls = asyncio.gather(*(threads.run(wait) for _ in range(8)))
    for _ in range(3):
        assert await asyncio.to_thread(inside.acquire, timeout=WAIT_S)
    assert not inside.acquire(blocking=False)
    go_on.set()
    await calls
    assert names == {"limited-1", "limited-2", "limited-3"}
    threads.close()


async def test_a_thread_is_used_again() -> None:
    threads = DaemonThreads(8, "t")
    seen = {await threads.run(threading.get_ident) for _ in range(10)}
    assert len(seen) == 1
    threads.close()


async def test_a_call_that_was_cancelled_is_not_made() -> None:
    threads = DaemonThreads(1, "t")
    go_on = threading.Event()
    made: list[int] = []
    first = asyncio.ensure_future(threads.run(go_on.wait, 60))
    second = asyncio.ensure_future(threads.run(made.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    go_on.set()
    assert await first
    await threads.run(made.append, 2)
    assert made == [2]
    threads.close()


def test_an_interpreter_ends_with_a_function_that_does_not() -> None:
    code = """
import asyncio, threading
from cometmq.runtime.daemon_threads import DaemonThreads
async def main():
    threads, begun = DaemonThreads(1, "t"), threading.Event()
    def stuck():
        begun.set()
        threading.Event().wait()
    call = asyncio.ensure_future(threads.run(stuck))
    # A call that is given up before a thread took it is not made.
    print("begun", await asyncio.to_thread(begun.wait, 60))
    try:
        await asyncio.wait_for(call, 0.05)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=True,
    )
    assert done.stdout == "begun True\ngiven up\n"

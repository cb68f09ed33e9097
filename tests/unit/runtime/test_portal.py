from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator

import pytest
from tests.waits import WAIT_S, eventually

from cometmq.errors import ClientStateError
from cometmq.runtime.portal import LoopThread


@pytest.fixture
def portal() -> Iterator[LoopThread]:
    portal = LoopThread()
    portal.start()
    yield portal
    portal.stop()


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise KeyError("no such thing")


def test_a_coroutine_runs_on_the_other_thread(portal: LoopThread) -> None:
    async def name() -> str:
        return threading.current_thread().name

    assert portal.call(answer(7)) == 7
    assert portal.call(name()) == "cometmq-loop"
    with pytest.raises(KeyError, match="no such thing"):
        portal.call(fail())


def test_who_stops_waiting_cancels_the_coroutine(portal: LoopThread) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    waiting = wait()
    with pytest.raises(TimeoutError):
        portal.call(waiting, timeout_s=0.01)
    # By itself it never ends. It may be cancelled before its first step, so it cannot tell.
    eventually(lambda: inspect.getcoroutinestate(waiting) == inspect.CORO_CLOSED)


def test_many_threads_may_call_at_once(portal: LoopThread) -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(portal.call(answer(i))))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(20))


def test_a_call_that_waits_while_the_thread_stops_is_told_so() -> None:
    portal = LoopThread()
    portal.start()
    waiting = threading.Event()
    raised: list[BaseException] = []

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.call(wait())
        except ClientStateError as error:
            raised.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waiting.wait(WAIT_S)
    portal.stop()
    caller.join(WAIT_S)
    assert [str(error) for error in raised] == ["the loop thread cometmq-loop was stopped"]
    assert not portal.running


def test_calls_before_the_start_after_the_stop_and_on_the_loop_are_refused() -> None:
    portal = LoopThread()
    with pytest.raises(ClientStateError, match="does not run"):
        portal.call(answer(1))
    portal.start()
    with pytest.raises(ClientStateError, match="started already"):
        portal.start()

    async def nested() -> None:
        portal.call(answer(1))

    with pytest.raises(ClientStateError, match="would wait for itself"):
        portal.call(nested())
    portal.stop()
    portal.stop()
    with pytest.raises(ClientStateError, match="does not run"):
        portal.call(answer(1))
    portal.start()
    assert portal.call(answer(2)) == 2
    portal.stop()


def test_a_fork_is_told_that_it_has_no_such_thread(
    portal: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        assert not portal.running
        with pytest.raises(ClientStateError, match=f"belongs to process {pid}"):
            portal.call(answer(1))
    assert portal.call(answer(1)) == 1

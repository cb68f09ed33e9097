from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, as_completed, wait
from contextvars import ContextVar
from typing import Any

import pytest
import structlog
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


def test_posts_run_in_their_order_with_the_callers_context_and_before_a_later_call(
    portal: LoopThread,
) -> None:
    seen: list[tuple[int, str]] = []
    caller: ContextVar[str] = ContextVar("caller")

    def note(number: int) -> None:
        seen.append((number, caller.get()))

    async def count() -> int:
        return len(seen)

    for number in range(1000):
        caller.set(f"post {number}")
        portal.post(functools.partial(note, number))
    assert portal.call(count()) == 1000
    assert seen == [(number, f"post {number}") for number in range(1000)]


def test_a_post_that_raises_is_logged_and_holds_up_no_other(
    portal: LoopThread,
) -> None:
    def fail_now() -> None:
        raise KeyError("a post's own error")

    with structlog.testing.capture_logs() as lines:
        portal.post(fail_now)
        assert portal.call(answer(1)) == 1
    assert [line["event"] for line in lines] == ["a call from another thread failed"]


def test_a_future_has_the_outcome_of_the_loops_future(portal: LoopThread) -> None:
    called: list[Any] = []
    good = portal.begin(lambda: asyncio.ensure_future(answer(3)))
    good.add_done_callback(lambda done: called.append(done.result()))
    bad = portal.submit(fail())
    no_futures: dict[str, asyncio.Future[int]] = {}
    unbegun = portal.begin(lambda: no_futures["nothing"])
    never = portal.submit(asyncio.Event().wait())
    futures: list[Future[Any]] = [good, bad, unbegun, never]
    done, rest = wait(futures, timeout=WAIT_S, return_when=FIRST_EXCEPTION)
    assert done
    assert never in rest
    assert good.result(WAIT_S) == 3
    assert isinstance(bad.exception(WAIT_S), KeyError)
    assert isinstance(unbegun.exception(WAIT_S), KeyError)
    with pytest.raises(TimeoutError):
        never.result(0.01)
    assert never.cancel()
    assert set(futures) == set(as_completed(futures, WAIT_S))
    with pytest.raises(CancelledError):
        never.result()
    assert called == [3]


def test_a_cancelled_future_cancels_what_it_stands_for(portal: LoopThread) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = portal.submit(work())
    assert begun.wait(WAIT_S)
    assert future.cancel()
    assert ended.wait(WAIT_S)


def test_all_that_was_posted_before_a_stop_is_told_of_it() -> None:
    portal = LoopThread()
    portal.start()
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        leave.wait(WAIT_S)

    portal.post(hold)
    assert held.wait(WAIT_S)
    # More than one turn of the loop takes.
    futures = [portal.submit(asyncio.Event().wait()) for _ in range(1000)]
    stopping = threading.Thread(target=portal.stop)
    stopping.start()
    leave.set()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert all(future.cancelled() for future in futures)
    with pytest.raises(ClientStateError, match="does not run"):
        portal.post(held.clear)

"""Running listeners in threads and in tasks, within bounds, and with lists of messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.waits import WAIT_S, until

from cometmq.client.consuming.listeners import listening
from cometmq.client.consuming.listeners.listening import (
    ConsumeJob,
    ListenerRunner,
    TaskRunner,
    ThreadRunner,
    listener_runner,
)
from cometmq.client.consuming.listeners.nothing_returned import refusing_none
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeResult

# Listeners run in threads.
pytestmark = pytest.mark.real_time

SUCCESS = ConsumeResult.SUCCESS
QUEUE = ProcessQueue(MessageQueue("t", "b", 0))


def jobs(count: int) -> list[ConsumeJob]:
    return [ConsumeJob(QUEUE, [MessageExt("t", b"x", queue_offset=i)]) for i in range(count)]


class Done:
    """Collects what a runner reports."""

    def __init__(self) -> None:
        self.jobs: list[ConsumeJob] = []
        self.reports = 0

    def __call__(self, done: list[ConsumeJob]) -> None:
        self.reports += 1
        self.jobs += done

    async def wait(self, count: int) -> None:
        await until(lambda: len(self.jobs) >= count)


def as_coroutine(listener: Callable[[list[MessageExt]], Any]) -> Any:
    async def listen(messages: list[MessageExt]) -> Any:
        return listener(messages)

    return listen


@pytest.fixture(params=["threads", "tasks"])
def wrap(request: pytest.FixtureRequest) -> Any:
    return as_coroutine if request.param == "tasks" else lambda listener: listener


async def test_each_job_is_run_once(wrap: Any) -> None:
    seen: list[int] = []
    done = Done()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        seen.extend(m.queue_offset for m in messages)
        return SUCCESS

    runner = listener_runner(wrap(listen), 4, "test", done)
    for start in range(0, 1000, 100):
        runner.submit(jobs(1000)[start : start + 100])
    await done.wait(1000)
    await runner.close(60)
    assert sorted(seen) == list(range(1000))
    assert all(job.result is SUCCESS for job in done.jobs)
    assert done.reports < 500


@pytest.mark.parametrize("returned", [True, "SUCCESS", ConsumeResult.RECONSUME_LATER])
async def test_whatever_is_not_success_is_for_later(wrap: Any, returned: Any) -> None:
    done = Done()
    runner = listener_runner(wrap(lambda _: returned), 1, "test", done)
    runner.submit(jobs(1))
    await done.wait(1)
    await runner.close(60)
    assert done.jobs[0].result is ConsumeResult.RECONSUME_LATER


async def test_a_listener_that_raises_does_not_end_the_runner(wrap: Any) -> None:
    done = Done()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        if messages[0].queue_offset % 2:
            raise KeyError("the listener's own error")
        messages.clear()  # its list is its own
        return SUCCESS

    runner = listener_runner(wrap(listen), 2, "test", done)
    runner.submit(jobs(10))
    await done.wait(10)
    await runner.close(60)
    results = {job.messages[0].queue_offset: job.result is SUCCESS for job in done.jobs}
    assert results == {i: i % 2 == 0 for i in range(10)}


async def test_slow_functions_get_as_many_threads_as_allowed() -> None:
    together = threading.Barrier(5)
    most, now = 0, 0
    lock = threading.Lock()

    def listen(_: list[MessageExt]) -> ConsumeResult:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(WAIT_S)  # fails unless five run at once
        time.sleep(0.01)
        with lock:
            now -= 1
        return SUCCESS

    done = Done()
    runner = ThreadRunner(listen, 5, "test", done)
    runner.submit(jobs(50))
    await done.wait(50)
    await runner.close(60)
    assert most == 5
    assert all(job.result is SUCCESS for job in done.jobs)


async def test_waiting_coroutines_run_side_by_side_up_to_the_bound() -> None:
    most, now = 0, 0

    async def listen(_: list[MessageExt]) -> ConsumeResult:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return SUCCESS

    done = Done()
    runner = TaskRunner(listen, 5, "test", done)
    runner.submit(jobs(50))
    await done.wait(50)
    await runner.close(60)
    assert most == 5


async def test_functions_that_hold_up_nobody_stay_in_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How long they take on this machine is not the matter.
    monkeypatch.setattr(listening, "_SLOW_S", 3600.0)
    monkeypatch.setattr(listening, "_LOOK_S", 3600.0)
    names = set()

    def listen(_: list[MessageExt]) -> ConsumeResult:
        names.add(threading.current_thread().name)
        return SUCCESS

    done = Done()
    runner = ThreadRunner(listen, 20, "test", done)
    for _ in range(20):
        runner.submit(jobs(32))
        await asyncio.sleep(0)
    await done.wait(640)
    await runner.close(60)
    assert len(names) == 1


async def test_jobs_that_come_one_by_one_wake_a_sleeping_thread() -> None:
    done = Done()
    runner = ThreadRunner(lambda _: SUCCESS, 2, "test", done)
    for count in range(1, 30):
        runner.submit(jobs(1))
        await done.wait(count)
    await runner.close(60)


async def test_close_drops_what_has_not_begun_and_waits_for_what_has(wrap: Any) -> None:
    entered, release = threading.Event(), threading.Event()
    ran = 0

    def listen(_: list[MessageExt]) -> ConsumeResult:
        nonlocal ran
        ran += 1
        entered.set()
        assert release.wait(WAIT_S)
        return SUCCESS

    async def listen_async(messages: list[MessageExt]) -> ConsumeResult:
        return await asyncio.to_thread(listen, messages)

    done = Done()
    function = wrap(lambda _: SUCCESS)
    chosen: Any = listen_async if asyncio.iscoroutinefunction(function) else listen
    runner: ListenerRunner = listener_runner(chosen, 1, "test", done)
    runner.submit(jobs(5))
    assert await asyncio.to_thread(entered.wait, 60)
    asyncio.get_running_loop().call_later(0.05, release.set)
    await runner.close(60)
    assert ran == 1
    assert [job.result for job in done.jobs] == [SUCCESS]


async def test_close_gives_up_on_a_listener_that_never_returns() -> None:
    entered = threading.Event()
    release = threading.Event()

    def listen(_: list[MessageExt]) -> ConsumeResult:
        entered.set()
        release.wait(2 * WAIT_S)
        return SUCCESS

    done = Done()
    runner = ThreadRunner(listen, 1, "test", done)
    runner.submit(jobs(1))
    assert await asyncio.to_thread(entered.wait, WAIT_S)
    async with asyncio.timeout(WAIT_S):
        await runner.close(0.05)
    assert done.jobs == []
    release.set()
    await done.wait(1)


async def test_an_object_with_an_async_call_is_a_coroutine_listener() -> None:
    class Listener:
        async def __call__(self, _: list[MessageExt]) -> ConsumeResult:
            return SUCCESS

    done = Done()
    runner = listener_runner(Listener(), 1, "test", done)
    assert isinstance(runner, TaskRunner)
    runner.submit(jobs(1))
    await done.wait(1)
    await runner.close(1)


async def test_the_start_of_consumption_is_noted(wrap: Any) -> None:
    starts: list[str] = []
    done = Done()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        starts.append(messages[0].properties["CONSUME_START_TIME"])
        return SUCCESS

    runner = listener_runner(wrap(listen), 1, "test", done)
    runner.submit(jobs(1))
    await done.wait(1)
    await runner.close(60)
    assert abs(int(starts[0]) - time.time() * 1000) < 60_000


async def test_jobs_that_come_as_the_last_task_ends_are_run() -> None:
    done = Done()
    runner = TaskRunner(as_coroutine(lambda _: SUCCESS), 1, "test", done)
    first, second = jobs(2)
    runner.submit([first])
    # Runs in the same turn of the loop as the task, right after it found no further job.
    asyncio.get_running_loop().call_soon(runner.submit, [second])
    await done.wait(2)
    await runner.close(60)


async def test_a_listener_that_returns_nothing_has_consumed_its_messages(wrap: Any) -> None:
    done = Done()
    runner = listener_runner(wrap(lambda _: None), 1, "test", done)
    runner.submit(jobs(1))
    await done.wait(1)
    await runner.close(60)
    assert done.jobs[0].plain_success


async def test_the_old_meaning_of_none_has_messages_consumed_again(wrap: Any) -> None:
    done = Done()
    runner = listener_runner(refusing_none(wrap(lambda _: None)), 1, "test", done)
    runner.submit(jobs(1))
    await done.wait(1)
    await runner.close(60)
    (job,) = done.jobs
    assert (job.result, job.answered, repr(job.outcome)) == (
        ConsumeResult.RECONSUME_LATER,
        False,
        "None",
    )

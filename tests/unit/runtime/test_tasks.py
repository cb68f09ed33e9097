from __future__ import annotations

import asyncio
import inspect
import math

import pytest
from tests.waits import WAIT_S

from cometmq.runtime.tasks import OnDemand, TaskOwner
from cometmq.testing import virtual


async def test_a_period_that_is_a_function_is_asked_before_each_wait() -> None:
    owner = TaskOwner("test")
    asked: list[int] = []
    called: list[int] = []
    enough = asyncio.Event()

    def period_s() -> float:
        asked.append(len(called))
        # After the third call the test ends, which may take longer than a short period.
        return 0.001 if len(called) < 3 else 3600.0

    def act() -> None:
        called.append(len(asked))
        if len(called) == 3:
            enough.set()

    owner.every(period_s, act, "often")
    await asyncio.wait_for(enough.wait(), WAIT_S)
    await owner.close()
    assert asked[:3] == [0, 1, 2]
    assert called == [1, 2, 3]


async def test_the_first_wait_can_be_another_one() -> None:
    owner = TaskOwner("test")
    called = asyncio.Event()
    owner.every(lambda: 3600.0, called.set, "rarely", first_s=0)
    await asyncio.wait_for(called.wait(), WAIT_S)
    await owner.close()


async def test_a_closed_owner_closes_both_coroutines_of_a_task_that_it_refuses() -> None:
    owner = TaskOwner("test")
    await owner.close()
    inner = asyncio.sleep(0)
    outer = asyncio.wait_for(inner, 1)
    with pytest.raises(RuntimeError, match="the task owner test is closed"):
        owner.spawn(outer, "late", awaits=inner)
    assert inspect.getcoroutinestate(outer) == inspect.CORO_CLOSED
    assert inspect.getcoroutinestate(inner) == inspect.CORO_CLOSED


def test_work_that_rests_is_done_a_period_after_it_was_armed_and_at_the_time_it_named() -> None:
    called_s: list[float] = []
    rested: list[object] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        owner = TaskOwner("test")
        idle_s = 0.0

        def act() -> None:
            called_s.append(loop.time())
            if len(called_s) == 2:
                raise ValueError("it is logged, and the work goes on")

        work = OnDemand(owner, lambda: idle_s, rested.append)
        work.every(1.0, act, "work")
        await asyncio.sleep(2.5)
        idle_s = math.inf
        await asyncio.sleep(100)
        assert not work.is_armed
        assert rested == [work.arm]
        idle_s = 30.0
        work.arm()
        work.arm()
        await asyncio.sleep(100)
        await owner.close()

    virtual.run(play())
    # It is armed at 102.5 s, and says then that there is nothing to do for 30 s each time.
    assert called_s == [1.0, 2.0, 3.0, 103.5, 133.5, 163.5, 193.5]


def test_in_virtual_time_nobody_looks_at_what_other_processes_did() -> None:
    called: list[None] = []

    async def play() -> None:
        owner = TaskOwner("test")
        owner.every(1.0, lambda: called.append(None), "look", of_outside=True)
        await asyncio.sleep(10)
        await owner.close()

    virtual.run(play())
    assert called == []

from __future__ import annotations

import asyncio

from tests.waits import WAIT_S

from cometmq.runtime.tasks import TaskOwner


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

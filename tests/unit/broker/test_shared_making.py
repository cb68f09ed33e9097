"""Many who ask at the same time get what was made once, and never what was made before they asked."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.broker.operation.shared_making import SharedMaking
from cometmq.runtime.tasks import TaskOwner


class Maker:
    """Makes numbers, each when `go_on` is called."""

    def __init__(self) -> None:
        self.begun = 0
        self._go_on = asyncio.Event()
        self.shared = SharedMaking(self._make, TaskOwner("maker"), "make")

    async def _make(self) -> int:
        self.begun += 1
        number = self.begun
        self._go_on.clear()
        await self._go_on.wait()
        if number == 13:
            raise OSError("no disk")
        return number

    async def ask(self, count: int) -> list[asyncio.Task[int]]:
        tasks = [asyncio.ensure_future(self.shared.get()) for _ in range(count)]
        await self._wake()
        return tasks

    async def go_on(self) -> None:
        self._go_on.set()
        await self._wake()

    async def _wake(self) -> None:
        for _ in range(20):  # wake-ups take some turns
            await asyncio.sleep(0)


async def test_who_asks_while_one_is_made_shares_the_next_one() -> None:
    maker = Maker()
    first = await maker.ask(1)
    others = await maker.ask(50)
    assert maker.begun == 1
    await maker.go_on()
    assert [task.result() for task in first] == [1]
    assert maker.begun == 2
    late = await maker.ask(1)
    await maker.go_on()
    assert {task.result() for task in others} == {2}
    await maker.go_on()
    assert late[0].result() == 3


async def test_who_asks_alone_is_served_at_once_each_time() -> None:
    maker = Maker()
    for number in (1, 2, 3):
        (task,) = await maker.ask(1)
        await maker.go_on()
        assert task.result() == number


async def test_an_error_reaches_all_who_share_it_and_the_next_ones_are_served() -> None:
    maker = Maker()
    maker.begun = 11
    (running,) = await maker.ask(1)
    sharing = await maker.ask(3)
    await maker.go_on()
    assert running.result() == 12
    await maker.go_on()
    for task in sharing:
        with pytest.raises(OSError, match="no disk"):
            task.result()
    (after,) = await maker.ask(1)
    await maker.go_on()
    assert after.result() == 14


async def test_one_who_leaves_does_not_take_the_answer_from_the_others() -> None:
    maker = Maker()
    (running,) = await maker.ask(1)
    sharing = await maker.ask(3)
    sharing[1].cancel()
    await maker.go_on()
    await maker.go_on()
    assert running.result() == 1
    assert [task.result() for task in (sharing[0], sharing[2])] == [2, 2]
    assert sharing[1].cancelled()


async def test_who_asked_first_and_leaves_does_not_take_it_from_the_others() -> None:
    maker = Maker()
    (running,) = await maker.ask(1)
    leaving, *staying = await maker.ask(3)
    leaving.cancel()
    await maker.go_on()
    await maker.go_on()
    assert running.result() == 1
    assert leaving.cancelled()
    assert [task.result() for task in staying] == [2, 2]

"""Long work in slices: all of it is done, and other tasks run in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from cometmq.runtime.slices import SLICE_S, run_slice, run_slices
from cometmq.testing import virtual


def long_steps(clock: asyncio.AbstractEventLoop, count: int, done: list[int]) -> Iterator[None]:
    """Steps that each take a slice or longer, by the loop's clock."""
    for number in range(count):
        stop_at = clock.time() + SLICE_S
        while clock.time() < stop_at:
            pass
        done.append(number)
        yield


def test_short_work_is_done_at_once() -> None:
    async def run() -> None:
        done: list[int] = []
        assert run_slice(map(done.append, range(3)))
        assert done == [0, 1, 2]

    virtual.run(run())  # a busy machine makes any work long


def test_others_run_while_long_work_is_done() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        turns: list[int] = []

        async def others() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        done: list[int] = []
        await run_slices(long_steps(loop, 5, done))
        other.cancel()
        assert done == [0, 1, 2, 3, 4]
        assert len(turns) >= 4

    asyncio.run(run())


def test_many_who_do_long_work_share_the_time_of_one_slice() -> None:
    """Each had a slice in every turn, so that a hundred of them held the loop for a third of a second."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        slices_of_turn: Counter[int] = Counter()
        done: list[int] = []

        def steps(number: int) -> Iterator[None]:
            for _ in range(3):
                slices_of_turn[turn] += 1
                stop_at = loop.time() + SLICE_S
                while loop.time() < stop_at:
                    pass
                yield
            done.append(number)

        async def turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(turns())
        works = [asyncio.create_task(run_slices(steps(number))) for number in range(8)]
        await asyncio.sleep(0)
        works[3].cancel()
        await asyncio.gather(*works, return_exceptions=True)
        counting.cancel()
        assert sorted(done) == [0, 1, 2, 4, 5, 6, 7]
        # All begin in the same turn; from then on there is one slice in a turn.
        begun = slices_of_turn.most_common(1)[0][1]
        assert begun <= 2
        assert set(slices_of_turn.values()) <= {1, 2}

    asyncio.run(run())

"""Long work in slices: all of it is done, and other tasks run in between."""

from __future__ import annotations

import asyncio
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

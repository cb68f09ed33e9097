"""The work that filters do in one turn of the loop."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.broker.filters.work import FilterWork
from cometmq.model.measures.work import OutOfWorkError


async def test_a_turn_has_its_work_and_the_next_one_has_it_again() -> None:
    work = FilterWork(per_turn=100)
    begun: list[int] = []
    work.on_turn = lambda: begun.append(work.left)
    for _ in range(3):
        work.charge(60)
        work.charge(60)
        with pytest.raises(OutOfWorkError):
            work.charge(1)
        await asyncio.sleep(0)
    assert work.turns == 3
    assert begun == [100] * 3

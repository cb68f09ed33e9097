"""The work that filters do in one turn of the loop, and which pulls go on in the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.broker.test_long_polling import open_connection

from cometmq.broker.filters.work import FilterWork
from cometmq.model.work import OutOfWorkError


async def test_a_turn_has_its_work_and_the_next_one_has_it_again() -> None:
    work = FilterWork(10, per_turn=100)
    for _ in range(3):
        work.charge(60)
        work.charge(60)
        with pytest.raises(OutOfWorkError):
            work.charge(1)
        await asyncio.sleep(0)
    assert work.turns == 3


async def test_connections_take_turns() -> None:
    work = FilterWork(10, per_turn=100)
    served: list[str] = []

    def serve(name: str) -> Callable[[], None]:
        def run() -> None:
            work.charge(100)
            served.append(name)

        return run

    greedy, modest, lost = open_connection(), open_connection(), open_connection()
    for number in range(3):
        assert work.defer(greedy, serve(f"greedy {number}"))
        assert work.defer(lost, serve("lost"))
    assert work.defer(modest, serve("modest"))
    lost.closed = True
    for turn in range(1, 5):
        await asyncio.sleep(0)
        assert len(served) == turn  # one a turn: each takes all of its work
    assert served == ["greedy 0", "modest", "greedy 1", "greedy 2"]
    assert work.deferred_count == 0


async def test_a_pull_that_fails_keeps_no_other_from_its_turn() -> None:
    work = FilterWork(10)
    served: list[str] = []

    def fail() -> None:
        raise RuntimeError("a fault of ours")

    work.defer(open_connection(), fail)
    work.defer(open_connection(), lambda: served.append("other"))
    await asyncio.sleep(0)
    assert served == ["other"]
    assert work.deferred_count == 0


async def test_what_waits_is_bounded() -> None:
    work = FilterWork(2, per_turn=100)
    work.charge(100)
    connection = open_connection()
    assert [work.defer(connection, lambda: None) for _ in range(3)] == [True, True, False]

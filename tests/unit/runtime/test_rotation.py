"""Owners take turns with what waits for them; one goes on in a turn of the loop."""

from __future__ import annotations

import asyncio
from functools import partial

from cometmq.runtime.rotation import LoopTurns, Rotation


def test_owners_take_turns_each_in_its_own_order() -> None:
    rotation: Rotation[str, int] = Rotation()
    for owner, item in (
        ("many", 1),
        ("many", 2),
        ("one", 3),
        ("gone", 4),
        ("gone", 5),
        ("many", 6),
    ):
        rotation.add(owner, item)
    assert (len(rotation), rotation.count_of("many"), rotation.count_of("none")) == (6, 3, 0)
    assert list(rotation.remove("gone")) == [4, 5]
    assert not rotation.remove("gone")
    assert [rotation.take() for _ in range(len(rotation))] == [
        ("many", 1),
        ("one", 3),
        ("many", 2),
        ("many", 6),
    ]
    assert not rotation


async def test_one_goes_on_in_a_turn_of_the_loop() -> None:
    """Five hundred connections with a request each were served in one turn: half a second."""
    turns = LoopTurns()
    gone_on: list[int] = []
    assert turns.take()
    assert not turns.take()
    for number in range(5):
        turns.join("a", partial(gone_on.append, number))
    for done in range(5):
        assert gone_on == list(range(done))
        await asyncio.sleep(0)
    assert gone_on == list(range(5))
    await asyncio.sleep(0)
    assert turns.take(), "nobody waits any more"


async def test_who_has_many_waiting_delays_another_by_one() -> None:
    turns, gone_on = LoopTurns(), []
    for _ in range(100):
        turns.join("many", lambda: gone_on.append("many"))
    turns.join("one", lambda: gone_on.append("one"))
    for _ in range(2):
        await asyncio.sleep(0)
    assert gone_on == ["many", "one"]


async def test_a_page_waits_for_its_turn_and_may_be_given_up_meanwhile() -> None:
    turns, gone_on = LoopTurns(), []

    async def page(name: str) -> None:
        await turns.turn("a")
        gone_on.append(name)

    pages = [asyncio.create_task(page(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert gone_on == ["a"]
    pages[1].cancel()
    await asyncio.wait(pages)
    assert gone_on == ["a", "c"]


async def test_a_failure_does_not_end_the_rotation() -> None:
    turns, gone_on, failures = LoopTurns(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, reported: failures.append(reported))

    def fail() -> None:
        raise ValueError("it has failed")

    turns.join("a", fail)
    turns.join("a", lambda: gone_on.append("a"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert gone_on == ["a"]
    assert len(failures) == 1

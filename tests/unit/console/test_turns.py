"""Who waits goes on one in a turn of the loop, and those whom they belong to take turns."""

from __future__ import annotations

import asyncio
from functools import partial

from cometmq.console.turns import AccountTurns, FairTurns


async def test_one_goes_on_in_a_turn_of_the_loop() -> None:
    """Five hundred connections with a request each were served in one turn: half a second."""
    turns = FairTurns()
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
    turns, gone_on = FairTurns(), []
    for _ in range(100):
        turns.join("many", lambda: gone_on.append("many"))
    turns.join("one", lambda: gone_on.append("one"))
    for _ in range(2):
        await asyncio.sleep(0)
    assert gone_on == ["many", "one"]


async def test_a_page_waits_for_its_turn_and_may_be_given_up_meanwhile() -> None:
    turns, gone_on = FairTurns(), []

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
    turns, gone_on, failures = FairTurns(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))

    def fail() -> None:
        raise ValueError("it has failed")

    turns.join("a", fail)
    turns.join("a", lambda: gone_on.append("a"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert gone_on == ["a"]
    assert len(failures) == 1


async def test_an_account_does_few_things_at_once_and_holds_up_nobody_else() -> None:
    """Sixty searches of one reader filled gigabytes of memory."""
    turns, begun = AccountTurns(2), []
    end = asyncio.Event()

    async def page(who: str) -> None:
        async with turns.turn(who):
            begun.append(who)
            await end.wait()

    async with asyncio.TaskGroup() as group:
        pages = [group.create_task(page("many")) for _ in range(50)]
        group.create_task(page("one"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted(begun) == ["many", "many", "one"]
        # One that is given up while it waits gives its place back.
        pages[2].cancel()
        end.set()
    assert begun.count("many") == 49
    assert begun.count("one") == 1

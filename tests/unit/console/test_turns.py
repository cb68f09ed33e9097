"""An account does few things of a kind at once."""

from __future__ import annotations

import asyncio

from cometmq.console.web.turns import AccountTurns


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

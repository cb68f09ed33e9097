"""Ask about many things, a limited number at a time, and show how many are done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from cometmq.cli.admin.command import Run

K = TypeVar("K")
T = TypeVar("T")

# Each of them may be several requests to each of several brokers.
_AT_ONCE: Final = 16


async def ask_each(
    run: Run, what: str, items: Iterable[K], ask: Callable[[K], Awaitable[T]]
) -> list[T]:
    """Return what `ask` returns for each item, in their order; `what` names them to the user."""
    asked = list(items)
    turns = asyncio.Semaphore(_AT_ONCE)
    done = 0

    with run.progress(what) as show:

        async def answer(item: K) -> T:
            nonlocal done
            async with turns:
                result = await ask(item)
            done += 1
            show(done, len(asked))
            return result

        return await asyncio.gather(*map(answer, asked))

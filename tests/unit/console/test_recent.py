"""Shared answers: who asks at the same time gets the same, and nothing is kept for longer than it may be."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from tests.waits import until

from cometmq.console.watching.recent import MAX_ANSWERS, Recent, known_of
from cometmq.errors import RemoteError
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.tasks import TaskOwner


@pytest.fixture
async def recent() -> AsyncIterator[Recent]:
    tasks = TaskOwner("test")
    yield Recent(SYSTEM_CLOCK, tasks)
    await tasks.close()


async def test_those_who_ask_at_once_share_one_answer(recent: Recent) -> None:
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return asked

    assert await asyncio.gather(*(recent.get("key", 60.0, ask) for _ in range(5))) == [1] * 5
    assert await recent.get("key", 60.0, ask) == 1
    recent.forget()
    assert await recent.get("key", 60.0, ask) == 2


async def test_an_error_is_not_kept(recent: Recent) -> None:
    async def fail() -> None:
        raise RemoteError("no")

    async def answer() -> str:
        return "yes"

    with pytest.raises(RemoteError):
        await recent.get("key", 60.0, fail)
    assert await recent.get("key", 60.0, answer) == "yes"


async def test_an_answer_that_was_late_for_a_page_is_there_for_its_refresh(recent: Recent) -> None:
    answered = asyncio.Event()
    asked = 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        await answered.wait()
        return "late"

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await recent.get("key", 0.01, ask)
    answered.set()
    await asyncio.sleep(0.05)  # longer than an answer in time is given
    assert await recent.get("key", 0.01, ask) == "late"
    assert asked == 1


async def test_bodies_do_not_stay_in_memory_when_nobody_looks(recent: Recent) -> None:
    """512 messages of 4 MiB stayed for as long as nobody asked for anything else."""

    async def ask() -> bytes:
        return b"body"

    for number in range(3):
        await recent.get(("message", number), 0.01, ask)
    await recent.get("kept", 60.0, ask)
    await until(lambda: len(recent) == 1)


async def test_no_more_than_a_bound_is_kept(recent: Recent) -> None:
    async def ask() -> None:
        return None

    for number in range(MAX_ANSWERS + 10):
        await recent.get(number, 60.0, ask)
    assert len(recent) == MAX_ANSWERS


async def test_an_answer_that_is_dropped_is_asked_for_again(recent: Recent) -> None:
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        return asked

    assert await recent.get("key", 60.0, ask) == 1
    recent.drop("key")
    recent.drop("unknown")
    assert await recent.get("key", 60.0, ask) == 2


@pytest.mark.filterwarnings("error")
async def test_a_page_that_is_given_up_leaves_no_question_unasked() -> None:
    """Python warned of coroutines that nobody awaited: they were made before anybody could await them."""
    asked: list[int] = []

    async def question() -> int:
        asked.append(1)
        return 1

    answers = asyncio.gather(known_of(question), known_of(question))
    answers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answers
    gc.collect()
    assert asked == []
    assert (await known_of(question)).value == 1

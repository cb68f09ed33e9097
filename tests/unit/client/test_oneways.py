"""Which one-way messages have left this process."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from cometmq.client.oneways import Oneways
from cometmq.model.message import Message


class Line:
    """A connection for which the test says how many bytes wait."""

    closed = False
    unsent_bytes = 0


def message(text: str) -> Message:
    return Message("t", text.encode())


@pytest.fixture
def line() -> Any:
    return Line()


async def test_what_has_left_is_forgotten(line: Any) -> None:
    oneways = Oneways()
    for i in range(3):
        oneways.sent(message(f"{i}"), line, 100)
    assert await oneways.drain(5) == []


async def test_what_waits_is_given_back_when_time_is_up(line: Any) -> None:
    oneways = Oneways()
    for i in range(4):
        oneways.sent(message(f"{i}"), line, 100)
    line.unsent_bytes = 150  # the last one, and half of the third
    assert [m.body for m in await oneways.drain(0.03)] == [b"2", b"3"]


async def test_bytes_of_others_behind_ours_err_on_the_safe_side(line: Any) -> None:
    oneways = Oneways()
    oneways.sent(message("left perhaps"), line, 100)
    line.unsent_bytes = 1
    assert len(await oneways.drain(0.03)) == 1


async def test_a_lost_connection_gives_back_what_was_not_known_to_have_left(line: Any) -> None:
    other: Any = Line()
    oneways = Oneways()
    line.unsent_bytes = 200
    for i in range(3):
        oneways.sent(message(f"{i}"), line, 100)
    oneways.sent(message("fine"), other, 100)
    assert len(await oneways.drain(0.03)) == 2
    line.closed = True
    line.unsent_bytes = 0
    assert [m.body for m in await oneways.drain(5)] == [b"1", b"2"]


async def test_messages_are_not_kept_after_they_left(line: Any) -> None:
    class Weak(Message):
        __slots__ = ("__weakref__",)

    oneways = Oneways()
    sent = Weak("t", b"x")
    gone = weakref.ref(sent)
    oneways.sent(sent, line, 10)
    del sent
    async with asyncio.timeout(10):
        while gone() is not None:  # noqa: ASYNC110 - nobody tells of a collected object
            await asyncio.sleep(0.01)

"""A slow client keeps its connection for as long as it takes anything of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from cometmq.console.web.connections import Connection


class Wire(asyncio.Transport):
    """Holds what a client has not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.closing = self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def is_closing(self) -> bool:
        return self.closing or self.aborted

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    config = uvicorn.Config(app="none:none", ws="none", lifespan="off", log_config=None)
    config.load_app = lambda: None  # type: ignore[method-assign]  # nothing is asked of it
    config.load()
    made = Connection(config=config, server_state=ServerState(), app_state={})
    made.connection_made(Wire())
    made._asked_s = None  # an answer is under way
    yield made
    made.connection_lost(None)


def looked_at(connection: Connection, unsent: int, *, closing: bool = False) -> Wire:
    """Have the connection look at itself while so many bytes wait."""
    wire = connection.transport
    assert isinstance(wire, Wire)
    wire.unsent, wire.closing = unsent, closing
    connection._check()
    return wire


async def test_a_long_download_over_a_slow_line_is_not_cut(connection: Connection) -> None:
    """The bytes that wait never get fewer, because the console adds as many as the client takes."""
    for _ in range(5):
        connection.resume_writing()
        assert not looked_at(connection, 65_536).aborted


async def test_a_client_that_takes_nothing_is_given_up(connection: Connection) -> None:
    connection.resume_writing()
    assert not looked_at(connection, 65_536).aborted
    assert looked_at(connection, 65_536).aborted


async def test_the_end_of_an_answer_is_sent_before_its_connection_closes(
    connection: Connection,
) -> None:
    for unsent in (4096, 1024):
        assert not looked_at(connection, unsent, closing=True).aborted
    assert looked_at(connection, 0, closing=True).aborted

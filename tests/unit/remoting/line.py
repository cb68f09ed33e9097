"""Run a connection on a transport that is only a list: bytes in, writes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from cometmq.model.java.ranges import Int32
from cometmq.protocol.command import (
    RemotingCommand,
    decode_command,
    encode_command,
    request,
    response,
)
from cometmq.protocol.frame import FrameDecoder
from cometmq.protocol.header import Header
from cometmq.protocol.request_type import (
    ANY_ACCOUNT,
    RawBody,
    RequestType,
    Resource,
    ResourceKind,
    Right,
)
from cometmq.remoting.connection import DEFAULT_LIMITS, Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.turns import ServingTurns
from cometmq.runtime.tasks import TaskOwner

ECHO, INSPECT = 901, 902


class EchoHeader(Header):
    """The header of the requests that tests make."""

    number: Int32
    word: str | None = None


# The row of requests that tests make; the code is one of Java's, the rest is ours.
ECHO_REQUEST = RequestType(
    ECHO,
    EchoHeader,
    RawBody(),
    EchoHeader,
    RawBody(),
    Right.NONE,
    Resource(ResourceKind.CLUSTER),
    actions=ANY_ACCOUNT,
)


# The same for requests that inspect the cluster.
INSPECT_REQUEST = RequestType(
    INSPECT,
    EchoHeader,
    RawBody(),
    EchoHeader,
    RawBody(),
    Right.INSPECT,
    Resource(ResourceKind.CLUSTER),
)


def echo(number: int = 1, *, opaque: int = 0, body: bytes = b"", flag: int = 0) -> bytes:
    """Return the frame of a request."""
    return _frame(ECHO, number, opaque, body, flag)


def inspect(number: int = 1, *, opaque: int = 0) -> bytes:
    """Return the frame of a request that inspects the cluster."""
    return _frame(INSPECT, number, opaque, b"", 0)


def _frame(code: int, number: int, opaque: int, body: bytes, flag: int) -> bytes:
    command = request(code, EchoHeader(number=number), body)
    command.opaque = opaque
    command.flag = flag
    return encode_command(command)


def answer_to(call: RemotingCommand, code: int = 0) -> bytes:
    """Return the frame of an answer to a call that a connection made."""
    command = response(code)
    command.opaque = call.opaque
    return encode_command(command)


class FakeTransport(asyncio.Transport):
    """Keeps what is written, one entry for each call. With `room`, the peer takes only so many
    bytes, and a write that exceeds them pauses writing.
    """

    def __init__(self, peer: tuple[str, int] | None = ("10.0.0.9", 4711)) -> None:
        super().__init__({"peername": peer, "sockname": ("10.0.0.1", 10911)})
        self.writes: list[bytes] = []
        self.reading = True
        self.ended: str | None = None
        self.high = 0
        self.protocol: Connection | None = None
        self.room: int | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.writes.append(b"".join(list_of_data))
        if self.room is not None:
            self.room -= len(self.writes[-1])
            if self.room < 0:
                assert self.protocol is not None
                self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        if self.ended is None:
            self.ended = how
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Line:
    """One connection and the far end of it."""

    def __init__(
        self,
        handlers: Handlers | None = None,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        peer: tuple[str, int] | None = ("10.0.0.9", 4711),
        server_side: bool = False,
        turns: ServingTurns | None = None,
        **settings: Any,
    ) -> None:
        self.owner = TaskOwner("test")
        self.transport = FakeTransport(peer)
        if server_side and turns is None:
            turns = ServingTurns(lambda: 0.0)  # slices do not end early on a busy machine
        self.connection = Connection(
            handlers or Handlers(), self.owner, limits=limits, turns=turns, **settings
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    def feed(self, *chunks: bytes) -> None:
        """Feed each of `chunks` as one read."""
        for chunk in chunks:
            self.connection.data_received(chunk)

    def received(self) -> list[RemotingCommand]:
        """Return everything that the far end has received so far."""
        return list(map(decode_command, FrameDecoder().feed(b"".join(self.transport.writes))))

    async def flushed(self) -> list[RemotingCommand]:
        """Return everything that the far end has received by the end of this turn of the loop."""
        await asyncio.sleep(0)
        return self.received()

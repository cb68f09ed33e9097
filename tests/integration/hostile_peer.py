"""A peer in virtual time that sends any bytes, and says what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from tests.waits import WAIT_S

from cometmq.protocol.command import (
    RemotingCommand,
    decode_command,
    encode_command,
    response,
)
from cometmq.protocol.frame import FrameDecoder
from cometmq.runtime.surroundings import Surroundings

PATIENCE_S = WAIT_S


class Peer(asyncio.Protocol):
    """One connection; a request gets the next free number. For the loop of the cluster."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()
        self.raw = bytearray()
        # Answers with a number that no request had.
        self.unasked: list[RemotingCommand] = []
        # The body of its answers to requests of the server, None for no answer.
        self.answers_with: bytes | None = None
        self._frames = FrameDecoder()
        self.asked: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._number = 0
        self.transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, around: Surroundings, address: str) -> Self:
        host, _, port = address.rpartition(":")
        return await around.network.connect(cls, host, int(port), tls=None)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.raw += data
        if data.startswith(b"HTTP"):
            return
        for frame in self._frames.feed(data):
            command = decode_command(frame)
            if not command.is_response:
                self._answer(command)
                continue
            waiting = self.asked.pop(command.opaque, None)
            if waiting is None:
                self.unasked.append(command)
            elif not waiting.done():
                waiting.set_result(command)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        for waiting in self.asked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("closed by the server"))
                waiting.exception()  # nobody has to ask for it

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def frame(self, code: int, ext: Mapping[str, Any] | None = None, body: bytes = b"") -> bytes:
        """Return the bytes of a request with the next number; `ask` sends them."""
        self._number += 1
        self.asked[self._number] = asyncio.get_running_loop().create_future()
        texts = {name: str(value) for name, value in (ext or {}).items()}
        return encode_command(RemotingCommand(code, ext=texts, body=body, opaque=self._number))

    async def ask_all(self, *frames: bytes) -> list[RemotingCommand]:
        """Send the frames made last in one write; return their answers in order."""
        waiting = list(self.asked.values())[-len(frames) :]
        self.write(b"".join(frames))
        async with asyncio.timeout(PATIENCE_S):
            return [await each for each in waiting]

    async def ask(
        self, code: int, ext: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        (answer,) = await self.ask_all(self.frame(code, ext, body))
        return answer

    async def ended(self) -> None:
        """Return when the server has closed the connection."""
        async with asyncio.timeout(10 * PATIENCE_S):
            await self._closed.wait()

    def _answer(self, command: RemotingCommand) -> None:
        if self.answers_with is not None:
            answer = response(0, body=self.answers_with)
            answer.opaque = command.opaque
            self.write(encode_command(answer))

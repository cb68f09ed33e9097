"""Put long answers together, one at a time, without holding up the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from itertools import islice
from typing import Final

from cometmq.broker.refusal import Refused
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.fastjson.queue_table import queue_key
from cometmq.remoting.connection import Connection
from cometmq.runtime.clock import Clock
from cometmq.runtime.rotation import Rotation
from cometmq.runtime.slices import SLICE_S

# Room that a frame keeps for all but the body.
_HEADER_ROOM: Final = 64 * 1024
# Requests of one connection, and of all, that may wait for their turn. A console asks for all its
# topics and groups at once, over one connection.
MAX_LONG_ANSWERS_OF_CONNECTION: Final = 1_000
MAX_LONG_ANSWERS: Final = 10_000
# Pieces are joined to chunks of so many bytes as they come, and chunks to the body in slices.
_CHUNK_BYTES: Final = 64 * 1024
# So many offsets are encoded in one piece.
_OFFSETS_AT_ONCE: Final = 4_096


class LongAnswers:
    """Lets one long answer be made at a time, and connections take turns. For the loop's thread.

    A client can ask for a thousand of them at once. If all were made together, each turn of the loop
    would have a slice of each, and the memory a part of each.
    """

    def __init__(self) -> None:
        self._is_busy = False
        self._waiting: Rotation[Connection, asyncio.Future[None]] = Rotation()

    @property
    def waiting_count(self) -> int:
        """How many requests wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, connection: Connection) -> AsyncIterator[None]:
        """Wait for a turn of the connection, and keep it until the end of the block.

        Raises Refused when too many requests wait.
        """
        if self._is_busy:
            await self._wait(connection)
        self._is_busy = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, connection: Connection) -> None:
        of_connection = self._waiting.count_of(connection)
        for count, name, limit in (
            (of_connection, "MAX_LONG_ANSWERS_OF_CONNECTION", MAX_LONG_ANSWERS_OF_CONNECTION),
            (len(self._waiting), "MAX_LONG_ANSWERS", MAX_LONG_ANSWERS),
        ):
            if count >= limit:
                raise Refused(
                    ResponseCode.SYSTEM_BUSY,
                    f"{count} requests for long answers wait already, the limit {name} is {limit}; "
                    "wait for answers before you ask for more",
                    limit=name,
                )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.add(connection, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the connection that has waited for the longest."""
        while self._waiting:
            connection, turn = self._waiting.take()
            if connection.closed:
                turn.cancel()  # nobody would read the answer
            elif not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False


class LongAnswer:
    """Collects the entries of a JSON object, or any pieces of JSON, in slices with the loop's
    other work between them.

    Raises Refused as soon as the body would not fit into a frame of `max_frame_length` bytes;
    `remedy` says what to ask for instead.
    """

    def __init__(self, clock: Clock, max_frame_length: int, remedy: str) -> None:
        self._clock = clock
        self._limit = max_frame_length - _HEADER_ROOM
        self._remedy = remedy
        self._pieces: list[bytes] = []
        self._loose = 0  # bytes in `_pieces`
        self._chunks: deque[bytes] = deque()
        self._length = 0
        self._until_s = clock.monotonic() + SLICE_S

    async def add(self, key: str, value: object) -> None:
        """Add one entry, and let others have the loop if this slice is over."""
        await self.add_encoded(encode_body(key), encode_body(value))

    async def add_of_queue(self, queue: MessageQueue, value: object) -> None:
        """Add an entry of a map by message queue."""
        await self.add_encoded(queue_key(queue), encode_body(value))

    async def add_encoded(self, key: bytes, value: bytes) -> None:
        comma = b"," if self._length else b""
        await self.write(b"%b%b:%b" % (comma, key, value))

    async def add_offsets(self, key: str, offsets: Mapping[int, int]) -> None:
        """Add an entry of offsets by queue id, of which there may be hundreds of thousands."""
        comma = b"," if self._length else b""
        await self.write(b"%b%b:{" % (comma, encode_body(key)))
        entries = iter(dict(offsets).items())  # a copy: others change meanwhile
        between = b""
        while some := dict(islice(entries, _OFFSETS_AT_ONCE)):
            await self.write(between + encode_body(some)[1:-1])
            between = b","
        await self.write(b"}")

    async def write(self, piece: bytes) -> None:
        """Add a piece as it is, and let others have the loop if this slice is over."""
        self._length += len(piece)
        if self._length > self._limit:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would be longer than {self._limit} bytes, the limit that "
                f"com.rocketmq.remoting.frameMaxLength leaves; {self._remedy}",
                limit="com.rocketmq.remoting.frameMaxLength",
            )
        self._pieces.append(piece)
        self._loose += len(piece)
        if self._loose >= _CHUNK_BYTES:
            self._close_chunk()
        await self.breathe()

    async def breathe(self) -> None:
        """Let others have the loop if this slice is over."""
        if self._clock.monotonic() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = self._clock.monotonic() + SLICE_S

    async def body(self, before: bytes, behind: bytes) -> bytes:
        """Return all that was added between two texts, for once.

        A body of 16 MiB takes milliseconds to join, so it is put together in slices.
        """
        self._pieces.append(behind)
        self._close_chunk()
        if len(self._chunks) == 1:
            return before + self._chunks.pop()
        # It gives out the bytes that it was filled with without copying them: nobody else holds them.
        place = BytesIO(bytes(len(before) + self._length + len(behind)))
        place.write(before)
        while self._chunks:
            place.write(self._chunks.popleft())
            await self.breathe()
        return place.getvalue()

    def _close_chunk(self) -> None:
        self._chunks.append(b"".join(self._pieces))
        self._pieces = []
        self._loose = 0

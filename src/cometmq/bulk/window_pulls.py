"""Read one range of a queue, without a filter, over a connection that nothing else uses.

A pull brings 32 messages as brokers are shipped, so the work for each pull decides the speed. Here
a pull is no call, with a future, a timer and a command of its own: its answer is a place in a
window (`window_connection`), where its records stay. Anything out of the ordinary (a refusal,
offsets without messages, a lost connection, a silent broker) closes the connection, and RangePulls
reads the rest of the range.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cometmq.bulk.range_pulls import (
    CHUNK_BYTES,
    MAX_MESSAGES,
    MAX_PULLS,
    Chunk,
    RangePulls,
    address_of,
)
from cometmq.bulk.window_connection import WindowConnection
from cometmq.client.instance import ClientInstance
from cometmq.client.pulling.puller import PULL_TIMEOUT_S, lite_header
from cometmq.errors import CometMQError, ConnectError
from cometmq.model.java.ranges import Int32
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import FLAG_RESPONSE, RemotingCommand, encode_command
from cometmq.protocol.frame import SerializeType
from cometmq.protocol.header import header_to_ext
from cometmq.protocol.headers import PullMessageResponseHeader

# After so many full answers one pull asks for twice as many messages; after twice as many if that
# was in vain.
_FULL_BEFORE_MORE: Final = 32
# At the end of the window this much is a chunk. Less is joined with the bytes in the next window.
_WORTH_A_CHUNK_BYTES: Final = CHUNK_BYTES // 4
_JSON: Final = int(SerializeType.JSON)
_SUCCESS: Final = int(ResponseCode.SUCCESS)


class _Answer(msgspec.Struct, gc=False):
    code: Int32
    opaque: Int32
    flag: Int32 = 0
    extFields: PullMessageResponseHeader | None = None  # noqa: N815 - a wire name


_decoder: Final = msgspec.json.Decoder(_Answer, strict=False)


class WindowConnections:
    """Keeps one idle connection for each address. For the loop's thread only."""

    def __init__(self) -> None:
        self._idle: dict[str, WindowConnection] = {}

    async def take(self, instance: ClientInstance, address: str) -> WindowConnection:
        """Return a connection for one caller alone. Raises ConnectError."""
        connection = self._idle.pop(address, None)
        if connection is None or connection.closed:
            # For networks that know asyncio.Protocol only, it also is one.
            new_connection: Callable[[], Any] = WindowConnection
            connection = await instance.remoting.open(address, new_connection)
            if connection.closed:
                # No receiver got the news that its peer left, so one would wait for an answer.
                raise ConnectError(f"{address} closed the connection at once", address=address)
        assert isinstance(connection, WindowConnection), "it is what was made"
        return connection

    def give_back(self, address: str, connection: WindowConnection) -> None:
        """Take back a connection over which nothing is under way."""
        connection.receiver = None
        if address in self._idle or connection.closed:
            connection.close()
        else:
            self._idle[address] = connection

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()


class WindowPulls:
    """Reads queue offsets from `start` to below `end`, as RangePulls does. Must be closed."""

    def __init__(
        self,
        instance: ClientInstance,
        connections: WindowConnections,
        group: str,
        queue: MessageQueue,
        start: int,
        end: int,
        subscription: SubscriptionData,
        patience_s: float,
    ) -> None:
        self._instance = instance
        self._connections = connections
        self._group = group
        self._queue = queue
        self._position = self._requested = start
        self._end = end
        self._subscription = subscription
        self._patience_s = patience_s
        # The reader that takes the rest when an answer is out of the ordinary.
        self._rest: RangePulls | None = None
        self._address = ""
        self._connection: WindowConnection | None = None
        self._ended = False
        # The fields that all pulls have in common.
        self._ext = header_to_ext(lite_header(group, queue, 0, 0, subscription, 0))
        self._out: list[bytes] = []
        self._opaque = 0
        # Offset and wanted number of the pulls under way, by their opaque. Answers behind one that is
        # still missing, by their offset: window, start and end in it, next offset.
        self._asked: dict[int, tuple[int, int]] = {}
        self._ahead: dict[int, tuple[memoryview, int, int, int]] = {}
        # As in RangePulls.
        self._step = MAX_MESSAGES
        self._pulls = 1
        self._full, self._full_before_more = 0, _FULL_BEFORE_MORE
        self._chunk = Chunk(start, start)
        self._ready: deque[Chunk] = deque()
        self._waiter: asyncio.Future[None] | None = None
        # How many answers have come, which distinguishes a slow broker from a silent one.
        self._answers = 0

    async def next_chunk(self) -> Chunk | None:
        """Do what RangePulls.next_chunk does."""
        if self._rest is not None:
            return await self._rest.next_chunk()
        if self._connection is None and self._position < self._end and not self._ended:
            await self._connect()
        if not self._ready:
            self._go_on()
            await self._until_ready()
        if self._ready:
            chunk = self._ready.popleft()
            # The broker answers more pulls while the caller works on the chunk.
            self._go_on()
            return chunk
        if self._position >= self._end:
            return None
        self._rest = RangePulls(
            self._instance,
            self._group,
            self._queue,
            self._position,
            self._end,
            self._subscription,
            self._patience_s,
        )
        return await self._rest.next_chunk()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._asked:  # answers that nobody takes would come
                connection.receiver = None
                connection.close()
            else:
                self._connections.give_back(self._address, connection)
        if self._rest is not None:
            await self._rest.close()

    # Receiver

    def frame_received(
        self, serialize_type: int, header: bytes, window: memoryview, start: int, end: int
    ) -> None:
        if self._ended:
            return
        try:
            answer = _decoder.decode(header) if serialize_type == _JSON else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            answer = None
        if answer is None:
            self._give_up()
            return
        if not answer.flag & FLAG_RESPONSE:
            return
        asked = self._asked.pop(answer.opaque, None)
        if asked is None:
            return
        self._answers += 1
        offset, wanted = asked
        fields = answer.extFields
        if (
            answer.code != _SUCCESS
            or fields is None
            or fields.min_offset > offset
            or not offset < fields.next_begin_offset <= offset + wanted
            or start == end
        ):
            self._give_up()
            return
        following = fields.next_begin_offset
        self._learn(following - offset, wanted)
        rest = offset + wanted - following
        if rest and not self._ask(following, rest):
            return
        if offset != self._position:
            self._ahead[offset] = (window, start, end, following)
            return
        self._take(window, start, end, following)
        while (ahead := self._ahead.pop(self._position, None)) is not None:
            self._take(*ahead)

    def read_ended(self) -> None:
        self._go_on()

    def connection_ended(self) -> None:
        self._give_up()

    # Inside

    async def _connect(self) -> None:
        if self._instance.remoting.rpc_hooks.see_answers:
            self._ended = True
            return
        try:
            address = await address_of(self._instance, self._queue)
            # Not all answers of a slave count (RangePulls).
            if address != self._instance.routes.master_address(self._queue.broker_name):
                self._ended = True
                return
            connection = await self._connections.take(self._instance, address)
        except CometMQError:
            self._ended = True  # RangePulls meets the same fault, and treats it
            return
        self._address, self._connection = address, connection
        connection.receiver = self

    async def _until_ready(self) -> None:
        """Wait until there is a chunk, or there will be none any more."""
        while not self._ready and not self._ended and self._position < self._end:
            before = self._answers
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(PULL_TIMEOUT_S):
                    await self._waiter
            except TimeoutError:
                if self._answers == before:
                    self._give_up()
            finally:
                self._waiter = None

    def _take(self, window: memoryview, start: int, end: int, following: int) -> None:
        """Put the answer at the position into the chunk."""
        chunk = self._chunk
        if chunk.window is not None and window is not chunk.window:
            if chunk.size_bytes >= _WORTH_A_CHUNK_BYTES:
                self._finish()
            else:
                chunk.window = None
        self._chunk.add(window, start, end)
        self._position = following
        if self._chunk.size_bytes >= CHUNK_BYTES or following >= self._end:
            self._finish()

    def _finish(self) -> None:
        self._chunk.end = self._position
        self._ready.append(self._chunk)
        self._chunk = Chunk(self._position, self._position)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _go_on(self) -> None:
        """Ask for more while no chunk waits for the caller, and send what is asked."""
        while (
            not self._ready
            and not self._ended
            and self._requested < self._end
            and len(self._asked) + len(self._ahead) < self._pulls
        ):
            step = self._step
            if self._full >= self._full_before_more:
                self._full = 0
                step = min(2 * step, MAX_MESSAGES)
            count = min(step, self._end - self._requested)
            if self._ask(self._requested, count):
                self._requested += count
        out, self._out = self._out, []
        if out and self._connection is not None:
            self._connection.write(b"".join(out))

    def _ask(self, offset: int, count: int) -> bool:
        """Ask for messages in the next write. Return False if this has given up."""
        opaque = self._opaque = self._opaque + 1 & 0x7FFF_FFFF
        ext = {**self._ext, "queueOffset": str(offset), "maxMsgNums": str(count)}
        command = RemotingCommand(requests.LITE_PULL_MESSAGE.code, ext=ext, opaque=opaque)
        try:
            self._instance.remoting.rpc_hooks.before(self._address, command)
        except CometMQError:
            self._give_up()
            return False
        self._asked[opaque] = (offset, count)
        self._out.append(encode_command(command))
        return True

    def _learn(self, got: int, wanted: int) -> None:
        """Learn how many messages fit into an answer."""
        self._pulls = MAX_PULLS
        if wanted > self._step:
            if got > self._step:
                self._step = got
                self._full_before_more = _FULL_BEFORE_MORE
            else:
                self._full_before_more = min(2 * self._full_before_more, 1024)
        elif got < wanted:
            self._step, self._full = max(1, got), 0
        else:
            self._full += 1

    def _give_up(self) -> None:
        """Leave what is not in the chunks to RangePulls."""
        if self._ended:
            return
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.receiver = None
            connection.close()
        self._asked.clear()
        self._ahead.clear()
        if self._chunk.parts:
            self._finish()
        self._wake()

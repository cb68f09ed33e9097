"""One end of a connection in memory, with the behaviour of asyncio's own TCP transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Final

from cometmq.runtime.randomness import Randomness
from cometmq.testing.virtual.loop import made_at
from cometmq.testing.virtual.wire.flow import CAPACITY_BYTES, End, Flow, Item

# As asyncio has them.
_HIGH_BYTES: Final = 64 * 1024
_MOST_READ_BYTES: Final = 256 * 1024


def outside(call: Callable[..., object], *args: Any) -> None:
    """Call in the context of no node, where the loop's time is nobody's and no timer is kept."""
    Context().run(call, *args)


class VirtualTransport(asyncio.Transport):
    """Calls its protocol in `context`, so a paused node notices later and a killed one never.

    `flow` carries what this end writes; `far_flow` what it reads. Both are set once the other end
    is there. Until `begin` what arrives is kept.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        names: tuple[tuple[str, int], tuple[str, int]],
        *,
        randomness: Randomness,
        split_chance: float,
        on_lost: Callable[[VirtualTransport, Exception | None], None],
    ) -> None:
        self.sockname, self.peername = names
        self.made_at = made_at()
        super().__init__({"sockname": self.sockname, "peername": self.peername})
        self.flow: Flow
        self.far_flow: Flow
        self.is_gone = False
        self.is_closed = False
        self._loop = loop
        self._context = context
        self._randomness = randomness
        self._split_chance = split_chance
        self._on_lost = on_lost
        self._protocol: asyncio.Protocol | None = None
        self._inbox: deque[Item] = deque()
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._protocol_paused = False
        self._reading = True
        self._read_due = False
        self._eof_written = False
        self._closing = False
        # Whether `connection_lost` is called or about to be.
        self._lost = False
        # Why the connection does not exist any more.
        self._error: OSError | None = None

    def begin(self, protocol: asyncio.Protocol) -> None:
        """Give the connection to `protocol`, in the context of its node."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._wake()

    @property
    def description(self) -> str:
        own, far = self.sockname, self.peername
        return f"connection from {own[0]}:{own[1]} to {far[0]}:{far[1]}"

    # asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol), "buffered protocols are not served"
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof()")
        if not data or self._lost:
            return
        if self.is_gone:
            if self._error is not None:
                self._force_close(self._error)
            return
        kept = bytes(data)
        self.flow.unread_bytes += len(kept)
        outside(self.flow.send, kept)
        self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._eof_written:
            return
        self._eof_written = True
        if not self.is_gone:
            outside(self.flow.send, End.OF_STREAM)

    def get_write_buffer_size(self) -> int:
        return max(0, self.flow.unread_bytes - CAPACITY_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._maybe_pause()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._wake()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._error is not None or not self.get_write_buffer_size():
            self._lose(None)

    def abort(self) -> None:
        self._force_close(None)

    # Called by the network, in the context of no node

    def arrives(self, item: Item) -> None:
        if isinstance(item, OSError):
            self.fails(item)
        else:
            self._inbox.append(item)
            self._wake()

    def drains(self) -> None:
        if self._protocol_paused or self._closing:
            self._loop.call_soon(self._drained, context=self._context)

    def fails(self, error: OSError) -> None:
        """Take the connection away; the process notices after it has read the bytes that came
        before.

        If it does not read, it notices when it writes, as with a real socket.
        """
        if self.is_gone:
            return
        writes = self.get_write_buffer_size() > 0
        self.vanish()
        self._error = error
        if self._lost:
            return
        if writes:
            self._loop.call_soon(self._force_close, error, context=self._context)
        else:
            self._inbox.append(error)
            self._wake()

    def vanish(self) -> None:
        """Forget the connection without a word."""
        self.is_gone = True
        self.flow.drop(under_way=False)

    # Inside, in the context of the node

    def _maybe_pause(self) -> None:
        if self._protocol_paused or self.get_write_buffer_size() <= self._high:
            return
        self._protocol_paused = True
        assert self._protocol is not None
        self._guard("pause_writing", self._protocol.pause_writing)

    def _drained(self) -> None:
        size = self.get_write_buffer_size()
        if self._protocol_paused and size <= self._low:
            self._protocol_paused = False
            assert self._protocol is not None
            self._guard("resume_writing", self._protocol.resume_writing)
        if self._closing and not self._lost and not self.get_write_buffer_size():
            self._lose(None)

    def _wake(self) -> None:
        if self._read_due or not self._inbox or not self._reading or self._closing:
            return
        if self._protocol is not None:
            self._read_due = True
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_due = False
        if not self._inbox or not self._reading or self._closing:
            return
        item = self._inbox.popleft()
        protocol = self._protocol
        assert protocol is not None
        if isinstance(item, OSError):
            self._force_close(item)
        elif isinstance(item, End):
            if not self._guard("eof_received", protocol.eof_received):
                self.close()
        else:
            data = self._take(item)
            outside(self.far_flow.read, len(data))
            self._guard("data_received", protocol.data_received, data)
        self._wake()

    def _take(self, first: bytes | memoryview) -> bytes:
        """Return `first` and what follows it, or just a part of that."""
        pieces, size = [first], len(first)
        while self._inbox and isinstance(piece := self._inbox[0], bytes | memoryview):
            if size + len(piece) > _MOST_READ_BYTES:
                break
            pieces.append(piece)
            size += len(piece)
            self._inbox.popleft()
        data = b"".join(pieces)
        draw = self._randomness
        if size > _MOST_READ_BYTES:
            at = _MOST_READ_BYTES
        elif size > 1 and draw.random() < self._split_chance:
            # Short pieces are as likely as long ones: they end inside of lengths and headers.
            at = draw.randrange(1, min(size, 2 << draw.randrange(size.bit_length())))
        else:
            return data
        self._inbox.appendleft(memoryview(data)[at:])
        return data[:at]

    def _guard(self, name: str, call: Callable[..., Any], *args: object) -> Any:
        """Call the protocol; what it raises ends the connection."""
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001 - as asyncio does
            message = f"Fatal error: protocol.{name}() call failed."
            context = {"message": message, "exception": error, "transport": self}
            self._loop.call_exception_handler({**context, "protocol": self._protocol})
            self._force_close(error)
            return None

    def _force_close(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._closing = True
        if not self.is_gone:
            self.is_gone = True
            outside(self._reset_far)
        self._lose(error)

    def _reset_far(self) -> None:
        self.flow.send_reset(drop=True)

    def _lose(self, error: Exception | None) -> None:
        self._lost = True
        self._loop.call_soon(self._call_connection_lost, error, context=self._context)

    def _call_connection_lost(self, error: Exception | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            outside(self._close_socket, error)

    def _close_socket(self, error: Exception | None) -> None:
        if not self.is_gone:
            if any(not isinstance(item, End) for item in self._inbox):
                # As a socket does that is closed before everything was read.
                self.is_gone = True
                self.flow.send_reset(drop=False)
            elif not self._eof_written:
                self.flow.send(End.OF_STREAM)
        self.is_closed = True
        self._inbox.clear()
        self._on_lost(self, error)

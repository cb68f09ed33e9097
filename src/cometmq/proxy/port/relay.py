"""Relay the bytes of a client's connection to gRPC's own server and back.

When the peer of one side does not read, the other side stops reading, so one connection holds the
bytes of two reads of a socket in each direction. The end of one direction is passed on; when one
side is lost, the other one is closed once what it has to write is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from cometmq.proxy.port.requests_begun import RequestsBegun

# A write that leaves more than this unsent stops the reading of the other side.
UNSENT_BYTES: Final = 64 * 1024


class Side(asyncio.Protocol):
    """One of the two connections of a relay. For the loop's thread only.

    `on_made` is called when it is connected, `on_lost` when it is lost; `join` gives it the other side.
    Bytes that come before are kept, and nothing more is read. The connection to gRPC's server has a `name`. The
    connection of a client has `requests`, which count the bytes that come.
    """

    def __init__(
        self, on_made: Callable[[Side], None], on_lost: Callable[[Side], None], name: str = ""
    ) -> None:
        self.name = name
        self._is_server = bool(name)
        self.requests: RequestsBegun | None = None
        # Called with the first bytes; returns whether they may begin a connection.
        self.check_first: Callable[[bytes], bool] | None = None
        self.transport: asyncio.Transport | None = None
        # Since when its peer has not read all that was written, 0 if it has.
        self.unsent_since = 0.0
        self._on_made = on_made
        self._on_lost = on_lost
        self._other: Side | None = None
        self._early: list[bytes] = []
        self._has_ended = False
        self._is_lost = False

    @property
    def unsent_bytes(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def join(self, other: Side) -> None:
        """Pass bytes on to `other` from now on: those that have come already, and those that
        follow.
        """
        self._other = other
        assert other.transport is not None, "both sides are connected"
        if not other.transport.is_closing():
            for data in self._early:
                other.transport.write(data)
        self._early.clear()
        if self._is_lost:
            other.end()
        elif self._has_ended:
            other.end_writing()
        elif other.unsent_since == 0.0:
            self.read_on()

    def read_on(self) -> None:
        """Read again what the peer sends."""
        transport = self.transport
        if transport is not None and not transport.is_closing() and not self._has_ended:
            transport.resume_reading()

    def end(self) -> None:
        """Close once all is written."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            if self.unsent_bytes and not self.unsent_since:
                self.unsent_since = asyncio.get_running_loop().time()

    def end_writing(self) -> None:
        """End this direction. Close where the end of one direction cannot be announced, as in
        TLS.
        """
        transport = self.transport
        assert transport is not None, "it is connected"
        if transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            self.end()

    def cut(self) -> None:
        """Close at once."""
        if self.requests is not None:
            self.requests.close()
        if self.transport is not None:
            self.transport.abort()

    # As a protocol object

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = made = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(UNSENT_BYTES)
        made.pause_reading()
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        if self.check_first is not None:
            check, self.check_first = self.check_first, None
            if not check(data):
                return
        if self.requests is not None:
            self.requests.feed(data)
            if self.requests.is_closed:
                return
        if self._other is None:
            self._early.append(data)
        elif (transport := self._other.transport) is not None and not transport.is_closing():
            transport.write(data)

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._other is not None:
            self._other.end_writing()
        # A client may still want the answers; a TLS transport closes whatever this returns. gRPC's server
        # ends both directions at once, and a client that kept its own open would hold the connection.
        return not self._is_server

    def pause_writing(self) -> None:
        self.unsent_since = asyncio.get_running_loop().time()
        other = self._other
        if other is not None and other.transport is not None and not other.transport.is_closing():
            other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.unsent_since = 0.0
        if self._other is not None:
            self._other.read_on()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as of `Protocol`
        self._is_lost = True
        if self.requests is not None:
            self.requests.close()
        if self._other is not None:
            self._other.end()
        self._on_lost(self)

"""Serve an accepted connection by TLS.

A transport of asyncio, or of uvloop, reads as soon as it is made, before TLS is set up. Bytes that it
has read by then are handed to TLS as if they came later. The loop could do all of it
(`connect_accepted_socket(ssl=…)`), but the transport that it returns does not count the bytes that
wait in the one beneath. A peer that does not read would then hold megabytes that no limit counts.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.tls.records import RecordReader, RecordTurns

# A connection that is closed waits so long for the peer to take the unsent bytes, and to close.
_SHUTDOWN_TIMEOUT_S: Final = 10.0


async def connect_tls(
    arrival: Arrival,
    new_protocol: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext,
    timeout_s: float,
    turns: RecordTurns,
    charge: Callable[[float], None],
) -> None:
    """Shake hands, and serve the connection; its records are opened in `turns`.

    `charge` is called with the processor time of the handshake in seconds, however it ends. Raises
    OSError, and has closed the connection then.
    """
    loop = asyncio.get_running_loop()
    early, entry = _Early(), _Entry()
    raw = await loop.connect_accepted_socket(lambda: early, arrival.take())
    under: asyncio.Transport = raw[0]
    names = {name: under.get_extra_info(name) for name in ("peername", "sockname")}
    try:
        under.pause_reading()
        shaking_hands = loop.create_task(
            loop.start_tls(
                under,
                entry,
                tls,
                server_side=True,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
            )
        )
        try:
            await asyncio.sleep(0)
            if early.is_lost:
                raise ConnectionResetError("the peer closed before the handshake began")
            # `start_tls` has asked for TLS to be connected and for reading to go on in the next
            # turn of the loop. This comes behind them, and before anything is read.
            loop.call_soon(early.hand_over, under, turns)
            transport = await shaking_hands
        except BaseException:
            shaking_hands.cancel()
            raise
    except BaseException:
        under.abort()
        raise
    finally:
        charge(0.0 if early.reader is None else early.reader.work_s)
    assert transport is not None, "start_tls returns a transport or raises"
    assert early.reader is not None, "no handshake is done without it"
    entry.hand_over(TlsTransport(transport, under, early.reader, names), new_protocol)


class TlsTransport(asyncio.Transport):
    """A TLS transport that counts the bytes of the transport beneath, too, as unsent.

    `names` are the addresses that it gave while it was connected: a lost one names no peer.
    """

    def __init__(
        self,
        over: asyncio.Transport,
        under: asyncio.Transport,
        reader: RecordReader,
        names: dict[str, Any],
    ) -> None:
        self._over = over
        self._under = under
        self._reader = reader
        self._names = names
        self.write = over.write  # type: ignore[method-assign]  # saves a call
        self.is_reading = over.is_reading  # type: ignore[method-assign]  # the same

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = self._names.get(name)
        return self._over.get_extra_info(name, default) if found is None else found

    def get_write_buffer_size(self) -> int:
        return self._over.get_write_buffer_size() + self._under.get_write_buffer_size()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        # Each of the buffers would be a TLS record of its own otherwise, however short it is.
        self._over.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._reader.hold()
        self._over.pause_reading()

    def resume_reading(self) -> None:
        self._over.resume_reading()
        self._reader.release()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._over.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._over.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._over.is_closing()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._over.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._over.set_protocol(protocol)

    def close(self) -> None:
        # The peer's own close-notify has to be read.
        self._reader.release()
        self._over.close()

    def abort(self) -> None:
        self._over.abort()


class _Early(asyncio.Protocol):
    """Keeps what a transport reads before TLS is set up: the hello, which is there already."""

    def __init__(self) -> None:
        self.is_lost = False
        self.reader: RecordReader | None = None
        self._received: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as of `Protocol`
        self.is_lost = True

    def hand_over(self, transport: asyncio.Transport, turns: RecordTurns) -> None:
        """Hand the bytes that were read, and those that come, to the transport's new protocol."""
        self.reader = RecordReader(turns, transport)
        received, self._received = b"".join(self._received), []
        self.reader.data_received(received)


class _Entry(asyncio.Protocol):
    """Stands for the protocol object until the handshake is done.

    The first requests may come with the last bytes of the handshake, before `start_tls` returns, and
    those of a peer that asks for no answer may be followed by the end of the stream at once.
    """

    def __init__(self) -> None:
        self._received: list[bytes] = []
        # The protocol that took over, if one has.
        self._protocol: asyncio.Protocol | None = None
        self._ended = self._lost = False
        self._failure: Exception | None = None

    def data_received(self, data: bytes) -> None:
        self._received.append(data)

    def eof_received(self) -> None:
        self._ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._failure = exc
        if self._protocol is not None:
            # The loop had this call on its way when the protocol object took over.
            self._protocol.connection_lost(exc)

    def hand_over(
        self, transport: TlsTransport, new_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """Give a protocol object the connection, and the bytes that came for it. Raises OSError."""
        if (self._lost or transport.is_closing()) and not self._received:
            raise ConnectionResetError("the peer closed when the handshake was done") from (
                self._failure
            )
        self._protocol = protocol = new_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._received:
            protocol.data_received(data)
        if self._ended:
            protocol.eof_received()
        if self._lost:
            protocol.connection_lost(self._failure)

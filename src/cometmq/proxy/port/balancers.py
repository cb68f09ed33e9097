"""Read the header by which a balancer names the client of a connection: HAProxy's PROXY protocol.

It comes before everything else, TLS included (proxy-protocol.txt of haproxy.org):

    version 1: "PROXY TCP4 source destination source-port destination-port\\r\\n", or with TCP6, or
               "PROXY UNKNOWN …\\r\\n"; 107 bytes at most
    version 2: signature, 12 bytes | u8 version (high half: 2) and command (0 LOCAL, 1 PROXY)
               | u8 family (0x11 IPv4 and TCP, 0x21 IPv6 and TCP) | u16 length of the rest
               | source, 4 or 16 bytes | destination, as long | u16 source port | u16 destination port
               | fields of other kinds, which this module ignores

Java's proxy accepts the header from every peer (ProxyAndTlsProtocolNegotiator), so every peer can choose the
address that policies and limits see. This proxy accepts it only from the balancers in haproxyFrom, and each
of their connections must begin with a header, as the specification demands.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from cometmq.errors import ProtocolError
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.runtime.sockets.arrivals import Arrival

log = get_logger(__name__)

_TEXT: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
BEGINNINGS: Final = (_TEXT, _SIGNATURE)
_HEAD: Final = struct.Struct(">12sBBH")
assert _HEAD.size == 16
_LONGEST_TEXT: Final = 107
# Balancers add fields about TLS, hundreds of bytes at most.
LONGEST: Final = 4096
_LOCAL, _PROXY = 0x20, 0x21
# The length of an address in bytes, by family.
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
_VERSIONS: Final = {"TCP4": 4, "TCP6": 6}


class Header(NamedTuple):
    """Holds the size of a header in bytes, and the client's address and port.

    `source` is None if the header names no client, as in a health check by the balancer itself.
    """

    size: int
    source: tuple[str, int] | None


def read_header(data: bytes) -> Header | int:
    """Return the header at the beginning of `data`, or the number of bytes to wait for if it is not complete.

    Raises ProtocolError for bytes that are no header.
    """
    if len(data) < _HEAD.size:
        return _HEAD.size
    if data.startswith(_SIGNATURE):
        return _read_bytes(data)
    if data.startswith(_TEXT):
        return _read_text(data)
    raise ProtocolError("the connection does not begin with an HAProxy header")


def _read_text(data: bytes) -> Header | int:
    end = data.find(b"\r\n", 0, _LONGEST_TEXT)
    if end < 0:
        if len(data) >= _LONGEST_TEXT:
            raise ProtocolError(f"its HAProxy header has no end within {_LONGEST_TEXT} bytes")
        return len(data) + 1
    words = data[:end].decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return Header(end + 2, None)
    try:
        _, family, source, _, port, _ = words
        found = ip_address(source)
        if found.version != _VERSIONS[family] or not port.isascii() or not port.isdecimal():
            raise ValueError(words)
        number = int(port)
        if number > 0xFFFF:
            raise ValueError(number)
    except (ValueError, KeyError) as error:
        raise ProtocolError(f"its header is {data[:end]!r}, which names no client") from error
    return Header(end + 2, (_shown(found), number))


def _read_bytes(data: bytes) -> Header | int:
    _, command, family, length = _HEAD.unpack_from(data)
    size: int = _HEAD.size + length
    if size > LONGEST:
        raise ProtocolError(f"its HAProxy header has {size} bytes, the limit is {LONGEST}")
    if command not in (_LOCAL, _PROXY):
        raise ProtocolError(
            f"its HAProxy header has the version and command {command:#x}, not 0x20 or 0x21"
        )
    if len(data) < size:
        return size
    width = _ADDRESS_BYTES.get(family)
    if command == _LOCAL or width is None:
        return Header(size, None)
    if length < 2 * width + 4:
        raise ProtocolError(
            f"its HAProxy header has {length} bytes for addresses, which need {2 * width + 4}"
        )
    source = ip_address(data[_HEAD.size : _HEAD.size + width])
    port = int.from_bytes(data[_HEAD.size + 2 * width : _HEAD.size + 2 * width + 2], "big")
    return Header(size, (_shown(source), port))


def _shown(address: IPv4Address | IPv6Address) -> str:
    """Return an address as lists have it. Before Python 3.13 the text of `::ffff:1.2.3.4` has no dots."""
    return str(getattr(address, "ipv4_mapped", None) or address)


class Balancers:
    """Takes the headers of trusted balancers off their connections. For the loop's thread only.

    `serve` gets each connection: one of a balancer after its header, with the address of the client, and any
    other one at once. A connection without its header after `timeout_s` is closed. `full` returns the name of
    the limit that a new connection meets, "" if there is room. Then the oldest connection that waits for its
    header is closed, and `on_limit` gets the name.
    """

    def __init__(
        self,
        trusted: AddressList,
        serve: Callable[[Arrival], None],
        on_limit: Callable[[str], None],
        *,
        full: Callable[[Arrival], str],
        timeout_s: float,
    ) -> None:
        self._trusted = trusted
        self._serve = serve
        self._on_limit = on_limit
        self._full = full
        self._timeout_s = timeout_s
        # A dict, because it keeps the order in which connections came.
        self._waiting: dict[Arrival, asyncio.TimerHandle] = {}
        self._refusals = RareLine()

    @property
    def waiting_count(self) -> int:
        """Return the number of connections that have not sent their header yet."""
        return len(self._waiting)

    def arrived(self, arrival: Arrival) -> None:
        """Serve an accepted connection, after its header if it is one of a trusted balancer."""
        if arrival.peer_ip not in self._trusted:
            self._serve(arrival)
            return
        if (limit := self._full(arrival)) and self.drop_oldest():
            self._on_limit(limit)
        self._waiting[arrival] = asyncio.get_running_loop().call_later(
            self._timeout_s, self._too_late, arrival
        )
        self._wait(arrival, _HEAD.size)

    def drop_oldest(self) -> bool:
        """Close the connection that has waited for longest, and return whether there was one."""
        for arrival in self._waiting:
            self._refuse(
                arrival, "its HAProxy header has not come, and a new connection takes its place"
            )
            return True
        return False

    def close(self) -> None:
        """Close all connections that wait for their headers."""
        for arrival in list(self._waiting):
            self._leave(arrival)
            arrival.close()

    # Inside

    def _wait(self, arrival: Arrival, count: int) -> None:
        arrival.when_sent(count, partial(self._look, arrival, count))

    def _look(self, arrival: Arrival, count: int) -> None:
        data = arrival.peek(LONGEST)
        if not data or len(data) < count:  # the peer is gone
            self._leave(arrival)
            arrival.close()
            return
        try:
            found = read_header(data)
        except ProtocolError as error:
            self._refuse(arrival, str(error))
            return
        if not isinstance(found, Header):
            self._wait(arrival, found)
            return
        self._leave(arrival)
        arrival.discard(found.size)
        if found.source is not None:
            arrival.comes_from(*found.source)
        # The door takes its guests to be in the order of these times.
        arrival.made_at = asyncio.get_running_loop().time()
        self._serve(arrival)

    def _too_late(self, arrival: Arrival) -> None:
        self._on_limit("SILENT_TIMEOUT_S")
        self._refuse(arrival, f"its HAProxy header did not come within {self._timeout_s:g} s")

    def _refuse(self, arrival: Arrival, reason: str) -> None:
        self._leave(arrival)
        if refused := self._refusals.count():
            log.warning(
                "connections refused: a balancer in haproxyFrom sent no valid HAProxy header",
                peer=arrival.peer,
                reason=reason,
                refused=refused,
                remedy="set send-proxy or send-proxy-v2 in the balancer, or remove it from haproxyFrom",
            )
        arrival.close()

    def _leave(self, arrival: Arrival) -> None:
        self._waiting.pop(arrival).cancel()

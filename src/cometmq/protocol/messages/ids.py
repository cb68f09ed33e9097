"""Make and read message ids; both kinds are upper-case hex text.

Unique id, given by the producer (Java: MessageClientIDSetter), 16 bytes with an IPv4 address:

    size    field
    4 / 16  address of the client
    2       process id, low 16 bits
    4       a random number that is the same in all ids of a generator
    4       milliseconds since the first of the month, local time
    2       counter

Offset id, given by the broker (Java: MessageDecoder.createMessageId):

    size    field
    4 / 16  address of the store host
    4       its port
    8       commit-log offset
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from cometmq.errors import IllegalArgumentError, ProtocolError


class UniqueIdGenerator:
    """Makes unique ids in one process.

    `address` is the packed IP address (4 or 16 bytes) to embed. Do not use a generator after
    `fork`: it would repeat its parent's ids, so a child makes a generator of its own. `now_ms`
    returns milliseconds since the epoch, `randbytes` as many random bytes as it is asked for.
    """

    def __init__(
        self,
        address: bytes,
        process_id: int | None = None,
        *,
        now_ms: Callable[[], int],
        randbytes: Callable[[int], bytes],
    ) -> None:
        process = (os.getpid() if process_id is None else process_id) & 0xFFFF
        self._now_ms = now_ms
        prefix = address + process.to_bytes(2, "big") + randbytes(4)
        self._prefix = prefix.hex().upper()
        self._counter = itertools.count(int.from_bytes(randbytes(2), "big"))
        self._base_ms = 0
        self._next_base_ms = 0

    def next(self) -> str:
        """Return the next id: 32 characters with IPv4, 56 with IPv6. For any thread: `count` is atomic."""
        now_ms = self._now_ms()
        if not self._base_ms <= now_ms < self._next_base_ms:
            self._renew_base(now_ms)
        elapsed = (now_ms - self._base_ms) & 0xFFFFFFFF
        return f"{self._prefix}{elapsed:08X}{next(self._counter) & 0xFFFF:04X}"

    def _renew_base(self, now_ms: int) -> None:
        first, following = _month_bounds_ms(now_ms)
        self._base_ms, self._next_base_ms = first, following


def _month_bounds_ms(now_ms: int) -> tuple[int, int]:
    now = time.localtime(now_ms / 1000)
    # mktime accepts a 13th month for the next January, and knows which of the two months have
    # summer time.
    return _month_start_ms(now.tm_year, now.tm_mon), _month_start_ms(now.tm_year, now.tm_mon + 1)


def _month_start_ms(year: int, month: int) -> int:
    return int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1)) * 1000)


class OffsetId(NamedTuple):
    host: str
    port: int
    commit_log_offset: int


def encode_offset_id(packed_host: bytes, commit_log_offset: int) -> str:
    """Return the offset id of a record; `packed_host` is address and port as the record holds
    them.
    """
    return packed_host.hex().upper() + f"{commit_log_offset:016X}"


def parse_offset_id(offset_id: str) -> OffsetId:
    """Return the parts of an offset id. Raise ProtocolError unless it has 32 (IPv4) or 56 (IPv6)
    hex characters.
    """
    raw = _unhex(offset_id, "offset message id")
    if len(raw) not in (16, 28):
        raise ProtocolError(f"an offset message id has 32 or 56 characters, got {len(offset_id)}")
    port, offset = struct.unpack(">iq", raw[-12:])
    return OffsetId(_address_text(raw[:-12]), port, offset)


def pack_host(host: str, port: int) -> bytes:
    """Pack an IP address and port as records hold them: 4 or 16 bytes, then the port as int32.

    Raise IllegalArgumentError for a host name.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.inet_pton(family, host) + port.to_bytes(4, "big")
    except OSError as error:
        raise IllegalArgumentError(f"{host!r} is no IP address") from error


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> str:
    """Return `ip:port` of a packed host of 8 or 20 bytes (IPv6 addresses without brackets, as in
    Java).
    """
    return f"{_address_text(packed[:-4])}:{int.from_bytes(packed[-4:], 'big')}"


def _address_text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def _unhex(text: str, kind: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise ProtocolError(f"{kind} {text[:80]!r} is not hex text") from error
    # fromhex ignores blanks.
    if len(text) != 2 * len(raw):
        raise ProtocolError(f"{kind} {text[:80]!r} is not hex text")
    return raw

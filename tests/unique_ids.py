"""Read the unique ids of messages, which CometMQ and Java only make."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple


class UniqueIdParts(NamedTuple):
    """The parts of a unique id. The time is milliseconds since the first of its month."""

    address: str
    process_id: int
    elapsed_ms: int
    counter: int


def parse_unique_id(unique_id: str) -> UniqueIdParts:
    raw = bytes.fromhex(unique_id)
    process_id, _constant, elapsed_ms, counter = struct.unpack(">HIIH", raw[-12:])
    return UniqueIdParts(str(ipaddress.ip_address(raw[:-12])), process_id, elapsed_ms, counter)

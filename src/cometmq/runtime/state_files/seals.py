"""Put a checksum into a JSON object as its last key, and check whether a text matches its own.

    ,
    \t"checksum":"crc32 CRC LENGTH"
    }

CRC    eight hexadecimal digits, of all bytes before these lines
LENGTH how many bytes these are, in decimal digits

A reader that does not know the key ignores it. A text of another length was changed by somebody,
since damage would not leave valid JSON; a text of the right length with another checksum is
damaged.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

_SEAL: Final = re.compile(rb',?\n\t"checksum":"crc32 ([0-9a-f]{8}) ([0-9]{1,18})"\n\}\s*\Z')
# Longer than a seal, and than any white space at the end of a text.
_TAIL_BYTES: Final = 128


class Seal(Enum):
    """The verdict on a text by its checksum."""

    MISSING = "missing"
    HOLDS = "holds"
    BROKEN = "broken"
    OF_ANOTHER_LENGTH = "of another length"


def seal(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text with its checksum; leave a text that is not a JSON object as it is."""
    tail, crc, length = b"", 0, 0
    for piece in pieces:
        tail += piece
        if len(tail) > _TAIL_BYTES:
            body, tail = tail[:-_TAIL_BYTES], tail[-_TAIL_BYTES:]
            crc, length = zlib.crc32(body, crc), length + len(body)
            yield body
    if not tail.rstrip().endswith(b"}"):
        yield tail
        return
    body = tail.rstrip()[:-1].rstrip()
    comma = b"" if not length and body == b"{" else b","
    crc, length = zlib.crc32(body, crc), length + len(body)
    yield body
    yield b'%b\n\t"checksum":"crc32 %08x %d"\n}' % (comma, crc, length)


def sealed(data: bytes) -> tuple[bytes, Seal]:
    """Return a text without its checksum, and whether the checksum is right."""
    found = _SEAL.search(data, max(0, len(data) - 2 * _TAIL_BYTES))
    if found is None:
        return data, Seal.MISSING
    end = found.start()
    text = data[:end] + b"\n}"
    if int(found[2]) != end:
        return text, Seal.OF_ANOTHER_LENGTH
    holds = zlib.crc32(memoryview(data)[:end]) == int(found[1], 16)
    return text, Seal.HOLDS if holds else Seal.BROKEN

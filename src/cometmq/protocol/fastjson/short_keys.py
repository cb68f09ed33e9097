"""Quote the keys of short bodies as `keys` does, without numpy, whose import takes a tenth of a
second and 12 MB.

All looks for words, blanks and brackets are made in a copy of the same length, in which a comma stands
for each byte of a text. Each of them goes over the copy once and takes what is longest, so the time
grows only with the length.
"""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import ProtocolError

# Takes two milliseconds at most; numpy takes a tenth of that for longer ones that are mostly keys.
MAX_LENGTH: Final = 4 * 1024

_TEXT: Final = re.compile(rb'"[^"]*"')
_BLANKS: Final = re.compile(rb"[\0-\x20]+")  # the decoder refuses those that JSON does not have
_WORDS: Final = re.compile(rb"[^\0-\x20,:\[\]{}]+")
_BRACKET: Final = re.compile(rb"[\[\]{}]")
# A text must not contain the line breaks and tabs that stand between the parts of a bean.
_WITHOUT_BREAKS: Final = bytes(max(byte, 0x20) for byte in range(256))


def quote_short_keys(data: bytes) -> bytes:
    """Return the body with every key made a text.

    Raise ProtocolError for a text without an end, and for a key that is neither a text nor a word nor
    a bean of plain values.
    """
    assert len(data) <= MAX_LENGTH
    return _quote_beans(_quote_words(data))


def _quote_words(data: bytes) -> bytes:
    bare = _without_texts(data)
    blanks = _before_colons(_BLANKS, bare)
    if blanks:
        # The decoder does not need these blanks, and without them a key ends right at its colon.
        data, bare = _without(data, blanks), _without(bare, blanks)
    pieces, end = [], 0
    for start, stop in _before_colons(_WORDS, bare):
        pieces += [data[end:start], b'"', data[start:stop], b'"']
        end = stop
    pieces.append(data[end:])
    return b"".join(pieces)


def _quote_beans(data: bytes) -> bytes:
    """Turn the beans that are keys into texts; all other keys are texts already."""
    if b"}:" not in data and b"]:" not in data:
        return data
    pieces, end, before = [], 0, -1
    for found in _BRACKET.finditer(_without_texts(data)):
        last = found.start()
        if data[last + 1 : last + 2] == b":":
            # A bean of plain values begins at the bracket before the one that ends it.
            if before < 0 or data[before : before + 1] != b"{" or found[0] != b"}":
                raise ProtocolError("a JSON key is neither a text, a number nor one flat bean")
            bean = data[before : last + 1].translate(_WITHOUT_BREAKS)
            bean = bean.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            pieces += [data[end:before], b'"', bean, b'"']
            end = last + 1
        before = last
    pieces.append(data[end:])
    return b"".join(pieces)


def _without_texts(data: bytes) -> bytes:
    """Return a copy with commas in the place of each text."""
    escaped = data
    if b"\\" in data:
        # Replaced from left to right, because escapes come in pairs.
        escaped = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    if escaped.count(b'"') % 2:
        start = escaped.rindex(b'"')
        raise ProtocolError(f"a JSON text begins at {start} and does not end")
    pieces, end = [], 0
    for found in _TEXT.finditer(escaped):
        start, stop = found.span()
        pieces += [data[end:start], b"," * (stop - start)]
        end = stop
    pieces.append(data[end:])
    return b"".join(pieces)


def _before_colons(runs: re.Pattern[bytes], bare: bytes) -> list[tuple[int, int]]:
    """Return where the runs stand that a colon follows."""
    spans = [found.span() for found in runs.finditer(bare)]
    return [(start, stop) for start, stop in spans if bare[stop : stop + 1] == b":"]


def _without(data: bytes, spans: list[tuple[int, int]]) -> bytes:
    pieces, end = [], 0
    for start, stop in spans:
        pieces.append(data[end:start])
        end = stop
    pieces.append(data[end:])
    return b"".join(pieces)

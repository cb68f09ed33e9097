"""Quote the keys that fastjson leaves bare, so that a body becomes strict JSON.

Two kinds of keys are bare: words (`{0:"a"}`) and whole beans (`{{"queueId":0}:1}`). A bean becomes
a text that holds its JSON. The work is a fixed number of numpy passes over the bytes, so its time
grows only with the length: there is no token that a sender could repeat to make it slow.

This module only tells tokens apart. The decoder reports all other faults of a body.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.errors import ProtocolError

# Each token takes 16 bytes of memory while a body is worked on.
MAX_DIALECT_TOKENS: Final = 4_000_000

_Bytes = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]
_Places = npt.NDArray[np.intp]

_BLANK: Final = 0x20  # bytes below it count as blank, too; the decoder refuses them
_COMMA: Final = ord(",")
_COLON: Final = ord(":")
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")


def quote_keys(data: bytes) -> bytes:
    """Return the body with every key made a text.

    Raise ProtocolError for a text without an end, for a key that is neither a text nor a word nor a
    bean of plain values, and for more than MAX_DIALECT_TOKENS words, blanks or brackets.
    """
    if not data:
        return data
    return _quote_beans(_quote_words(data))


def _quote_words(data: bytes) -> bytes:
    body, plain = np.frombuffer(data, np.uint8), _outside_of_texts(data)
    blanks = plain & (body <= _BLANK)
    if blanks.any():
        # The decoder does not need these blanks, and without them a key ends right at its colon.
        needless = _between(*_runs_before_colon(blanks, body, plain), len(body))
        body, plain = body[~needless], plain[~needless]
    words = plain & (body > _BLANK) & (body != _COMMA) & (body != _COLON) & ~_brackets(body)
    starts, stops = _runs_before_colon(words, body, plain)
    return _inserted(body, (starts, _QUOTE), (stops, _QUOTE))


def _quote_beans(data: bytes) -> bytes:
    """Turn the beans that are keys into texts; all other keys are texts already."""
    if b"}:" not in data and b"]:" not in data:
        return data
    body, plain = np.frombuffer(data, np.uint8), _outside_of_texts(data)
    brackets = _places(plain & _brackets(body))
    is_key = np.append(body, 0)[brackets + 1] == _COLON
    # A bean of plain values begins at the bracket before the one that ends it.
    first, last = brackets[:-1][is_key[1:]], brackets[1:][is_key[1:]]
    if is_key[:1].any() or (body[first] != _OPEN).any() or (body[last] != _CLOSE).any():
        raise ProtocolError("a JSON key is neither a text, a number nor one flat bean")
    in_bean = _between(first, last + 1, len(body))
    escaped = _places(in_bean & ((body == _QUOTE) | (body == _BACKSLASH)))
    # A text must not contain the line breaks and tabs that stand between the parts of a bean.
    body = np.where(in_bean & (body < _BLANK), np.uint8(_BLANK), body)
    return _inserted(body, (first, _QUOTE), (last + 1, _QUOTE), (escaped, _BACKSLASH))


def _outside_of_texts(data: bytes) -> _Mask:
    """Return which bytes belong to no text; quotes belong to texts."""
    if b"\\" in data:
        # Replaced from left to right, because escapes come in pairs.
        data = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    quotes = np.frombuffer(data, np.uint8) == _QUOTE
    inside = np.logical_xor.accumulate(quotes)
    if inside[-1]:
        start = data.rindex(_QUOTE)
        raise ProtocolError(f"a JSON text begins at {start} and does not end")
    outside: _Mask = ~(inside | quotes)
    return outside


def _brackets(body: _Bytes) -> _Mask:
    folded = body & 0xDF  # `{` and `[` differ in one bit, and `}` and `]` in the same
    brackets: _Mask = (folded == ord("[")) | (folded == ord("]"))
    return brackets


def _runs_before_colon(mask: _Mask, body: _Bytes, plain: _Mask) -> tuple[_Places, _Places]:
    """Return the first and past-the-end places of the runs of `mask` that a colon follows."""
    edges = np.zeros(len(mask) + 1, np.bool_)
    np.not_equal(mask[1:], mask[:-1], out=edges[1:-1])
    edges[0], edges[-1] = mask[0], mask[-1]
    places = _places(edges, per_token=2)
    starts, stops = places[::2], places[1::2]
    chosen = np.append((body == _COLON) & plain, False)[stops]
    return starts[chosen], stops[chosen]


def _between(starts: _Places, stops: _Places, length: int) -> _Mask:
    """Return which bytes lie in one of the spans, which neither touch nor overlap."""
    turns = np.zeros(length + 1, np.bool_)
    turns[starts] = turns[stops] = True
    inside: _Mask = np.logical_xor.accumulate(turns)[:-1]
    return inside


def _places(mask: _Mask, *, per_token: int = 1) -> _Places:
    count = int(np.count_nonzero(mask)) // per_token
    if count > MAX_DIALECT_TOKENS:
        raise ProtocolError(
            f"a JSON body in fastjson's dialect has {count} words, blanks or brackets, the limit "
            f"MAX_DIALECT_TOKENS is {MAX_DIALECT_TOKENS}; send strict JSON, or less of it",
            limit="MAX_DIALECT_TOKENS",
        )
    return np.flatnonzero(mask)


def _inserted(body: _Bytes, *signs: tuple[_Places, int]) -> bytes:
    """Return the bytes with each sign inserted before its places."""
    places = np.concatenate([places for places, _ in signs])
    values = np.concatenate([np.full(len(places), sign, np.uint8) for places, sign in signs])
    return np.insert(body, places, values).tobytes() if len(places) else body.tobytes()

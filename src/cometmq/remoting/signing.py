"""Compute the texts and keyed hashes by which requests are signed and sealed.

    signature   Base64(HMAC-SHA1(secret key, all other ext values in the order of their names, then
                the body)), texts in UTF-8
    seal        the first 16 hexadecimal digits of HMAC-SHA1(secret key, `seal NUMBER;CODE;LENGTH OF
                BODY;LENGTHS OF VALUES;NAMES`), without Signature and Nonce

`cometmq.remoting.credentials` says which fields those are, and what the seal is for. A server does
this for every request, so requests of the same fields share the order of their names.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from hashlib import sha1
from operator import itemgetter
from typing import Any, Final

SIGNATURE: Final = "Signature"
NONCE: Final = "Nonce"
SEAL_LENGTH: Final = 16

_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))

# Real clients have some ten forms for each request code. A client that makes up names slows only its
# own requests: a form that is not remembered is worked out again.
_MOST_FORMS: Final = 256
_LONGEST_NAMES: Final = 2_048


class SigningKey:
    """Makes HMAC-SHA1 codes with one key. `repr` does not show it.

    HMAC is two hashes, each of which begins with a block made of the key (RFC 2104). To copy
    two that have had theirs takes half the time of copying OpenSSL's HMAC object.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > _BLOCK_BYTES:
            key = sha1(key).digest()  # noqa: S324 - RocketMQ's algorithm
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner: Any = sha1(key.translate(_INNER))  # noqa: S324 - RocketMQ's algorithm
        self._outer: Any = sha1(key.translate(_OUTER))  # noqa: S324 - RocketMQ's algorithm

    def code(self, head: bytes, body: bytes | memoryview = b"") -> bytes:
        """Return the 20 bytes for `head` followed by `body`."""
        inner = self._inner.copy()
        inner.update(head)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        made: bytes = outer.digest()
        return made

    def __repr__(self) -> str:
        return "SigningKey()"


class FieldOrder:
    """The order of the fields of requests that have the same names in the same order."""

    __slots__ = ("_sealed_names", "_sealed_values", "_values")

    def __init__(self, given: tuple[str, ...]) -> None:
        names = sorted(name for name in given if name != SIGNATURE)
        sealed = [name for name in names if name != NONCE]
        self._values: Any = itemgetter(*names) if names else None
        # With one name an itemgetter returns a text, which `join` takes as it takes a tuple of it.
        self._sealed_values: Any = itemgetter(*sealed, *sealed[:1]) if sealed else None
        self._sealed_names = "\0".join(sealed)

    def text(self, ext: Mapping[str, str]) -> str:
        """Return the signed bytes of the fields: all values in the order of their names."""
        return "" if self._values is None else "".join(self._values(ext))

    def sealed(self, number: str, code: int, ext: Mapping[str, str], body_length: int) -> str:
        """Return the sealed bytes: the form of a request, which no signature covers.

        No field that is signed has a NUL in its name, so no other form has the same text.
        """
        lengths: list[int] = []
        if self._sealed_values is not None:
            lengths = list(map(len, self._sealed_values(ext)))
            lengths.pop()  # the first came twice, so that there are two at least
        return f"seal {number};{code};{body_length};{lengths};{self._sealed_names}"


_orders: Final[dict[tuple[str, ...], FieldOrder]] = {}


def order_of(ext: Mapping[str, str]) -> FieldOrder:
    """Return the order of the fields of a request."""
    names = tuple(ext)
    order = _orders.get(names)
    if order is None:
        order = FieldOrder(names)
        if sum(map(len, names)) <= _LONGEST_NAMES:
            if len(_orders) >= _MOST_FORMS:
                _orders.clear()
            _orders[names] = order
    return order


def signature_of(key: SigningKey, text: str, body: bytes | memoryview) -> bytes:
    """Return the signature of the joined values and a body. Raises UnicodeEncodeError."""
    return b2a_base64(key.code(text.encode(), body), newline=False)


def seal_of(key: SigningKey, sealed: str) -> str:
    """Return the seal of a text of `FieldOrder.sealed`. Raises UnicodeEncodeError."""
    return key.code(sealed.encode()).hex()[:SEAL_LENGTH]

"""Verify the signatures of requests (Java: AclUtils, AclSigner, AuthenticationBuilder).

`cometmq.remoting.credentials`, with which clients sign, says which bytes are signed.
"""

from __future__ import annotations

import re
from hmac import compare_digest
from typing import Final

from cometmq.protocol.command import Ext
from cometmq.remoting.credentials import ACCESS_KEY
from cometmq.remoting.signing import (
    NONCE,
    SIGNATURE,
    FieldOrder,
    SigningKey,
    order_of,
    seal_of,
    signature_of,
)

# Says in a query that the key is a unique id (Java: MixAll.UNIQUE_MSG_QUERY_FLAG). Clients up to
# 4.9.3 add it after they have signed.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

# The text that our clients sign has this behind the access key.
_NONCE: Final = re.compile(r"[0-9a-f]{16}-[0-9]{1,15}-[0-9a-f]{16}")
_LONGEST_NONCE: Final = 49


class SecretKey:
    """A secret key that verifies signatures. Neither `repr` nor `str` shows it."""

    __slots__ = ("_key", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._key = SigningKey(text)

    def fault(self, code: int, ext: Ext, body: bytes) -> str | None:
        """Return None if `ext` has the signature of its other fields and the body, and the request
        is as it was signed. Else return what is wrong besides the signature, "" if it is that.

        Compare in a time that does not depend on where two signatures differ.
        """
        given = ext.get(SIGNATURE)
        if not given:
            return ""
        order = order_of(ext)
        text = order.text(ext)
        try:
            wanted = given.encode()
            if not compare_digest(signature_of(self._key, text, body), wanted):
                if _UNIQUE_KEY_QUERY not in ext:
                    return ""
                less = {name: each for name, each in ext.items() if name != _UNIQUE_KEY_QUERY}
                shorter = order_of(less).text(less)
                if not compare_digest(signature_of(self._key, shorter, body), wanted):
                    return ""
        except UnicodeEncodeError:  # no client can have signed a lone surrogate
            return ""
        nonce = ext.get(NONCE)
        if nonce is None:
            return _moved_nonce(ext, text, body)
        return self._form_fault(order, nonce, code, ext, body)

    def _form_fault(
        self, order: FieldOrder, nonce: str, code: int, ext: Ext, body: bytes
    ) -> str | None:
        number, _, given = nonce.rpartition("-")
        try:
            sealed = order.sealed(number, code, ext, len(body))
            if compare_digest(seal_of(self._key, sealed).encode(), given.encode()):
                return None
        except UnicodeEncodeError:
            pass
        return "its code, or names or lengths of its fields, are not as they were signed"

    def __repr__(self) -> str:
        return "SecretKey()"


def _moved_nonce(ext: Ext, text: str, body: bytes) -> str | None:
    """Return what is wrong with a signed request that has no Nonce; Java's clients send none."""
    begin = len(ext[ACCESS_KEY])
    end = begin + _LONGEST_NONCE
    if len(text) < end:
        text += body[:end].decode("latin-1")
    return "its Nonce was taken out of its place" if _NONCE.match(text, begin) else None

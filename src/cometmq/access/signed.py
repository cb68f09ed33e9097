"""Verify the signatures of requests (Java: AclUtils, AclSigner, AuthenticationBuilder).

What is signed stands in `cometmq.remoting.credentials`, by which clients sign.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

from cometmq.protocol.command import Ext
from cometmq.remoting.credentials import ACCESS_KEY, NONCE, SIGNATURE, digest, keyed, seal

# Says in a query that the key is a unique id (Java: MixAll.UNIQUE_MSG_QUERY_FLAG). Clients up to
# 4.9.3 add it after they have signed.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

# What stands behind the access key in the text that our clients sign.
_NONCE: Final = re.compile(r"[0-9a-f]{16}-[0-9]{1,15}-[0-9a-f]{16}")
_LONGEST_NONCE: Final = 49


class SecretKey:
    """A secret key that verifies signatures. Neither `repr` nor `str` shows it."""

    __slots__ = ("_keyed", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # Copying a keyed hash costs less than keying a new one.
        self._keyed = keyed(text)

    def signed(self, ext: Ext, body: bytes) -> bool:
        """Say whether `ext` has the signature of its other fields and the body.

        Compare in a time that does not depend on where two signatures differ.
        """
        given = ext.get(SIGNATURE)
        if not given:
            return False
        try:
            right = hmac.compare_digest(
                digest(self._keyed.copy(), ext, body).encode(), given.encode()
            )
            if not right and _UNIQUE_KEY_QUERY in ext:
                less = {name: text for name, text in ext.items() if name != _UNIQUE_KEY_QUERY}
                right = hmac.compare_digest(
                    digest(self._keyed.copy(), less, body).encode(), given.encode()
                )
        except UnicodeEncodeError:  # no client can have signed a lone surrogate
            return False
        return right

    def form_fault(self, code: int, ext: Ext, body: bytes) -> str:
        """Return why a request with a right signature is not as it was signed, "" if it is, or if
        Java's client signed it, which does not say.
        """
        nonce = ext.get(NONCE)
        if nonce is None:
            begin = len(ext[ACCESS_KEY])
            end = begin + _LONGEST_NONCE
            text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
            if len(text) < end:
                text += body[:end].decode("latin-1")
            if _NONCE.match(text, begin):
                return "its Nonce was taken out of its place"
            return ""
        number, _, given = nonce.rpartition("-")
        try:
            right = seal(self._keyed.copy(), number, code, ext, body).encode()
            if hmac.compare_digest(right, given.encode()):
                return ""
        except UnicodeEncodeError:
            pass
        return "its code, or names or lengths of its fields, are not as they were signed"

    def __repr__(self) -> str:
        return "SecretKey()"

"""Verify the signatures of requests (Java: AclUtils, AclSigner, AuthenticationBuilder).

What is signed stands in `cometmq.remoting.credentials`, by which clients sign.
"""

from __future__ import annotations

import hmac
from typing import Final

from cometmq.protocol.command import Ext
from cometmq.remoting.credentials import SIGNATURE, digest, keyed

# Says in a query that the key is a unique id (Java: MixAll.UNIQUE_MSG_QUERY_FLAG). Clients up to
# 4.9.3 add it after they have signed.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


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

    def __repr__(self) -> str:
        return "SecretKey()"

"""Hold a client's access: the credentials that sign its requests, and its TLS settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.remoting.credentials import Credentials, check_credentials
from cometmq.tls.contexts import Tls, tls_of

__all__ = ["PLAIN", "Access", "Credentials", "Tls", "access_of"]


@dataclass(frozen=True, slots=True)
class Access:
    """`tls` may be a function that gives the context of the next connection, for certificates that change."""

    credentials: Credentials | None = None
    tls: Tls | Callable[[], ssl.SSLContext] | None = None


PLAIN: Final = Access()


def access_of(credentials: object, tls: object) -> Access:
    """Make an Access of a client's parameters of these names. Raises IllegalArgumentError."""
    return Access(check_credentials(credentials), tls_of(tls))

"""Holds a client's access: the credentials that sign its requests, and its TLS settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.remoting.credentials import Credentials, check_credentials
from cometmq.tls.contexts import Tls, tls_of

__all__ = ["PLAIN", "Access", "Credentials", "Tls", "access_of"]


@dataclass(frozen=True, slots=True)
class Access:
    credentials: Credentials | None = None
    tls: Tls | None = None


PLAIN: Final = Access()


def access_of(credentials: object, tls: object) -> Access:
    """Make an Access of a client's parameters of these names. Raises IllegalArgumentError."""
    return Access(check_credentials(credentials), tls_of(tls))

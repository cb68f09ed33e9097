"""Read the credentials by which servers sign what they ask other servers (Java: BrokerOuterAPI)."""

from __future__ import annotations

from typing import Final

import msgspec

from cometmq.access.config import AccessConfig
from cometmq.errors import ConfigError, IllegalArgumentError
from cometmq.remoting.credentials import Credentials

INNER_KEY: Final = "innerClientAuthenticationCredentials"
INIT_KEY: Final = "initAuthenticationUser"


class _Given(msgspec.Struct, rename="camel"):
    access_key: str = ""
    secret_key: str = ""
    security_token: str | None = None


class _InitUser(msgspec.Struct):
    username: str = ""
    password: str = ""


def inner_credentials(config: AccessConfig) -> Credentials | None:
    """Return the credentials with which this server signs requests to other servers, None without
    any.

    Raises ConfigError, whose text does not show the value.
    """
    text = config.inner_client_authentication_credentials
    if not text.strip():
        return None
    form = '{"accessKey":"NAME","secretKey":"SECRET"}'
    try:
        given = msgspec.json.decode(text, type=_Given)
        return Credentials(given.access_key, given.secret_key, given.security_token)
    except (msgspec.DecodeError, IllegalArgumentError) as error:
        why = f": {error}" if isinstance(error, IllegalArgumentError) else ""
        raise ConfigError(f"{INNER_KEY} must be of the form {form}{why}") from None


def init_user(config: AccessConfig) -> Credentials | None:
    """Return name and password of the first user, None if none is given. Raises ConfigError."""
    text = config.init_authentication_user
    if not text.strip():
        return None
    form = '{"username":"NAME","password":"PASSWORD"}'
    try:
        given = msgspec.json.decode(text, type=_InitUser)
        return Credentials(given.username, given.password)
    except (msgspec.DecodeError, IllegalArgumentError):
        raise ConfigError(
            f"{INIT_KEY} must be of the form {form}, both without white space around them"
        ) from None

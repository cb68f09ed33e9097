"""Hold the accounts of ACL 1.0 with the rights of each.

Java: PlainAccessConfig, PlainAccessResource, Permission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cometmq.access.plain.addresses import WhiteList
from cometmq.access.signed import SecretKey
from cometmq.errors import ConfigError

# Longer ones are keys (Java: ACCESS_KEY_MIN_LENGTH, SECRET_KEY_MIN_LENGTH).
MIN_KEY_LENGTH: Final = 6
# Ours: the longest that an account file may have.
MAX_KEY_LENGTH: Final = 256

DENY: Final = 1
ANY: Final = 2
PUB: Final = 4
SUB: Final = 8

_PERMISSIONS: Final[Mapping[str, int]] = {
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
    "DENY": DENY,
}


def permission(text: str | None) -> int:
    """Return what a text permits; what Java does not know, and no text, is DENY."""
    return DENY if text is None else _PERMISSIONS.get(text.strip(), DENY)


def is_permission(text: str) -> bool:
    """Say whether a text names a permission (Java: Permission.checkResourcePerms)."""
    return text.strip() in _PERMISSIONS


def permits(needed: int, owned: int) -> bool:
    """Say whether a permission includes another one (Java: Permission.checkPermission)."""
    if owned & DENY:
        return False
    if needed & ANY:
        return bool(owned & (PUB | SUB))
    return bool(needed & owned)


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """One account as a file has it. `repr` does not show the secret key."""

    access_key: str
    secret_key: str = field(repr=False)
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()


class Account:
    """An account's properties that the rules look at. Raises ConfigError, without the secret, for a
    wrong one.
    """

    __slots__ = (
        "access_key",
        "default_group",
        "default_topic",
        "groups",
        "is_admin",
        "secret",
        "topics",
        "white",
    )

    def __init__(self, plain: PlainAccount) -> None:
        check_keys(plain.access_key, plain.secret_key)
        self.access_key = plain.access_key
        self.secret = SecretKey(plain.secret_key)
        self.white = WhiteList([plain.white_remote_address])
        self.is_admin = plain.admin
        self.default_topic = permission(plain.default_topic_perm)
        self.default_group = permission(plain.default_group_perm)
        self.topics = _by_name(plain.topic_perms, "topicPerms")
        self.groups = _by_name(plain.group_perms, "groupPerms")

    def __repr__(self) -> str:
        return f"Account({self.access_key!r})"


def check_keys(access_key: str, secret_key: str) -> None:
    """Raise ConfigError unless both keys have a length that Java takes, too."""
    for name, key in (("accessKey", access_key), ("secretKey", secret_key)):
        if not MIN_KEY_LENGTH < len(key) <= MAX_KEY_LENGTH:
            raise ConfigError(
                f"{name} has {len(key)} characters; give more than {MIN_KEY_LENGTH} and at most "
                f"{MAX_KEY_LENGTH}"
            )


def split_permission(entry: str, key: str) -> tuple[str, str]:
    """Return name and permission of an entry such as `orders=PUB`. Raises ConfigError."""
    parts = [part for part in entry.split("=") if part]
    if len(parts) != 2:
        raise ConfigError(f"{entry!r:.100} in {key} is not of the form name=PUB|SUB")
    return parts[0].strip(), parts[1].strip()


def _by_name(entries: Iterable[str], key: str) -> dict[str, int]:
    return {
        name: permission(text) for name, text in (split_permission(entry, key) for entry in entries)
    }

"""What a store says of a key, and what it must be able to do."""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Final, NamedTuple, Protocol

from cometmq.errors import IllegalArgumentError

MAX_KEY_LENGTH: Final = 1024
MAX_DURATION_S: Final = 10 * 365 * 24 * 3600.0
WEEK_S: Final = 7 * 24 * 3600.0


class KeyState(Enum):
    """FREE: begun now, by the caller. BUSY: begun by somebody else, whose lease holds. DONE: done."""

    FREE = "free"
    BUSY = "busy"
    DONE = "done"


class Begun(NamedTuple):
    """The answer to `begin`; with FREE, `token` tells the caller from those who begin later."""

    state: KeyState
    token: str = ""


class KeyStore(Protocol):
    """Keys that are in progress or done. Every method may be called by any thread, and is atomic
    towards all users of the same keys. Failures raise KeyStoreError.

    `blocking` says that calls may wait for a disk or a network: coroutine listeners have them made in
    threads.
    """

    blocking: bool

    def begin(self, key: str, lease_s: float) -> Begun:
        """Take a key that is neither done nor held under a lease that has not run out."""

    def finish(self, key: str, token: str) -> bool:
        """Note a key as done; False when the lease ran out and somebody else has begun it since."""

    def abandon(self, key: str, token: str) -> None:
        """Free a key that was begun with `token`; nothing happens if it is not held with it."""

    def close(self) -> None:
        """Release what the store holds open. Idempotent."""


def new_token() -> str:
    return secrets.token_hex(12)


def check_seconds(name: str, value: float) -> None:
    """Raise IllegalArgumentError unless `value` is a duration that makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise IllegalArgumentError(f"{name} is {value!r}, a {type(value).__name__}; give seconds")
    if not 0 < value <= MAX_DURATION_S:
        raise IllegalArgumentError(
            f"{name} is {value!r}; it must be more than 0 and at most {MAX_DURATION_S:.0f} seconds"
        )

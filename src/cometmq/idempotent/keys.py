"""Define what a key store must be able to do and what it says of a key."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from cometmq.errors import IllegalArgumentError
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

MAX_KEY_LENGTH: Final = 1024
MAX_DURATION_S: Final = 10 * 365 * 24 * 3600.0
WEEK_S: Final = 7 * 24 * 3600.0


class KeyState(Enum):
    """The answer of a store that is asked to begin a key.

    FREE: the caller has begun the key now. BUSY: somebody else has begun it, and that lease still
    holds. DONE: its message is done.
    """

    FREE = "free"
    BUSY = "busy"
    DONE = "done"


class Begun(NamedTuple):
    """The answer to `begin`. With FREE, `token` tells the caller from those who begin later."""

    state: KeyState
    token: str = ""


class KeyStore(Protocol):
    """Remembers keys that are in progress or done.

    Any thread may call any method. Every method is atomic towards all users of the same keys and
    raises KeyStoreError when it fails. `blocking` says that calls may wait for a disk or a network;
    coroutine listeners then make them in threads.
    """

    blocking: bool

    def begin(self, key: str, lease_s: float) -> Begun:
        """Take a key for `lease_s` seconds, unless it is done or held under a lease."""

    def finish(self, key: str, token: str) -> bool:
        """Note a key as done; return False if the lease ran out and somebody else began the key."""

    def abandon(self, key: str, token: str) -> None:
        """Free a key that is held with `token`; do nothing if it is not."""

    def close(self) -> None:
        """Release what the store holds open. Idempotent."""


def new_token() -> str:
    # Not from a parameter: two processes with the same seed would hold the same leases.
    return SYSTEM_RANDOMNESS.token_hex(12)


def check_seconds(name: str, value: float) -> None:
    """Raise IllegalArgumentError unless `value` is a duration that makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise IllegalArgumentError(f"{name} is {value!r}, a {type(value).__name__}; give seconds")
    if not 0 < value <= MAX_DURATION_S:
        raise IllegalArgumentError(
            f"{name} is {value!r}; it must be more than 0 and at most {MAX_DURATION_S:.0f} seconds"
        )

"""Draw random numbers.

Code that needs them takes a `Randomness` as a parameter, so a test can pass one with a seed. Do
not use it for secrets: anybody who sees enough of the numbers can predict the next ones.
"""

from __future__ import annotations

import random
import uuid
from typing import Final

from cometmq.forks import in_each_child


class Randomness(random.Random):
    """A source of random numbers. With a `seed` it gives the same numbers in every run."""

    def token_hex(self, size_bytes: int) -> str:
        """Return `size_bytes` random bytes as hex text."""
        return self.randbytes(size_bytes).hex()

    def uuid4(self) -> uuid.UUID:
        """Return a random UUID."""
        return uuid.UUID(bytes=self.randbytes(16), version=4)


class _SystemRandomness(Randomness):
    """Draws other numbers in each process.

    A forked child or the reader of a pickle must not repeat the numbers of its origin, because
    names that are meant to be unique would come twice. So a forked child takes a new seed, and a
    pickle refers to the source of the process that reads it.
    """

    def __reduce__(self) -> str:
        return "SYSTEM_RANDOMNESS"


SYSTEM_RANDOMNESS: Final[Randomness] = _SystemRandomness()
in_each_child(SYSTEM_RANDOMNESS.seed)


def secret_bytes(count: int) -> bytes:
    """Return bytes that nobody can predict, for tokens. They differ in virtual time, too."""
    import secrets  # clients draw none, and it takes 2 ms to import

    return secrets.token_bytes(count)

"""Random numbers, from a source that is passed as a parameter, so that a test can pass a seeded one.

Not for secrets: whoever sees enough of the numbers can foretell the next ones.
"""

from __future__ import annotations

import os
import random
from typing import Final


class Randomness(random.Random):
    """A source of random numbers. With a `seed` it gives the same numbers in every run."""

    def token_hex(self, size_bytes: int) -> str:
        """Return `size_bytes` random bytes as hex text."""
        return self.randbytes(size_bytes).hex()


class _SystemRandomness(Randomness):
    """Draws numbers that no other process draws.

    A fork and a pickle must not continue the sequence of the process that they come from: names
    that are meant to be unique would come twice. So a forked child takes a new seed, and a pickle
    holds a reference to the source of the process that reads it.
    """

    def __reduce__(self) -> str:
        return "SYSTEM_RANDOMNESS"


SYSTEM_RANDOMNESS: Final[Randomness] = _SystemRandomness()
os.register_at_fork(after_in_child=SYSTEM_RANDOMNESS.seed)

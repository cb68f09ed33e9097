"""Choose a queue for a message group so that few groups move when queues are added (Java: Guava's
Hashing.consistentHash, which is the jump consistent hash of Lamping and Veach).
"""

from __future__ import annotations

from typing import Final

from cometmq.model.java.hashing import java_hash

_MULTIPLIER: Final = 2862933555777941757
_MASK: Final = 2**64 - 1


def bucket_of(key: str, buckets: int) -> int:
    """Return a number from 0 to `buckets` - 1."""
    state = java_hash(key) & _MASK
    bucket, following = 0, 0
    while following < buckets:
        bucket = following
        state = (state * _MULTIPLIER + 1) & _MASK
        following = int((bucket + 1) * (2**31 / ((state >> 33) + 1)))
    return bucket

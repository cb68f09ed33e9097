"""How much of what waits the next batch of a stream takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from cometmq.model.queue import MessageQueue

# Places at which sizes are looked up: of one queue, and of all together.
_PLACES_OF_ONE: Final = 8
_PLACES: Final = 64
# Each of them looks closer at what the one before has left over.
_ROUNDS: Final = 6

Counts = dict[MessageQueue, int]


def shared(lags: Counts, limit: int) -> Counts:
    """At most `limit` messages, divided among queues by what waits in each."""
    total = sum(lags.values())
    if total <= limit:
        return lags
    counts = {queue: lag * limit // total for queue, lag in lags.items()}
    rest = limit - sum(counts.values())
    # What rounding left over goes to the longest ones.
    for queue in sorted(lags, key=lambda queue: counts[queue] - lags[queue]):
        if not rest:
            break
        counts[queue] += 1
        rest -= 1
    return counts


def within_bytes(
    lags: Counts, limit_bytes: int, size_at: Callable[[MessageQueue, int], int]
) -> Counts:
    """So many messages, one at least, that they have about `limit_bytes` together.

    `size_at` tells how large messages of a queue are some messages ahead. It is asked at places
    spread over all that is to be taken; so the estimate is as good as sizes are alike in between.
    """
    size_of = cache(size_at)
    counts = lags
    for _ in range(_ROUNDS):
        taken = sum(counts.values())
        total_bytes = _estimated_bytes(counts, size_of)
        if total_bytes <= limit_bytes or taken <= 1:
            break
        counts = shared(counts, max(1, min(taken - 1, int(taken * limit_bytes / total_bytes))))
    return counts


def _estimated_bytes(counts: Mapping[MessageQueue, int], size_of: Callable[..., int]) -> float:
    chosen = {queue: count for queue, count in counts.items() if count}
    most = max(1, min(_PLACES_OF_ONE, _PLACES // max(1, len(chosen))))
    total = 0.0
    for queue, count in chosen.items():
        places = min(most, count)
        sizes = [size_of(queue, count * (2 * at + 1) // (2 * places)) for at in range(places)]
        total += count * sum(sizes) / places
    return total

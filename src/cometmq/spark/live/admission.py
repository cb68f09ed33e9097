"""Decide how many of the waiting messages the next batch of a stream takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from cometmq.model.queue import MessageQueue
from cometmq.runtime.clock import BlockingClock

# At how many offsets the sizes of messages are sampled: in one queue, and in all together.
_PLACES_OF_ONE: Final = 8
_PLACES: Final = 64
# Each round divides the rest of the round before more finely.
_ROUNDS: Final = 6

Counts = dict[MessageQueue, int]


class Least:
    """Makes a batch wait until `min_messages` wait, but no message longer than `max_delay_ms`.

    The delay counts from when the planner first saw a message waiting, so the first message after a
    pause waits for others, too.
    """

    def __init__(self, min_messages: int | None, max_delay_ms: int, clock: BlockingClock) -> None:
        self._min_messages = min_messages or 0
        self._max_delay_s = max_delay_ms / 1000
        self._clock = clock
        self._since_s: float | None = None

    def waits(self, waiting: int) -> bool:
        """Return whether a batch of the `waiting` messages is to be put off."""
        if waiting == 0 or waiting >= self._min_messages:
            self._since_s = None
            return False
        now = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now
        if now - self._since_s < self._max_delay_s:
            return True
        self._since_s = None
        return False


def shared(lags: Counts, limit: int) -> Counts:
    """Divide at most `limit` messages among queues, in proportion to what waits in each."""
    total = sum(lags.values())
    if total <= limit:
        return lags
    counts = {queue: lag * limit // total for queue, lag in lags.items()}
    rest = limit - sum(counts.values())
    # The longest queues get what rounding left over.
    for queue in sorted(lags, key=lambda queue: counts[queue] - lags[queue]):
        if not rest:
            break
        counts[queue] += 1
        rest -= 1
    return counts


def within_bytes(
    lags: Counts, limit_bytes: int, size_at: Callable[[MessageQueue, int], int]
) -> Counts:
    """Return how many messages (at least one) have about `limit_bytes` together.

    `size_at` returns the size of a queue's messages so many messages ahead. It is called for
    offsets spread over everything that is to be taken, so the estimate is good if sizes between
    them are similar.
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

"""Count values by size, cheaply enough for code that every message passes.

The bounds of the buckets are powers of four, so finding a bucket takes one `bit_length`.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 10


class Histogram:
    """Counts values in BUCKETS buckets: up to 2**bits, up to four times as much, and so on; the
    last one has all that are larger. `total` is the sum of the values.
    """

    __slots__ = ("_bits", "counts", "total")

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.counts = [0] * BUCKETS
        self.total = 0

    def add(self, value: int) -> None:
        """Count a value, which is not negative."""
        # A value that is exactly a bound belongs below it.
        place = (value - 1).bit_length() - self._bits + 1 >> 1 if value > 1 else 0
        if place < 0:
            place = 0
        elif place >= BUCKETS:
            place = BUCKETS - 1
        self.counts[place] += 1
        self.total += value


def bounds(bits: int) -> list[int]:
    """Return the upper bounds of all buckets but the last."""
    return [1 << bits + 2 * place for place in range(BUCKETS - 1)]


# Microseconds from 64 µs to 4.2 s, and bytes from 256 B to 16 MiB.
LATENCY_BITS: Final = 6
SIZE_BITS: Final = 8


def latencies() -> Histogram:
    """Return a histogram for microseconds."""
    return Histogram(LATENCY_BITS)


def sizes() -> Histogram:
    """Return a histogram for bytes."""
    return Histogram(SIZE_BITS)

"""Count for a benchmark: latencies in a histogram, and which offsets of a queue came."""

from __future__ import annotations

from typing import Final

_SUB_BITS: Final = 7
_SUB_BUCKETS: Final = 1 << _SUB_BITS
_MAX_NS: Final = (1 << 42) - 1  # 73 minutes


class LatencyHistogram:
    """Counts latencies in buckets less than 1 % wide; below 256 ns each nanosecond has its own.

    The size is constant, so a benchmark may run for ever. A latency above `_MAX_NS` counts as
    `_MAX_NS`.
    """

    __slots__ = ("_buckets", "count", "max_ns", "total_ns")

    def __init__(self) -> None:
        self._buckets = [0] * (_bucket(_MAX_NS) + 1)
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def record(self, nanoseconds: int) -> None:
        ns = nanoseconds
        if not 0 <= ns <= _MAX_NS:
            ns = 0 if ns < 0 else _MAX_NS
        self._buckets[_bucket(ns)] += 1
        self.count += 1
        self.total_ns += ns
        self.max_ns = max(self.max_ns, ns)

    def add(self, other: LatencyHistogram) -> None:
        self._buckets = [a + b for a, b in zip(self._buckets, other._buckets, strict=True)]
        self.count += other.count
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    @property
    def mean_ms(self) -> float:
        return self.total_ns / self.count / 1e6 if self.count else 0.0

    @property
    def max_ms(self) -> float:
        return self.max_ns / 1e6

    def percentile_ms(self, percent: float) -> float:
        """Return the ms that `percent` of the values do not exceed, at most 1 % too high."""
        wanted = max(1, round(self.count * percent / 100))
        passed = 0
        for index, count in enumerate(self._buckets):
            passed += count
            if passed >= wanted:
                return min(_highest(index), self.max_ns) / 1e6
        return 0.0

    def summary_ms(self) -> dict[str, float]:
        """Return mean, percentiles and maximum in ms, under the names of the JSON output."""
        return {
            "mean": round(self.mean_ms, 3),
            "p50": round(self.percentile_ms(50), 3),
            "p90": round(self.percentile_ms(90), 3),
            "p99": round(self.percentile_ms(99), 3),
            "p999": round(self.percentile_ms(99.9), 3),
            "max": round(self.max_ms, 3),
        }


def _bucket(ns: int) -> int:
    if ns < 2 * _SUB_BUCKETS:
        return ns
    shift = ns.bit_length() - _SUB_BITS - 1
    return (shift << _SUB_BITS) + (ns >> shift)


def _highest(bucket: int) -> int:
    """Return the largest value that falls into `bucket`."""
    if bucket < 2 * _SUB_BUCKETS:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return (bucket - (shift << _SUB_BITS) + 1 << shift) - 1


class OffsetSet:
    """The offsets of one queue that came, with a bit for each.

    Offsets come almost in order, and sometimes twice.
    """

    __slots__ = ("_base", "_bits", "count", "lowest")

    def __init__(self, first: int) -> None:
        self._base = first & ~7
        self._bits = bytearray(1024)
        self.lowest = first
        self.count = 0

    def add(self, offset: int) -> bool:
        """Add an offset; return False if it came before."""
        if offset < self.lowest:
            self._extend_down(offset)
        index, bit = divmod(offset - self._base, 8)
        if index >= len(self._bits):
            self._bits += bytes(max(len(self._bits), index + 1 - len(self._bits)))
        mask = 1 << bit
        if self._bits[index] & mask:
            return False
        self._bits[index] |= mask
        self.count += 1
        return True

    def count_between(self, begin: int, end: int) -> int:
        """Return how many offsets came, from `begin` on and below `end`."""
        return sum(
            self._bits[(offset - self._base) >> 3] >> (offset & 7) & 1
            for offset in range(max(begin, self._base), min(end, self._base + 8 * len(self._bits)))
        )

    def _extend_down(self, offset: int) -> None:
        base = offset & ~7
        if base < self._base:
            self._bits = bytearray((self._base - base) >> 3) + self._bits
            self._base = base
        self.lowest = offset

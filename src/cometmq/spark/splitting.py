"""Divide a range of offsets into parts for Spark's tasks."""

from __future__ import annotations

from itertools import pairwise


def split(start: int, end: int, total: int, min_partitions: int) -> list[tuple[int, int]]:
    """Divide a range, which is one of several, into ranges that are not empty.

    `total` is the number of offsets in all ranges together. The parts of all ranges are about
    equally long, and there are at least `min_partitions` of them if there are as many offsets.
    """
    size = end - start
    count = min(size, max(1, -(-size * min_partitions // total))) if size > 0 else 0
    bounds = [start + size * at // count for at in range(count + 1)] if count else []
    return list(pairwise(bounds))

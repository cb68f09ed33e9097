"""Cutting a range of offsets into parts for Spark's tasks."""

from __future__ import annotations

from itertools import pairwise


def split(start: int, end: int, total: int, min_partitions: int) -> list[tuple[int, int]]:
    """Ranges, none of them empty, that make up the one given, which is one of several.

    They come out about equally long for all of them, and `min_partitions` at least, where all
    together hold `total` offsets and that many are there.
    """
    size = end - start
    count = min(size, max(1, -(-size * min_partitions // total))) if size > 0 else 0
    bounds = [start + size * at // count for at in range(count + 1)] if count else []
    return list(pairwise(bounds))

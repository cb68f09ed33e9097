"""Divide ranges of offsets into parts for Spark's tasks, and give small ones to a task together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from pyspark.sql.datasource import InputPartition

# With more ranges than this, small ones are given to a task together: a task costs some 80 ms of
# processor time before its first row.
MANY: Final = 256
# A task of several ranges has no more messages than this, which take about as long as its start.
FEW_MESSAGES: Final = 20_000


class Range(Protocol):
    """A range of offsets, from `start` to below `end`."""

    start: int
    end: int


R = TypeVar("R", bound=Range)


@dataclass
class Several(InputPartition):
    """Several ranges that one task reads, one after the other."""

    parts: list[Any]


def split(
    start: int, end: int, total: int, min_partitions: int, most: int | None = None
) -> list[tuple[int, int]]:
    """Divide a range, which is one of several, into ranges that are not empty.

    `total` is the number of offsets in all ranges together. The parts of all ranges are about
    equally long, and there are at least `min_partitions` of them if there are as many offsets.
    None has more than `most`.
    """
    size = end - start
    count = min(size, max(1, -(-size * min_partitions // total))) if size > 0 else 0
    if most is not None:
        count = max(count, -(-size // most))
    bounds = [start + size * at // count for at in range(count + 1)] if count else []
    return list(pairwise(bounds))


def grouped(ranges: Sequence[R], min_partitions: int, most: int | None = None) -> list[R | Several]:
    """Put neighbours of many small ranges together, in their order.

    Several ranges have no more than FEW_MESSAGES and `most` messages together, nor more than an even
    share of MANY tasks. There remain `min_partitions` if there were as many.
    """
    tasks = max(MANY, min_partitions)
    if len(ranges) <= tasks:
        return list(ranges)
    total = sum(part.end - part.start for part in ranges)
    limit = min(FEW_MESSAGES, total // tasks, FEW_MESSAGES if most is None else most)
    groups: list[list[R]] = []
    size = 0
    for part in ranges:
        size += part.end - part.start
        if not groups or size > limit:
            groups.append([])
            size = part.end - part.start
        groups[-1].append(part)
    if len(groups) < min_partitions:
        return list(ranges)
    return [group[0] if len(group) == 1 else Several(group) for group in groups]


def parts_of(partition: InputPartition) -> list[Any]:
    """Return the ranges of a task, in their order."""
    return partition.parts if isinstance(partition, Several) else [partition]

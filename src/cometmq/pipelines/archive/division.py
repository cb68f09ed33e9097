"""Divide the ranges to archive among readings, and the files to compact among bins. Needs no
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import DataFile

# One reading takes the place of two if it goes through this part of all offsets more at most.
_SPARE_SHARE: Final = 8
_NEIGHBOURS: Final = 128

Range = tuple[int, int]
Ranges = Mapping[MessageQueue, Range]


def readings(ranges: Ranges, most: int) -> list[dict[MessageQueue, Range]]:
    """Divide ranges among at most `most` readings, so that they read few other offsets.

    A reading takes in, for each of its queues, everything between its lowest and its highest offset.
    """
    ordered = sorted(ranges.items(), key=lambda item: (item[1], item[0]))
    groups: list[dict[MessageQueue, Range]] = []
    for queue, bounds in ordered:
        if groups and bounds == next(reversed(groups[-1].values())):
            groups[-1][queue] = bounds
        else:
            groups.append({queue: bounds})
    # Comparing all neighbours takes long where queues are many.
    joined = -(-len(groups) // _NEIGHBOURS)
    if joined > 1:
        groups = [reduce(or_, groups[at : at + joined]) for at in range(0, len(groups), joined)]
    wanted = sum(end - start for start, end in ranges.values())
    spare = wanted // _SPARE_SHARE
    while len(groups) > 1:
        costs = [
            _extent(one | other) - _extent(one) - _extent(other) for one, other in pairwise(groups)
        ]
        at = costs.index(min(costs))
        if len(groups) <= most and costs[at] > spare:
            break
        spare -= costs[at]
        groups[at : at + 2] = [groups[at] | groups[at + 1]]
    return groups


def _extent(ranges: Ranges) -> int:
    """Return how many offsets a reading of these ranges goes through."""
    low = min(start for start, _ in ranges.values())
    return len(ranges) * (max(end for _, end in ranges.values()) - low)


def packed(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Divide the files, in their order, into the fewest bins for which `target_bytes` would do, all of
    about the same size. So no bin is left with a remainder that is small again.
    """
    rest = list(files)
    left = sum(file.bytes for file in rest)
    count = max(1, -(-left // target_bytes))
    bins: list[list[DataFile]] = [[]]
    room = left / count
    for file in rest:
        # A file goes where the larger part of it fits.
        if bins[-1] and room < file.bytes / 2 and len(bins) < count:
            left -= sum(one.bytes for one in bins[-1])
            room = left / (count - len(bins))
            bins.append([])
        bins[-1].append(file)
        room -= file.bytes
    return bins

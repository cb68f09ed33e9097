"""Consume queues as the store source finds them on disk, and how it splits them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.spark.pushdown import Bounds
from cometmq.spark.splitting import split
from cometmq.spark.store_plan import queue_ranges
from cometmq.store.reading.files import QueueFiles
from cometmq.store.reading.units import UNIT_DTYPE

PLACEHOLDER = (0, 2**31 - 1, 0)


def written(
    directory: Path, units: list[tuple[int, int, int]], first: int, per_file: int
) -> QueueFiles:
    """A queue whose first unit has the offset `first`, a multiple of `per_file`."""
    whole = np.zeros(-(-max(len(units), 1) // per_file) * per_file, UNIT_DTYPE)
    for at, unit in enumerate(units):
        whole[at] = unit
    paths = []
    for at in range(0, len(whole), per_file):
        path = directory / f"{(first + at) * UNIT_DTYPE.itemsize:020d}"
        whole[at : at + per_file].tofile(path)
        paths.append(str(path))
    return QueueFiles("t", 0, tuple(paths))


@settings(max_examples=100, deadline=None)
@given(
    placeholders=st.integers(0, 7),
    count=st.integers(0, 25),
    expired=st.integers(0, 25),
    per_file=st.integers(1, 10),
    first_file=st.integers(0, 3),
    min_partitions=st.integers(1, 40),
    data=st.data(),
)
def test_a_queue_is_what_its_files_say(
    placeholders: int,
    count: int,
    expired: int,
    per_file: int,
    first_file: int,
    min_partitions: int,
    data: st.DataObject,
) -> None:
    units = [PLACEHOLDER] * placeholders + [(1000 + at * 100, 100, at) for at in range(count)]
    first = first_file * per_file
    log_base = 1000 + expired * 100
    begin = first + placeholders + min(expired, count)
    end = first + len(units)
    with tempfile.TemporaryDirectory() as directory:
        queue = written(Path(directory), units, first, per_file)
        low, high = queue.bounds(log_base)
        if expired < count:
            assert (low, high) == (begin, end)
        else:
            assert low == high
        start = data.draw(st.integers(0, end + 5))
        stop = data.draw(st.integers(start, end + 20))
        found = queue.units(start, stop)
        assert len(found) == stop - start
        for at, unit in enumerate(found.tolist(), start):
            wanted = units[at - first] if first <= at < end else (0, 0, 0)
            assert unit == wanted
        ranges = queue_ranges([queue], log_base, Bounds(), min_partitions)
        covered = [at for part in ranges for at in range(part.start, part.end)]
        assert covered == (list(range(begin, end)) if expired < count else [])
        assert len(ranges) >= min(min_partitions, len(covered))
        assert set(queue.some_offsets().tolist()) <= {offset for offset, *_ in units}


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=10), st.integers(1, 100))
def test_ranges_are_cut_without_loss(sizes: list[int], min_partitions: int) -> None:
    total = sum(sizes)
    parts = [split(0, size, total, min_partitions) for size in sizes]
    for size, cut in zip(sizes, parts, strict=True):
        assert [at for low, high in cut for at in range(low, high)] == list(range(size))
        assert all(low < high for low, high in cut)
    assert sum(map(len, parts)) >= min(min_partitions, total)

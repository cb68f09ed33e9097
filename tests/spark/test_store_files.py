"""Consume queues as the store source finds them on disk, and how it splits them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples

from cometmq.spark.ranges.pushdown import Bounds
from cometmq.spark.ranges.splitting import FEW_MESSAGES, MANY, Several, grouped, parts_of, split
from cometmq.spark.stores.plan import QueueRange, queue_ranges
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


@settings(max_examples=examples(100), deadline=None)
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
        covered = [
            at for group in ranges for part in parts_of(group) for at in range(part.start, part.end)
        ]
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


def test_a_queue_of_holes_and_several_pieces(tmp_path: Path) -> None:
    """Units that lie on both sides of the bounds of pieces, with pages between them never written."""
    count = 400_000
    path = tmp_path / ("0" * 20)
    places = [3, 204, 65_535, 65_536, 131_071, 250_000, 250_001]
    with path.open("wb") as file:
        file.truncate(count * UNIT_DTYPE.itemsize + 7)
        for at in places:
            file.seek(at * UNIT_DTYPE.itemsize)
            file.write(np.array([(1000 + at, 100, 0)], UNIT_DTYPE).tobytes())
    queue = QueueFiles("t", 0, (str(path),))
    assert queue.bounds(0) == (3, 250_002)
    assert queue.bounds(1000 + 204) == (204, 250_002)
    assert queue.bounds(1000 + 65_536) == (65_536, 250_002)
    assert queue.bounds(10**9) == (250_002, 250_002)
    assert queue.some_offsets().tolist() == [1000 + at for at in places]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=900), st.integers(1, 400))
def test_small_ranges_are_put_together_in_order(sizes: list[int], min_partitions: int) -> None:
    queue = QueueFiles("t", 0, ())
    ranges = [QueueRange(queue, at, at + size) for at, size in enumerate(sizes)]
    groups = grouped(ranges, min_partitions)
    assert [part for group in groups for part in parts_of(group)] == ranges
    assert len(groups) >= min(len(ranges), min_partitions)
    shared = [
        sum(part.end - part.start for part in group.parts)
        for group in groups
        if isinstance(group, Several)
    ]
    assert max(shared, default=0) <= sum(sizes) / max(MANY, min_partitions)


def test_a_task_of_several_ranges_has_few_messages() -> None:
    queue = QueueFiles("t", 0, ())
    ranges = [QueueRange(queue, 0, size) for size in [1, 2, 3] * 200 + [10**6] * 200]
    sizes = [sum(part.end - part.start for part in parts_of(group)) for group in grouped(ranges, 1)]
    assert sizes == [1200, *[10**6] * 200]
    many = [QueueRange(queue, 0, FEW_MESSAGES // 2)] * 1000
    assert [len(parts_of(group)) for group in grouped(many, 1)] == [2] * 500
    assert [len(parts_of(group)) for group in grouped(many, 1, most=5000)] == [1] * 1000

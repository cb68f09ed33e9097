"""How an archive divides what it reads and what it compacts, without Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.division import packed, readings
from cometmq.pipelines.archive.layout import DataFile

RANGES = st.dictionaries(
    st.integers(0, 5000).map(lambda at: MessageQueue("orders", "broker-a", at)),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda one: (min(one), max(one) + 1)),
    min_size=1,
    max_size=40,
)


@given(RANGES)
def test_each_range_is_in_one_reading(ranges: dict[MessageQueue, tuple[int, int]]) -> None:
    found = readings(ranges, 8)
    assert len(found) <= 8
    assert sum(map(len, found)) == len(ranges)
    assert {queue: one for reading in found for queue, one in reading.items()} == ranges


def test_a_long_queue_is_not_read_from_where_a_short_one_begins() -> None:
    long, *short = (MessageQueue("orders", "broker-a", at) for at in range(30))
    ranges = {long: (4_000_000, 5_000_000)} | {
        queue: (at, at + 10) for at, queue in enumerate(short)
    }
    found = readings(ranges, 8)
    assert {long: (4_000_000, 5_000_000)} in found


def test_ten_thousand_queues_are_divided_at_once() -> None:
    ranges = {
        MessageQueue("orders", "broker-a", at): (at, at + 1000 + at % 7) for at in range(10_000)
    }
    assert len(readings(ranges, 8)) == 8


@given(st.lists(st.integers(1, 63), min_size=1, max_size=60))
def test_files_are_packed_evenly_and_in_order(sizes: list[int]) -> None:
    files = [DataFile(f"{at:04d}", size, 1) for at, size in enumerate(sizes)]
    bins = packed(files, 128)
    assert [file for one in bins for file in one] == files
    assert len(bins) <= -(-sum(sizes) // 128)
    weights = [sum(file.bytes for file in one) for one in bins]
    assert max(weights) <= 128 + 64
    # No file as large as a small one is left over where several are made.
    assert len(bins) == 1 or min(weights) > 0


def test_no_remainder_is_left_that_is_small_again() -> None:
    files = [DataFile(f"{at}", 10, 1) for at in range(27)]
    weights = [sum(file.bytes for file in one) for one in packed(files, 128)]
    assert len(weights) == 3
    assert min(weights) >= 80

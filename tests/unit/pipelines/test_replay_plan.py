"""A replay's chunks, lanes and rates."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.replay.plan import (
    Chunk,
    Found,
    Origin,
    cut_chunks,
    share_lanes,
    target_of,
)
from cometmq.pipelines.resending.pacing import share_rate

A0, A1 = Origin("orders", "broker-a", 0), Origin("orders", "broker-a", 1)


def found(origin: Origin, hour: int, first: int, last: int, key: int | None = None) -> Found:
    count = last - first + 1
    return Found(origin, f"2026-11-20T{hour:02}", key, count + 3, count, first, last)


def places(chunk: Chunk, origins: list[Origin]) -> dict[Origin, range]:
    return {origins[span.origin]: range(span.after + 1, span.last + 1) for span in chunk.spans}


def test_hours_go_together_until_they_are_enough() -> None:
    rows = [found(A0, hour, hour * 10, hour * 10 + 9) for hour in range(6)]
    chunks = cut_chunks(rows, {A0: 2}, 30)
    assert [places(chunk, [A0])[A0] for chunk in chunks] == [range(30), range(30, 60)]
    assert [chunk.counts for chunk in chunks] == [{2: 30}, {2: 30}]
    assert chunks[0].hours == ("2026-11-20T00", "2026-11-20T02")


def test_a_large_hour_is_cut_in_all_queues_alike() -> None:
    rows = [found(A0, 3, 0, 99), found(A1, 3, 1000, 1299)]
    chunks = cut_chunks(rows, {A0: 0, A1: 1}, 100)
    assert len(chunks) == 4
    assert [len(places(chunk, [A0, A1])[A0]) for chunk in chunks] == [25, 25, 25, 25]
    assert [chunk.count for chunk in chunks] == [100, 100, 100, 100]
    assert sum(Counter(chunk.counts)[1] for chunk in chunks) == 300


def test_a_clock_that_was_set_back_does_not_turn_a_queue_around() -> None:
    # Offsets 50..59 were stored in an hour that lies before that of 0..49.
    rows = [found(A0, 9, 0, 49), found(A0, 8, 50, 59), found(A0, 10, 60, 80)]
    chunks = cut_chunks(rows, {A0: 0}, 10)
    covered = [offset for chunk in chunks for offset in places(chunk, [A0]).get(A0, ())]
    assert covered == sorted(covered)
    assert set(range(81)) <= set(covered)
    for chunk in chunks:
        # Whoever looks for its rows within these hours finds all of them.
        wanted = places(chunk, [A0]).get(A0, range(0))
        for row in rows:
            if set(wanted) & set(range(row.first, row.last + 1)):
                assert chunk.hours[0] <= row.hour <= chunk.hours[1]


def test_sharding_keys_count_for_the_targets_that_they_choose() -> None:
    rows = [found(A0, 1, 0, 9), found(A0, 1, 10, 14, key=3)]
    (chunk,) = cut_chunks(rows, {A0: 0}, 1000)
    assert chunk.counts == {0: 10, 3: 5}
    assert places(chunk, [A0])[A0] == range(15)


def test_nothing_chosen_makes_no_chunk() -> None:
    assert cut_chunks([Found(A0, "2026-11-20T01", None, 10, 0, -1, -1)], {}, 10) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 23), st.integers(0, 500), st.integers(0, 60)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 200),
)
def test_every_offset_is_in_one_chunk_and_in_order(
    given_rows: list[tuple[int, int, int, int]], most: int
) -> None:
    origins = [Origin("t", "b", queue) for queue in range(4)]
    rows = [
        found(origins[queue], hour, first, first + length)
        for queue, hour, first, length in given_rows
    ]
    present = sorted({row.origin for row in rows})
    chunks = cut_chunks(rows, dict.fromkeys(present, 0), most)
    for origin in present:
        covered = [offset for chunk in chunks for offset in places(chunk, present).get(origin, ())]
        assert covered == sorted(set(covered))
        for row in rows:
            if row.origin == origin:
                assert set(range(row.first, row.last + 1)) <= set(covered)
    for chunk in chunks:
        by_origin = places(chunk, present)
        for row in rows:
            part = by_origin.get(row.origin, range(0))
            if part and row.first < part.stop and row.last >= part.start:
                assert chunk.hours[0] <= row.hour <= chunk.hours[1]


def test_a_queue_goes_to_its_namesake_or_by_its_place() -> None:
    targets = [MessageQueue("copy", "broker-a", 0), MessageQueue("copy", "broker-a", 1)]
    targets += [MessageQueue("other", "broker-a", 0)]
    assert target_of(A1, 7, targets, "copy") == 1
    elsewhere = Origin("orders", "broker-z", 5)
    assert [target_of(elsewhere, place, targets, "copy") for place in range(4)] == [0, 1, 0, 1]
    assert target_of(elsewhere, 3, targets, "other") == 2


@given(st.dictionaries(st.integers(0, 40), st.integers(1, 10**6), min_size=1), st.integers(1, 8))
def test_lanes_share_targets_and_rates_without_loss(counts: dict[int, int], most: int) -> None:
    lanes = share_lanes(counts, most)
    assert sorted(target for lane in lanes for target in lane) == sorted(counts)
    assert len(lanes) <= most
    assert all(lanes)
    rates = share_rate(1000.0, lanes, counts)
    assert sum(rate or 0 for rate in rates) == pytest.approx(1000.0)
    # All of them are done at the same time.
    total = sum(counts.values())
    for lane, rate in zip(lanes, rates, strict=True):
        assert rate is not None
        assert sum(counts[target] for target in lane) / rate == pytest.approx(total / 1000.0)
    assert share_rate(None, lanes, counts) == [None] * len(lanes)

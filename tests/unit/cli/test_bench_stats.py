"""The benchmark's histogram and offset set, compared with the plain structures that they
replace.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.bench.stats import LatencyHistogram, OffsetSet

NANOSECONDS = st.lists(st.integers(0, 2**42 - 1), min_size=1)
PERCENTS = st.sampled_from([50, 90, 99, 99.9, 100])


def recorded(values: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(NANOSECONDS, PERCENTS)
def test_a_percentile_is_at_most_one_percent_above_the_exact_one(
    values: list[int], percent: float
) -> None:
    rank = max(1, round(len(values) * percent / 100))
    exact_ms = sorted(values)[rank - 1] / 1e6
    found_ms = recorded(values).percentile_ms(percent)
    assert exact_ms <= found_ms <= exact_ms * 1.01


@given(NANOSECONDS, NANOSECONDS)
def test_adding_histograms_is_recording_both(first: list[int], second: list[int]) -> None:
    total = recorded(first)
    total.add(recorded(second))
    both = recorded(first + second)
    assert total.summary_ms() == both.summary_ms()
    assert total.count == len(first) + len(second)
    assert total.max_ns == max(first + second)
    assert total.mean_ms == pytest.approx(sum(first + second) / total.count / 1e6)


def test_an_empty_histogram_and_values_out_of_range() -> None:
    assert set(LatencyHistogram().summary_ms().values()) == {0.0}
    assert recorded([-5]).max_ns == 0  # two machines' clocks
    assert recorded([2**60]).max_ns == 2**42 - 1


@given(st.lists(st.integers(0, 20_000), min_size=1), st.integers(0, 20_000), st.integers(0, 20_000))
def test_an_offset_set_is_a_set(offsets: list[int], begin: int, end: int) -> None:
    found = OffsetSet(offsets[0])
    expected: set[int] = set()
    for offset in offsets:
        assert found.add(offset) == (offset not in expected)
        expected.add(offset)
    assert found.count == len(expected)
    assert found.lowest == min(expected)
    assert found.count_between(begin, end) == sum(begin <= offset < end for offset in expected)


def test_an_offset_set_may_begin_far_up() -> None:
    found = OffsetSet(10**12)
    assert found.add(10**12)
    assert found.add(10**12 + 100_000)
    assert not found.add(10**12)
    assert found.count_between(0, 2 * 10**12) == 2

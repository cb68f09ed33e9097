"""Buckets of histograms."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.measures.histogram import BUCKETS, LATENCY_BITS, SIZE_BITS, Histogram, bounds


@given(st.integers(0, 2**40), st.sampled_from([LATENCY_BITS, SIZE_BITS]))
def test_a_value_is_counted_below_the_first_bound_that_it_does_not_exceed(
    value: int, bits: int
) -> None:
    histogram = Histogram(bits)
    histogram.add(value)
    expected = [0] * BUCKETS
    expected[bisect_left(bounds(bits), value)] = 1
    assert histogram.counts == expected
    assert histogram.total == value


def test_a_bound_itself_belongs_below_it() -> None:
    histogram = Histogram(LATENCY_BITS)
    for bound in bounds(LATENCY_BITS):
        histogram.add(bound)
        histogram.add(bound + 1)
    assert histogram.counts == [1] + [2] * (BUCKETS - 2) + [1]

"""Bars of a figure: few enough to be seen, and no message is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.pipelines.resending.timeline import Bar, fold


def test_a_minute_is_shown_by_seconds_and_a_year_by_weeks() -> None:
    assert fold([Bar(second, "a", 1) for second in range(60)], 1).width_s == 1
    assert fold([Bar(second, "a", 1) for second in range(61)], 1).width_s == 2
    hours = [Bar(hour * 3600, "a", 1) for hour in range(365 * 24)]
    assert fold(hours, 3600).width_s == 7 * 24 * 3600
    assert fold([], 1).bars == []


@given(
    st.lists(
        st.builds(Bar, st.integers(0, 2**33), st.sampled_from("abc"), st.integers(1, 1000)),
        min_size=1,
        max_size=50,
    )
)
def test_bars_keep_the_counts_of_each_kind(bars: list[Bar]) -> None:
    folded = fold(bars, 1)
    for kind in "abc":
        before = sum(bar.count for bar in bars if bar.kind == kind)
        assert sum(bar.count for bar in folded.bars if bar.kind == kind) == before
    begins = {bar.begin_s for bar in folded.bars}
    assert all(begin % folded.width_s == 0 for begin in begins)
    assert (max(begins) - min(begins)) // folded.width_s < 60

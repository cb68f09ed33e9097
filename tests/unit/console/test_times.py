"""Times that people type are read as they are meant, or refused with what to give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.console.views.rendering import moment
from cometmq.console.views.times import time_ms
from cometmq.errors import IllegalArgumentError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW_MS),
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("90s", NOW_MS - 90_000),
        ("15m", NOW_MS - 900_000),
        ("15 min", NOW_MS - 900_000),
        ("2h", NOW_MS - 7_200_000),
        ("3d", NOW_MS - 259_200_000),
        ("999999d", 0),
        ("2026-11-23", 1_795_392_000_000),
        ("2026-11-23 14:30", 1_795_444_200_000),
        (" 2026-11-23T14:30:00Z ", 1_795_444_200_000),
        ("2026-11-23 22:30:00+08:00", 1_795_444_200_000),
    ],
)
def test_a_time_is_read(text: str, ms: int) -> None:
    assert time_ms(text, NOW_MS) == ms


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "²", "1_000", "9" * 60, "1969-01-01", "2026-13-01", "2 weeks", "٣d"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="is no time; give a date"):
        time_ms(text, NOW_MS)


@given(st.text(max_size=80))
def test_any_text_is_a_time_or_is_refused(text: str) -> None:
    try:
        ms = time_ms(text, NOW_MS)
    except IllegalArgumentError:
        return
    assert 0 <= ms < 2**63
    assert moment(ms)

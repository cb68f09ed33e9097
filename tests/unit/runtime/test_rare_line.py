"""One line stands for all refusals within ten seconds."""

from __future__ import annotations

from cometmq.logs.rare_line import RareLine


def test_the_first_event_is_logged_and_the_next_line_counts_those_since() -> None:
    line = RareLine(10.0)
    assert [line.count(at_s) for at_s in (0.0, 1.0, 9.9, 10.0, 10.1, 30.0)] == [1, 0, 0, 3, 0, 2]

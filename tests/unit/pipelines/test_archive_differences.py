"""Lists of differences between log and archive."""

from __future__ import annotations

import pytest

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import Hour
from cometmq.pipelines.archive.proving import differences


def test_differences_that_are_not_listed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "_MOST", 3)
    queue = MessageQueue("orders", "broker-a", 2)
    rows = [("messages missing", None, None, offset) for offset in (4, 5, 9, 11)]
    more, *listed = differences.problems_of(Hour("orders", "2026-11-20T16"), queue, rows)
    assert more.kind == "more differences"
    assert "from offset 11 on" in more.detail
    assert [(one.first, one.last) for one in listed] == [(4, 5), (9, 9)]

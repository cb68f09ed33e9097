from __future__ import annotations

from typing import Any

import pytest
import structlog

from cometmq.logs.limits import INTERVAL_S, PER_KIND, PER_PEER, LineLimiter


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def admitted(limiter: LineLimiter, count: int, **event: Any) -> int:
    passed = 0
    for _ in range(count):
        try:
            limiter(None, "warning", dict(event))
        except structlog.DropEvent:
            continue
        passed += 1
    return passed


def test_one_peer_has_its_share_and_others_have_theirs() -> None:
    limiter = LineLimiter()
    # Its port changes with each connection that it makes.
    assert sum(admitted(limiter, 1, event="e", peer=f"10.0.0.1:{p}") for p in range(99)) == PER_PEER
    assert admitted(limiter, 5, event="e", peer="10.0.0.2:1") == 5
    assert admitted(limiter, 5, event="other", peer="10.0.0.1:1") == 5


def test_many_peers_together_have_the_share_of_their_kind() -> None:
    limiter = LineLimiter()
    passed = sum(admitted(limiter, 1, event="e", peer=f"10.0.{p}.1:1") for p in range(5000))
    assert passed == PER_KIND
    (summary,) = limiter.summaries(at_once=True)
    assert (summary["kind"], summary["left_out"], summary["peers"]) == ("e", 5000 - PER_KIND, 200)


def test_what_was_left_out_is_told_once_at_the_end_of_the_interval() -> None:
    time = Time()
    limiter = LineLimiter(time)
    admitted(limiter, 50, event="e", peer="10.0.0.1:1")
    admitted(limiter, 20, event="e", peer="10.0.0.2:1")
    admitted(limiter, 3, event="rare")
    assert limiter.summaries() == []
    time.now += INTERVAL_S
    assert limiter.summaries() == [
        {
            "event": "left out lines of the same kind",
            "kind": "e",
            "left_out": 70 - 2 * PER_PEER,
            "within_s": INTERVAL_S,
            "peers": 2,
            "most_from": "10.0.0.1",
            "of_it": 50,
        }
    ]
    time.now += INTERVAL_S
    assert limiter.summaries() == []
    assert admitted(limiter, 50, event="e", peer="10.0.0.1:1") == PER_PEER


@pytest.mark.parametrize("key", ["event", "logger"])
def test_endlessly_many_kinds_take_bounded_memory(key: str) -> None:
    limiter = LineLimiter()
    passed = sum(admitted(limiter, 1, **{"event": "e", key: f"kind {i}"}) for i in range(5000))
    assert passed == 1000 + PER_KIND

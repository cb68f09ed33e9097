"""Servers that are away for a moment are waited for, by the clock that is passed."""

from __future__ import annotations

import pytest

from cometmq.errors import ConnectError, IllegalArgumentError
from cometmq.spark.patience import patiently


class WaitingClock:
    """Goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_server_that_stays_away_is_given_up_when_patience_is_over() -> None:
    clock, asked_at = WaitingClock(), []

    def ask() -> None:
        asked_at.append(clock.now_s)
        raise ConnectError("away", address="127.0.0.1:9876")

    with pytest.raises(ConnectError, match="away"):
        patiently(ask, 3600.0, clock)
    assert asked_at[-1] == 3600.0
    assert len(asked_at) == 7201


def test_a_server_that_comes_back_gives_the_answer() -> None:
    clock = WaitingClock()

    def ask() -> float:
        if clock.now_s < 600:
            raise ConnectError("away", address="127.0.0.1:9876")
        return clock.now_s

    assert patiently(ask, 3600.0, clock) == 600.0


def test_what_does_not_pass_is_not_waited_for() -> None:
    clock = WaitingClock()

    def ask() -> None:
        raise IllegalArgumentError("no such option")

    with pytest.raises(IllegalArgumentError):
        patiently(ask, 3600.0, clock)
    assert clock.now_s == 0.0

"""Rates over the last minute, failures over the last hour."""

from __future__ import annotations

import pytest

from cometmq.client.consuming.consume_stats import SAMPLE_INTERVAL_S, ConsumeStats
from cometmq.protocol.bodies.consumers import ConsumeStatus


class Box:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.stats = ConsumeStats(lambda: self.now_s)

    def run(self, seconds: float, ok: int, failed: int) -> None:
        """Consume so many messages in the time of every sample."""
        for _ in range(int(seconds / SAMPLE_INTERVAL_S)):
            self.stats.consumed("t", ok, failed, 0.004)
            self.stats.pulled("t", ok + failed, 0.002)
            self.now_s += SAMPLE_INTERVAL_S
            self.stats.sample()


@pytest.fixture
def box() -> Box:
    return Box()


def test_an_unknown_topic_has_no_rates(box: Box) -> None:
    assert box.stats.status("t") == ConsumeStatus()


def test_rates_are_those_of_the_last_minute(box: Box) -> None:
    box.run(600, 1000, 0)
    box.run(60, 20, 10)
    status = box.stats.status("t")
    # The oldest sample that counts lies between 50 and 60 seconds back.
    assert status.consume_ok_tps == pytest.approx(2.0)
    assert status.consume_failed_tps == pytest.approx(1.0)
    assert status.pull_tps == pytest.approx(3.0)
    assert status.consume_rt == pytest.approx(4.0)
    assert status.pull_rt == pytest.approx(2.0)


def test_failures_are_counted_for_an_hour(box: Box) -> None:
    box.run(100, 0, 7)
    assert box.stats.status("t").consume_failed_msgs == 70
    box.run(4000, 1, 0)
    assert box.stats.status("t").consume_failed_msgs == 0

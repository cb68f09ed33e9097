"""Measure how fast a consumer is, for tools that ask through the broker (Java:
ConsumerStatsManager).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from cometmq.protocol.bodies.consumers import ConsumeStatus
from cometmq.runtime.clock import SYSTEM_CLOCK

SAMPLE_INTERVAL_S: Final = 10.0
_MINUTE: Final = 6
_HOUR: Final = 360


@dataclass(slots=True)
class _Totals:
    ok: int = 0
    failed: int = 0
    calls: int = 0
    consume_ms: float = 0.0
    pulled: int = 0
    pulls: int = 0
    pull_ms: float = 0.0


class ConsumeStats:
    """Keeps totals by topic, and samples them every SAMPLE_INTERVAL_S. For the loop's thread."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self._clock = clock
        self._topics: dict[str, _Totals] = {}
        self._samples: dict[str, deque[tuple[float, _Totals]]] = {}

    def consumed(self, topic: str, ok: int, failed: int, seconds: float, calls: int = 1) -> None:
        """Count messages of `calls` calls of the listener, which took `seconds` together."""
        totals = self._of(topic)
        totals.ok += ok
        totals.failed += failed
        totals.calls += calls
        totals.consume_ms += seconds * 1000

    def pulled(self, topic: str, messages: int, seconds: float) -> None:
        totals = self._of(topic)
        totals.pulled += messages
        totals.pulls += 1
        totals.pull_ms += seconds * 1000

    def sample(self) -> None:
        """Take a sample of the totals. Call this every SAMPLE_INTERVAL_S."""
        now = self._clock()
        for topic, totals in self._topics.items():
            self._samples[topic].append((now, replace(totals)))

    def status(self, topic: str) -> ConsumeStatus:
        totals = self._topics.get(topic)
        if totals is None:
            return ConsumeStatus()
        samples = self._samples[topic]
        then, before = samples[max(0, len(samples) - _MINUTE)]
        elapsed_s = max(self._clock() - then, 1.0)
        calls, pulls = totals.calls - before.calls, totals.pulls - before.pulls
        return ConsumeStatus(
            consume_failed_msgs=totals.failed - samples[0][1].failed,
            consume_failed_tps=(totals.failed - before.failed) / elapsed_s,
            consume_ok_tps=(totals.ok - before.ok) / elapsed_s,
            consume_rt=(totals.consume_ms - before.consume_ms) / calls if calls else 0.0,
            pull_rt=(totals.pull_ms - before.pull_ms) / pulls if pulls else 0.0,
            pull_tps=(totals.pulled - before.pulled) / elapsed_s,
        )

    def _of(self, topic: str) -> _Totals:
        totals = self._topics.get(topic)
        if totals is None:
            totals = self._topics[topic] = _Totals()
            self._samples[topic] = deque([(self._clock(), _Totals())], maxlen=_HOUR)
        return totals

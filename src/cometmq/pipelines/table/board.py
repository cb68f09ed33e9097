"""Keep the figures of all drivers of a service, for metrics and for the report of the day."""

from __future__ import annotations

import threading
from collections import Counter
from enum import Enum
from typing import NamedTuple

import msgspec

from cometmq.pipelines.table.notes import Figures
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock


class Cause(Enum):
    """Says how a driver ended: by a signal, by its own error, or by us because it made no progress."""

    KILLED = "killed"
    FAILED = "failed"
    STALLED = "stalled"


class Shown(msgspec.Struct, frozen=True):
    """The state of the board at one moment. Counts are those of the service since its start.

    until_ms: the time until which the tables are complete, by topic.
    """

    target_s: float
    is_running: bool
    figures: Figures | None
    until_ms: dict[str, int]
    written: dict[str, int]
    batches: int
    restarts: dict[Cause, int]
    cpu_s: float | None


class Taken(NamedTuple):
    """The result of a round: new rows by topic, and how far behind the tables were just before its end."""

    rows: Counter[str]
    ages_s: dict[str, float]


class Board:
    """Takes the figures of one driver after the other. For any thread.

    The rows written are the difference between the rows that the tables have now and before. So the first
    figures of the next driver also count a batch that a killed driver committed without noting it.
    """

    def __init__(self, target_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._target_s = target_s
        self._clock = clock
        self._lock = threading.Lock()
        self._figures: Figures | None = None
        self._until_ms: dict[str, int] = {}
        self._written: Counter[str] = Counter()
        self._batches = 0
        self._of_driver = 0
        self._restarts = dict.fromkeys(Cause, 0)
        self.is_running = False
        self.cpu_s: float | None = None

    def take(self, figures: Figures) -> Taken:
        """Take the figures of the current driver."""
        with self._lock:
            ages_s = {topic: self.age_s(until_ms) for topic, until_ms in self._until_ms.items()}
            before = {one.topic: one.rows for one in self._figures.topics} if self._figures else {}
            # The very first figures are those of the tables before the service started.
            is_first = self._figures is None
            new: Counter[str] = Counter()
            for one in figures.topics:
                count = 0 if is_first else max(0, one.rows - before.get(one.topic, 0))
                new[one.topic] = count
                if one.complete_until_ms is not None:
                    known_ms = self._until_ms.get(one.topic, 0)
                    self._until_ms[one.topic] = max(known_ms, one.complete_until_ms)
            self._written.update(new)
            self._batches += max(0, figures.batches - self._of_driver)
            self._of_driver = figures.batches
            self._figures = figures
            return Taken(new, ages_s)

    def ended(self, cause: Cause | None) -> None:
        """Note the end of a driver, with its cause unless somebody asked the driver to end."""
        with self._lock:
            self.is_running = False
            self._of_driver = 0
            if cause is not None:
                self._restarts[cause] += 1

    def age_s(self, until_ms: int) -> float:
        """Return the age of a time in seconds, 0 for a time to come."""
        return max(0.0, (self._clock.now_ms() - until_ms) / 1000)

    def shown(self) -> Shown:
        with self._lock:
            return Shown(
                self._target_s,
                self.is_running,
                self._figures,
                dict(self._until_ms),
                dict(self._written),
                self._batches,
                dict(self._restarts),
                self.cpu_s,
            )

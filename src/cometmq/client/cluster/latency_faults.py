"""Decide which brokers to avoid for a while (Java: MQFaultStrategy, LatencyFaultToleranceImpl)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.client.cluster.routes import PublishRoute
from cometmq.errors import IllegalArgumentError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue

log = get_logger(__name__)

# A broker that failed is treated as if a send had taken this long.
ISOLATED_LATENCY_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LatencyTables:
    """Maps the latency of a send to the time for which its broker is then avoided, both in ms.

    The last entry of `latency_max_ms` that the latency reaches counts, with the entry of
    `not_available_duration_ms` at the same place. Raises IllegalArgumentError unless both have the
    same length and the first ascends.
    """

    latency_max_ms: tuple[int, ...] = (50, 100, 550, 1800, 3000, 5000, 15_000)
    not_available_duration_ms: tuple[int, ...] = (0, 0, 2000, 5000, 6000, 10_000, 30_000)

    def __post_init__(self) -> None:
        latencies, durations = self.latency_max_ms, self.not_available_duration_ms
        if len(latencies) != len(durations) or not latencies:
            raise IllegalArgumentError(
                f"latency_max_ms has {len(latencies)} entries and not_available_duration_ms "
                f"{len(durations)}; they need one each for every step"
            )
        if list(latencies) != sorted(latencies) or min(*latencies, *durations) < 0:
            raise IllegalArgumentError(
                f"latency_max_ms is {latencies}, not_available_duration_ms {durations}; the first "
                "must ascend, and nothing may be below 0"
            )

    def pause_ms(self, latency_ms: float) -> int:
        """Return how long a broker is avoided, in ms, after a send that took `latency_ms`."""
        pause_ms = 0
        for least, duration in zip(
            self.latency_max_ms, self.not_available_duration_ms, strict=True
        ):
            if latency_ms >= least:
                pause_ms = duration
        return pause_ms


@dataclass(slots=True)
class _Fault:
    available_at_s: float = 0.0
    reachable: bool = True


class LatencyFaults:
    """Remembers brokers' latencies for one producer. `now_s` is a monotonic clock."""

    def __init__(self, tables: LatencyTables, now_s: Callable[[], float]) -> None:
        self._tables = tables
        self._now_s = now_s
        self._faults: dict[str, _Fault] = {}

    def note(self, broker_name: str, took_s: float, *, failed: bool, reachable: bool) -> None:
        """Note that a send to the broker ended after `took_s` seconds.

        This may make a pause that is under way longer, but never shorter: a success does not end
        it.
        """
        fault = self._faults.get(broker_name)
        if fault is None:
            fault = self._faults[broker_name] = _Fault()
        pause_ms = self._tables.pause_ms(ISOLATED_LATENCY_MS if failed else took_s * 1000)
        fault.reachable = reachable
        until_s = self._now_s() + pause_ms / 1000
        if pause_ms and until_s > fault.available_at_s:
            fault.available_at_s = until_s
            log.info(
                "a broker is not chosen for a while", broker=broker_name, ms=pause_ms, failed=failed
            )

    def available(self, broker_name: str) -> bool:
        """Say whether no pause of the broker is under way."""
        fault = self._faults.get(broker_name)
        return fault is None or self._now_s() >= fault.available_at_s

    def reachable(self, broker_name: str) -> bool:
        """Say whether the broker did not refuse the last send that it got."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.reachable

    def choose(self, route: PublishRoute, avoid: str | None) -> MessageQueue:
        """Return the next queue in turn: of an available broker, else of a reachable one, but not
        of the broker `avoid`; if there is none, any queue.
        """
        return (
            route.find(lambda name: name != avoid and self.available(name))
            or route.find(lambda name: name != avoid and self.reachable(name))
            or route.choose()
        )

"""Name the jobs of a client benchmark, measure them, and declare the adapters (faces) of client libraries."""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    # Called with True if the broker has the message, otherwise with False.
    Done = Callable[[bool], None]

SYNC, ASYNC, BATCH, ONEWAY = SENDS = ("sync", "async", "batch", "oneway")
LISTENER, POLLS, ITERATION = DRAINS = ("listener", "polls", "iteration")
MEMORY: Final = "memory"

IN_FLIGHT: Final = 1024
BATCHED: Final = 32
MORE_CLIENTS: Final = 20
SILENCE_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Holds the result of one process. `total` counts all messages acknowledged or received, with the warm-up."""

    messages: int
    seconds: float
    cpu_seconds: float
    p50_ms: float | None
    p99_ms: float | None
    total: int
    failures: int


@dataclass(frozen=True, slots=True)
class ClientMemory:
    """Holds the memory of a producer that has sent a message, and the memory of each further producer."""

    resident_kib: int
    threads: int
    each_kib: float
    each_threads: float


class Meter:
    """Counts messages and processor time from the end of the warm-up on. Any thread may call `add`.

    The warm-up of a drain of `available` messages ends after half of them at the latest. The drain ends with
    the last message.
    """

    def __init__(self, warmup_s: float, measured_s: float, available: int = 0) -> None:
        self.over = threading.Event()
        self.failures = 0
        self._lock = threading.Lock()
        self._measured_s = measured_s
        self._available = available
        self._warmup_s = warmup_s
        self._total = 0
        self._before = 0
        self._latencies_s: list[float] = []
        # Times of the clock and of the processor: the first message, then the begin and the end of the measurement.
        self._first_s = 0.0
        self._began: tuple[float, float] | None = None
        self._ended = (0.0, 0.0)

    def add(self, count: int, latency_s: float | None = None) -> bool:
        """Count messages that were acknowledged or received. Return whether more are wanted."""
        now_s = time.perf_counter()
        with self._lock:
            self._total += count
            if not self._total:
                return True
            if self._began is None:
                self._first_s = self._first_s or now_s
                half = self._available and self._total * 2 >= self._available
                if half or now_s - self._first_s >= self._warmup_s:
                    self._began = (now_s, cpu_s())
                    self._before = self._total
                return True
            if self.over.is_set():
                return False
            if latency_s is not None:
                self._latencies_s.append(latency_s)
            last = self._available and self._total >= self._available
            if last or now_s - self._began[0] >= self._measured_s:
                self._ended = (now_s, cpu_s())
                self._messages = self._total - self._before
                self.over.set()
                return False
        return True

    def failed(self) -> None:
        with self._lock:
            self.failures += 1

    def wait(self) -> None:
        """Wait for the end of the measurement. Raises SystemExit if it does not come."""
        if not self.over.wait(self._warmup_s + self._measured_s + SILENCE_LIMIT_S):
            self.give_up()

    def give_up(self) -> NoReturn:
        raise SystemExit(f"no progress after {self._total} messages and {self.failures} failures")

    def result(self) -> ClientLoad:
        assert self._began is not None, "call this after the end"
        p50, p99 = None, None
        if len(self._latencies_s) >= 100:
            cuts = statistics.quantiles(self._latencies_s, n=100)
            p50, p99 = cuts[49] * 1000, cuts[98] * 1000
        seconds, cpu_seconds = (a - b for a, b in zip(self._ended, self._began, strict=True))
        return ClientLoad(
            self._messages, seconds, cpu_seconds, p50, p99, self._total, self.failures
        )


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# Adapters of a client library --------------------------------------------------------------------


class BlockingFace(ABC):
    """Uses a client that blocks, or that calls back in threads of its own."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    @abstractmethod
    def open(self, number: int) -> None:
        """Start producer `number` with connections of its own. Sends use the producer that was opened last."""

    @abstractmethod
    def send(self, body: bytes) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Close all producers."""

    def send_async(self, body: bytes, done: Done) -> None:
        raise NotImplementedError

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        raise NotImplementedError

    def send_oneway(self, body: bytes) -> None:
        raise NotImplementedError

    def drain(self, job: str, meter: Meter) -> None:
        """Consume until the meter is over."""
        raise NotImplementedError


class AsyncioFace(ABC):
    """Uses a client on the running loop."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    @abstractmethod
    def producer(self, number: int) -> AbstractAsyncContextManager[Any]:
        """Return a producer that has connections of its own."""

    @abstractmethod
    async def send(self, producer: Any, body: bytes) -> None: ...

    @abstractmethod
    async def send_async(self, producer: Any, body: bytes) -> asyncio.Future[Any]: ...

    async def send_batch(self, producer: Any, bodies: Sequence[bytes]) -> None:
        raise NotImplementedError

    @abstractmethod
    async def send_oneway(self, producer: Any, body: bytes) -> None: ...

    @abstractmethod
    async def drain(self, job: str, meter: Meter) -> None:
        """Consume until the meter is over."""

"""Do the work of `cometmq bench producer` (Java:
org.apache.rocketmq.example.benchmark.Producer).
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cometmq.admin import AdminClient
from cometmq.admin.groups.offsets import stored
from cometmq.cli.bench.run import BenchResult, RunLimits, bounded
from cometmq.cli.bench.screen import BenchScreen, duration_text, time_text
from cometmq.cli.bench.stats import LatencyHistogram
from cometmq.client.limits import parse_addresses
from cometmq.client.producing.producer import MAX_PENDING_BYTES, Producer
from cometmq.errors import CometMQError, IllegalArgumentError, RemoteError, RouteNotFoundError
from cometmq.model.message import Message
from cometmq.model.results import SendResult
from cometmq.protocol.messages.compression import CompressionType
from cometmq.remoting.credentials import Credentials
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness
from cometmq.tls.contexts import Tls

GROUP: Final = "benchmark_producer"
# Pause after a failed send, as in Java's benchmark: a broker that is away comes back in seconds.
PAUSE_AFTER_FAILURE_S: Final = 3.0
# Name servers get to know a topic that was just created within milliseconds.
ROUTE_DEADLINE_S: Final = 5.0
_NEVER_COMPRESS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Holds the settings. `concurrency` sends are under way at once.

    With `asynchronous` they end in callbacks.
    """

    namesrv: str
    topic: str
    concurrency: int
    message_size_bytes: int
    key_enable: bool
    property_size_bytes: int
    tag_count: int
    asynchronous: bool
    compression: CompressionType | None
    compress_over_bytes: int
    limits: RunLimits
    trace: bool = False
    credentials: Credentials | None = None
    tls: bool | Tls | None = None


class ProducerBench:
    """Runs the benchmark once. For the loop's thread."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._instance_name = randomness.token_hex(8)
        self._quantity_left = settings.limits.quantity or None
        self._make = message_maker(settings, clock, randomness)
        self._interval = LatencyHistogram()
        self._total = LatencyHistogram()
        self._send_failed = 0
        self._response_failed = 0
        self._last_failure = ""
        self._started_s = 0.0
        self._ended_s = 0.0
        self._interval_started_s = 0.0

    async def run(self, screen: BenchScreen) -> BenchResult:
        """Send until the limit, then ask the brokers how much they stored. Raises CometMQError."""
        settings = self._settings
        producer = Producer(
            GROUP,
            namesrv=settings.namesrv,
            instance_name=self._instance_name,
            enable_trace=settings.trace,
            credentials=settings.credentials,
            tls=settings.tls,
            compression=settings.compression or CompressionType.ZLIB,
            compress_over_bytes=(
                settings.compress_over_bytes if settings.compression else _NEVER_COMPRESS
            ),
            max_pending_sends=max(10_000, settings.concurrency),
            max_pending_bytes=max(
                MAX_PENDING_BYTES, settings.concurrency * settings.message_size_bytes
            ),
        )
        namesrv = parse_addresses(settings.namesrv)
        signed = AdminClient(namesrv, credentials=settings.credentials, tls=settings.tls)
        async with signed as admin, producer:
            await producer.queues(settings.topic)  # nothing is sent, and timed, without a route
            before = await self._stored(admin, deadline_s=0.0)
            self._started_s = self._interval_started_s = self._clock.monotonic()
            send = self._send_with_callbacks if settings.asynchronous else self._send_and_wait
            workers = 1 if settings.asynchronous else settings.concurrency
            async with bounded(settings.limits, lambda: self._report(screen)) as stop:
                with screen.running(self._status):
                    await asyncio.gather(*(send(producer, stop) for _ in range(workers)))
            self._ended_s = self._clock.monotonic()
            self._close_interval()
            screen.report(self._complete(), "")
            screen.show_latencies({"send": self._total})
            try:
                after = await self._stored(admin, deadline_s=ROUTE_DEADLINE_S)
            except CometMQError as error:
                return self._result(None, f"the brokers could not be asked: {error}")
            return self._result(after - before)

    async def _stored(self, admin: AdminClient, *, deadline_s: float) -> int:
        """Return how many messages the topic has taken, 0 if it is unknown after `deadline_s`."""
        deadline = self._clock.monotonic() + deadline_s
        while True:
            try:
                return stored(await admin.offsets.of_topic(self._settings.topic))
            except RouteNotFoundError:
                if self._clock.monotonic() >= deadline:
                    return 0
            await asyncio.sleep(0.05)

    # Sending

    async def _send_and_wait(self, producer: Producer, stop: asyncio.Event) -> None:
        """Send one message after the other, as a thread of Java's benchmark does."""
        now_s = self._clock.monotonic
        while not stop.is_set() and self._take():
            message = self._make()
            started_s = now_s()
            try:
                await producer.send(message)
            except IllegalArgumentError:
                raise  # every other message would fail, too
            except CometMQError as error:
                self._count_failure(error)
                await _pause(stop)
            else:
                self._interval.record(int((now_s() - started_s) * 1e9))

    async def _send_with_callbacks(self, producer: Producer, stop: asyncio.Event) -> None:
        now_s = self._clock.monotonic
        room = asyncio.Semaphore(self._settings.concurrency)
        refused: list[IllegalArgumentError] = []

        def sender(started_s: float) -> Callable[[SendResult | None, BaseException | None], None]:
            def done(_result: SendResult | None, error: BaseException | None) -> None:
                room.release()
                if error is None:
                    self._interval.record(int((now_s() - started_s) * 1e9))
                elif isinstance(error, IllegalArgumentError):
                    refused.append(error)
                else:
                    self._count_failure(error)

            return done

        failed = 0
        while not stop.is_set() and not refused and self._take():
            await room.acquire()
            producer.send_async(self._make(), sender(now_s()))
            if self._failed > failed:
                await _pause(stop)
                failed = self._failed
        for _ in range(self._settings.concurrency):
            await room.acquire()  # until the last one ended
        if refused:
            raise refused[0]

    def _take(self) -> bool:
        """Say whether one more message is to be sent, and count it."""
        if self._quantity_left is None:
            return True
        if self._quantity_left == 0:
            return False
        self._quantity_left -= 1
        return True

    def _count_failure(self, error: BaseException) -> None:
        if isinstance(error, RemoteError):
            self._response_failed += 1
        else:
            self._send_failed += 1
        self._last_failure = str(error)

    # Showing

    @property
    def _failed(self) -> int:
        return self._send_failed + self._response_failed

    def _status(self) -> str:
        interval = self._interval
        now_s = self._clock.monotonic()
        elapsed_s, interval_s = now_s - self._started_s, now_s - self._interval_started_s
        sent = self._total.count + interval.count
        quantity = self._settings.limits.quantity
        of = f" of {quantity:,}" if quantity else ""
        return (
            f"{duration_text(elapsed_s)}  {sent:,}{of} sent  {interval.count / interval_s:,.0f}/s  "
            f"p50 {interval.percentile_ms(50):.1f} ms  p99 {interval.percentile_ms(99):.1f} ms  "
            f"{self._failed:,} failed"
        )

    def _report(self, screen: BenchScreen) -> None:
        """Print a line about the time since the last one."""
        interval = self._interval
        seconds = self._clock.monotonic() - self._interval_started_s
        line = (
            f"Current Time: {time_text(self._clock.now_ms())} | Send TPS: {interval.count / seconds:.0f} | "
            f"Max RT(ms): {interval.max_ms:.0f} | Average RT(ms): {interval.mean_ms:7.3f} | "
            f"Send Failed: {self._send_failed} | Response Failed: {self._response_failed}"
        )
        screen.report(line, self._status())
        self._close_interval()

    def _close_interval(self) -> None:
        self._total.add(self._interval)
        self._interval = LatencyHistogram()
        self._interval_started_s = self._clock.monotonic()

    @property
    def _elapsed_s(self) -> float:
        return self._ended_s - self._started_s

    @property
    def _rate(self) -> float:
        return self._total.count / self._elapsed_s if self._elapsed_s else 0.0

    def _complete(self) -> str:
        return (
            f"[Complete] Send Total: {self._total.count + self._failed} | "
            f"Send TPS: {self._rate:.0f} | Max RT(ms): {self._total.max_ms:.0f} | "
            f"Average RT(ms): {self._total.mean_ms:7.3f} | Send Failed: {self._send_failed} | "
            f"Response Failed: {self._response_failed}"
        )

    def _result(self, stored_count: int | None, failure: str | None = None) -> BenchResult:
        """Make the result. `stored_count` is None when it is unknown, for the reason `failure`."""
        acknowledged = self._total.count
        holds = acknowledged == stored_count and not self._failed
        notes = [failure] if failure else []
        if self._last_failure:
            notes.append(f"{self._failed:,} sends failed, the last one: {self._last_failure}")
        if stored_count is not None and stored_count > acknowledged:
            more = stored_count - acknowledged
            notes.append(
                f"{more:,} of them were stored although no acknowledgement came"
                if more <= self._send_failed
                else f"the brokers have {more:,} more than were acknowledged here: does another "
                "producer write to the topic?"
            )
        sign = "=" if acknowledged == stored_count else "/"
        known = "unknown" if stored_count is None else f"{stored_count:,}"
        limits = self._settings.limits
        return BenchResult(
            holds,
            f"sent {sign} stored: {acknowledged:,} {sign} {known} in "
            f"{self._elapsed_s:.1f} s, {self._rate:,.0f}/s",
            notes,
            {
                "command": "producer",
                "settings": _settings_facts(self._settings),
                "quantity": limits.quantity,
                "elapsed_s": round(self._elapsed_s, 3),
                "sent": acknowledged,
                "stored": stored_count,
                "send_failed": self._send_failed,
                "response_failed": self._response_failed,
                "last_failure": self._last_failure or None,
                "tps": round(self._rate, 1),
                "latency_ms": self._total.summary_ms(),
                "holds": holds,
            },
        )


def message_maker(
    settings: ProducerSettings, clock: Clock, randomness: Randomness
) -> Callable[[], Message]:
    """Return a function that makes messages with one random body, as Java's benchmark does."""
    letters = string.ascii_letters + string.digits
    body = "".join(randomness.choices(letters, k=settings.message_size_bytes)).encode()
    properties = filling_properties(settings.property_size_bytes, randomness)
    topic, tag_count, key_enable = settings.topic, settings.tag_count, settings.key_enable

    def make() -> Message:
        message = Message(topic, body, properties=properties)
        if key_enable:
            message.keys = (str(clock.now_ms() // 1000),)
        if tag_count:
            message.tags = f"tag{clock.now_ms() % tag_count}"
        return message

    return make


def filling_properties(
    size_bytes: int, randomness: Randomness = SYSTEM_RANDOMNESS
) -> dict[str, str]:
    """Return properties whose names and values together just exceed `size_bytes`; none for 0."""
    properties: dict[str, str] = {}
    filled = 0
    value = randomness.randrange(100)
    while 0 < size_bytes >= filled:
        name, text = f"prop{len(properties)}", f"hello{value}"
        properties[name] = text
        filled += len(name) + len(text)
        value += 1
    return properties


def _settings_facts(settings: ProducerSettings) -> dict[str, Any]:
    return {
        "namesrv": settings.namesrv,
        "topic": settings.topic,
        "concurrency": settings.concurrency,
        "message_size_bytes": settings.message_size_bytes,
        "key_enable": settings.key_enable,
        "property_size_bytes": settings.property_size_bytes,
        "tag_count": settings.tag_count,
        "async": settings.asynchronous,
        "compression": settings.compression.name if settings.compression else None,
    }


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_AFTER_FAILURE_S):
            await stop.wait()
    except TimeoutError:
        pass

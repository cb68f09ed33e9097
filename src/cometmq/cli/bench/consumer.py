"""Do the work of `cometmq bench consumer` (Java:
org.apache.rocketmq.example.benchmark.Consumer).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.admin import AdminClient
from cometmq.admin.groups.offsets import QueueOffsets
from cometmq.cli.bench.run import BenchResult, RunLimits, bounded
from cometmq.cli.bench.screen import BenchScreen, duration_text, time_text
from cometmq.cli.bench.stats import LatencyHistogram, OffsetSet
from cometmq.client.consuming.push_consumer import PushConsumer
from cometmq.client.limits import parse_addresses
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere, ConsumeResult
from cometmq.remoting.credentials import Credentials
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness
from cometmq.tls.contexts import Tls

# Messages that one call of the listener gets at most; one pull brings as many.
LISTENER_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Holds the settings.

    `concurrency` listeners run at once; `tags` is a tag expression, `*` for all.
    """

    namesrv: str
    topic: str
    group: str
    concurrency: int
    tags: str
    consume_from: ConsumeFromWhere
    limits: RunLimits
    trace: bool = False
    credentials: Credentials | None = None
    tls: bool | Tls | None = None


@dataclass(slots=True)
class _Interval:
    """Holds latencies of an interval: born to consumed (B2C) and stored to consumed (S2C)."""

    born: LatencyHistogram
    stored: LatencyHistogram
    started_s: float


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Counts, over all queues, the offsets that the group passed, and how many of their messages
    came here.
    """

    committed: int
    received: int
    lag: int | None

    def complete(self, received_in_all: int) -> bool:
        return self.committed == self.received == received_in_all


class ConsumerBench:
    """Runs the benchmark once. For the loop's thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._instance_name = randomness.token_hex(8)
        self._came: dict[MessageQueue, OffsetSet] = {}
        self._received = 0
        self._duplicates = 0
        self._born = LatencyHistogram()
        self._stored = LatencyHistogram()
        self._interval = self._new_interval()
        self._first_s = 0.0
        self._last_s = 0.0
        self._began_s = clock.monotonic()
        self._stop: asyncio.Event | None = None

    async def run(self, screen: BenchScreen) -> BenchResult:
        """Consume until the limit, leave the group, and compare with the offsets that the group
        committed.

        Raises CometMQError.
        """
        settings = self._settings
        consumer = PushConsumer(
            settings.group,
            self._listen,
            namesrv=settings.namesrv,
            instance_name=self._instance_name,
            enable_trace=settings.trace,
            credentials=settings.credentials,
            tls=settings.tls,
            consume_from=settings.consume_from,
            concurrency=settings.concurrency,
            consume_message_batch_max_size=LISTENER_BATCH,
        )
        consumer.subscribe(settings.topic, settings.tags)
        namesrv = parse_addresses(settings.namesrv)
        async with AdminClient(
            namesrv, credentials=settings.credentials, tls=settings.tls
        ) as admin:
            before = await _offsets(admin, settings)
            async with bounded(settings.limits, lambda: self._report(screen)) as stop:
                self._stop = stop
                with screen.running(self._status):
                    async with consumer:
                        screen.say("Consumer Started.")
                        await stop.wait()
            self._close_interval()
            screen.report(self._complete(), "")
            screen.show_latencies(
                {"B2C, born to consumed": self._born, "S2C, stored to consumed": self._stored}
            )
            try:
                after = await _offsets(admin, settings)
            except CometMQError as error:
                return self._result(None, f"the brokers could not be asked: {error}")
        if not after:
            return self._result(None, f"no name server knows the topic {settings.topic}")
        return self._result(self._compare(before, after))

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        now_ms = self._clock.now_ms()
        born, stored = self._interval.born.record, self._interval.stored.record
        for message in messages:
            queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
            offsets = self._came.get(queue)
            if offsets is None:
                offsets = self._came[queue] = OffsetSet(message.queue_offset)
            if offsets.add(message.queue_offset):
                self._received += 1
            else:
                self._duplicates += 1
            born((now_ms - message.born_timestamp_ms) * 1_000_000)
            stored((now_ms - message.store_timestamp_ms) * 1_000_000)
        self._last_s = self._clock.monotonic()
        self._first_s = self._first_s or self._last_s
        quantity = self._settings.limits.quantity
        if quantity and self._received >= quantity and self._stop is not None:
            self._stop.set()
        return ConsumeResult.SUCCESS

    # Showing

    def _status(self) -> str:
        interval = self._interval
        now_s = self._clock.monotonic()
        seconds = now_s - interval.started_s
        quantity = self._settings.limits.quantity
        of = f" of {quantity:,}" if quantity else ""
        return (
            f"{duration_text(now_s - self._began_s)}  {self._received:,}{of} received  "
            f"{interval.born.count / seconds:,.0f}/s  B2C p50 {interval.born.percentile_ms(50):.0f} "
            f"p99 {interval.born.percentile_ms(99):.0f} ms"
        )

    def _report(self, screen: BenchScreen) -> None:
        """Print a line about the time since the last one."""
        interval = self._interval
        seconds = self._clock.monotonic() - interval.started_s
        line = (
            f"Current Time: {time_text(self._clock.now_ms())} | Consume TPS: {interval.born.count / seconds:.0f} | "
            f"AVG(B2C) RT(ms): {interval.born.mean_ms:7.3f} | "
            f"AVG(S2C) RT(ms): {interval.stored.mean_ms:7.3f} | "
            f"MAX(B2C) RT(ms): {interval.born.max_ms:.0f} | "
            f"MAX(S2C) RT(ms): {interval.stored.max_ms:.0f} | Consume Fail: 0"
        )
        screen.report(line, self._status())
        self._close_interval()

    def _complete(self) -> str:
        return (
            f"[Complete] Consume Total: {self._received + self._duplicates} | "
            f"Consume TPS: {self._rate:.0f} | AVG(B2C) RT(ms): {self._born.mean_ms:7.3f} | "
            f"AVG(S2C) RT(ms): {self._stored.mean_ms:7.3f} | Consume Fail: 0"
        )

    def _close_interval(self) -> None:
        self._born.add(self._interval.born)
        self._stored.add(self._interval.stored)
        self._interval = self._new_interval()

    def _new_interval(self) -> _Interval:
        return _Interval(LatencyHistogram(), LatencyHistogram(), self._clock.monotonic())

    @property
    def _elapsed_s(self) -> float:
        return self._last_s - self._first_s

    @property
    def _rate(self) -> float:
        """Messages per second between the first delivery and the last."""
        return self._received / self._elapsed_s if self._elapsed_s else 0.0

    def _result(self, comparison: _Comparison | None, failure: str | None = None) -> BenchResult:
        """Make the result; `comparison` is None if there is none, for the reason `failure`."""
        limits = self._settings.limits
        filtered = self._settings.tags != "*"
        complete = comparison is not None and (filtered or comparison.complete(self._received))
        holds = complete and self._received >= limits.quantity
        if filtered:
            text = f"received {self._received:,}"
        else:
            known = "unknown" if comparison is None else f"{comparison.committed:,}"
            sign = "=" if complete else "/"
            text = f"committed {sign} received: {known} {sign} {self._received:,}"
        return BenchResult(
            holds,
            f"{text} in {self._elapsed_s:.1f} s, {self._rate:,.0f}/s",
            [failure] if failure else self._notes(comparison, filtered=filtered),
            {
                "command": "consumer",
                "settings": {
                    "namesrv": self._settings.namesrv,
                    "topic": self._settings.topic,
                    "group": self._settings.group,
                    "concurrency": self._settings.concurrency,
                    "tags": self._settings.tags,
                    "consume_from": self._settings.consume_from.value,
                },
                "quantity": limits.quantity,
                "elapsed_s": round(self._elapsed_s, 3),
                "received": self._received,
                "duplicates": self._duplicates,
                "committed": comparison.committed if comparison and not filtered else None,
                "lag": comparison.lag if comparison else None,
                "tps": round(self._rate, 1),
                "latency_ms": {
                    "born_to_consumed": self._born.summary_ms(),
                    "stored_to_consumed": self._stored.summary_ms(),
                },
                "holds": holds,
            },
        )

    def _notes(self, comparison: _Comparison | None, *, filtered: bool) -> list[str]:
        notes = []
        quantity = self._settings.limits.quantity
        if quantity > self._received:
            notes.append(f"asked for {quantity:,}, received {self._received:,}")
        if self._duplicates:
            notes.append(f"{self._duplicates:,} deliveries were repetitions")
        if comparison is None:
            return notes
        if filtered:
            notes.append("a filter is set, so the committed offsets prove no count")
        else:
            if comparison.committed > comparison.received:
                notes.append(
                    f"{comparison.committed - comparison.received:,} were committed and not "
                    "received here: does the group have another member?"
                )
            if self._received > comparison.received:
                notes.append(
                    f"{self._received - comparison.received:,} were received and their offset not "
                    "committed: they will come again"
                )
        if comparison.lag is None:
            notes.append("group lag not known: the group has committed no offset in some queues")
        elif comparison.lag:
            notes.append(
                f"group lag {comparison.lag:,}: this many messages are stored but not consumed yet"
            )
        else:
            notes.append("group lag 0: all stored messages were consumed")
        return notes

    def _compare(
        self,
        before: Mapping[MessageQueue, QueueOffsets],
        after: Mapping[MessageQueue, QueueOffsets],
    ) -> _Comparison:
        """Count the messages that the group committed during the run, and how many of them came
        here.

        A queue without an earlier commit begins where `consume_from` says. For the last offset that
        is the first offset that came, because nobody can say where the queue ended at that moment.
        """
        committed = received = 0
        for queue, offsets in after.items():
            end = offsets.committed_offset
            came = self._came.get(queue)
            if end is None:
                continue
            begin = before[queue].committed_offset if queue in before else None
            if begin is None and self._settings.consume_from is ConsumeFromWhere.FIRST_OFFSET:
                begin = before[queue].min_offset if queue in before else 0
            if begin is None:
                begin = end if came is None else came.lowest
            committed += max(0, end - begin)
            received += 0 if came is None else came.count_between(begin, end)
        lags = [queue.lag for queue in after.values()]
        lag = None if None in lags else sum(lag for lag in lags if lag is not None)
        return _Comparison(committed, received, lag)


async def _offsets(
    admin: AdminClient, settings: ConsumerSettings
) -> dict[MessageQueue, QueueOffsets]:
    """Return the offsets by queue, none when the topic does not exist."""
    try:
        offsets = await admin.offsets.of_topic(settings.topic, settings.group)
    except RouteNotFoundError:
        return {}
    return {queue.queue: queue for queue in offsets}

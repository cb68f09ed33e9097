"""Measure producers and consumers for Prometheus.

    metrics = ClientMetrics()  # in prometheus_client.REGISTRY, or in the registry that is passed
    metrics.watch(producer)

Clients that nobody watches pay nothing. Metrics that RIP-46 defines for clients keep its names and
units (milliseconds where the name has none); the others are `cometmq_client_…`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeMessageHook,
    SendContext,
    SendMessageHook,
)
from cometmq.client.loads import Client, Gauge, Sums, WatchedClients
from cometmq.errors import IllegalArgumentError
from cometmq.extras import needs
from cometmq.runtime.clock import Clock
from cometmq.runtime.surroundings import current

with needs("metrics", "ClientMetrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

# How many topics have series of their own; the others share those of the topic REST.
MAX_TOPICS: Final = 1000
REST: Final = "{rest}"
_SEND_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 3_000, 10_000)
_PROCESS_BUCKETS_MS: Final = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 600_000)
_DELIVERY_BUCKETS_MS: Final = (5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 600_000)


class ClientMetrics(Collector):
    """Measures the producers and consumers that it watches, in one registry of prometheus-client.

    Make one for a registry; a second one there raises ValueError, as two counters of one name do.
    Serve the registry as for other metrics: `prometheus_client.start_http_server(8000)`.
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, clock: Clock | None = None
    ) -> None:
        clock = clock or current().clock
        self._now_ms = clock.now_ms
        self.monotonic = clock.monotonic
        self._clients = WatchedClients()
        self._topics: set[str] = set()
        labels = ("group", "topic")
        self._sends = Histogram(
            "rocketmq_send_cost_time",
            "Milliseconds that attempts to send took, by invocation_status success or failure.",
            (*labels, "invocation_status"),
            registry=registry,
            buckets=_SEND_BUCKETS_MS,
        )
        self._retries = Counter(
            "cometmq_client_send_retries",
            "Attempts to send that repeated a failed one.",
            labels,
            registry=registry,
        )
        self._processed = Histogram(
            "rocketmq_process_time",
            "Milliseconds that listeners and blocks `with message:` took, by invocation_status success or failure.",
            (*labels, "invocation_status"),
            registry=registry,
            buckets=_PROCESS_BUCKETS_MS,
        )
        self._consumed = Counter(
            "cometmq_client_consumed_messages",
            "Messages that listeners or polls took, by status: SUCCESS, FAILED, TIME_OUT, EXCEPTION "
            "or RETURNNULL.",
            (*labels, "status"),
            registry=registry,
        )
        self._delivery = Histogram(
            "rocketmq_delivery_latency",
            "Milliseconds from a message's birth at its producer to the listener; of the first "
            "message of each call.",
            labels,
            registry=registry,
            buckets=_DELIVERY_BUCKETS_MS,
        )
        registry.register(self)

    def watch(self, client: Client) -> None:
        """Measure a producer or consumer from now on, started or not; a second call does nothing.

        Raises IllegalArgumentError for anything else.
        """
        if self._clients.known(client):
            return
        try:
            client.add_hook(_Sends(self))
        except IllegalArgumentError:  # of no kind that a consumer calls
            client.add_hook(_Consumes(self))
        self._clients.add(client)

    def describe(self) -> list[Metric]:
        """Name the metrics for the registry without collecting them."""
        return list(_families(WatchedClients().sums()))

    def collect(self) -> Iterator[Metric]:
        """Say what the clients hold now. The registry calls this, in any thread."""
        yield from _families(self._clients.sums(self._label))

    def sent(self, context: SendContext, took_s: float) -> None:
        """Count an attempt to send."""
        labels = context.group, self._label(context.queue.topic)
        status = "failure" if context.error is not None else "success"
        self._sends.labels(*labels, status).observe(took_s * 1000)
        if context.attempt > 1:
            self._retries.labels(*labels).inc()

    def delivered(self, context: ConsumeContext) -> None:
        """Count messages that a listener or a poll is about to get."""
        if context.received:  # the poll has counted it
            return
        message = context.messages[0]
        late_ms = max(0, self._now_ms() - message.born_timestamp_ms)
        self._delivery.labels(context.group, self._label(message.topic)).observe(late_ms)

    def consumed(self, context: ConsumeContext, took_s: float) -> None:
        """Count messages that a listener or a poll took, and measure listeners and blocks."""
        labels = context.group, self._label(context.messages[0].topic)
        if not context.received:
            self._consumed.labels(*labels, context.status).inc(len(context.messages))
        if not context.polled:
            status = "success" if context.success else "failure"
            self._processed.labels(*labels, status).observe(took_s * 1000)

    def _label(self, topic: str) -> str:
        if topic not in self._topics:
            if len(self._topics) >= MAX_TOPICS:
                return REST
            self._topics.add(topic)
        return topic


class _Sends(SendMessageHook):
    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics

    def before_send(self, context: SendContext) -> None:
        context.state[self] = self._metrics.monotonic()

    def after_send(self, context: SendContext) -> None:
        began_s = context.state.pop(self, None)
        if began_s is not None:  # else it was under way when the client began to be watched
            self._metrics.sent(context, self._metrics.monotonic() - began_s)


class _Consumes(ConsumeMessageHook):
    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics

    def before_consume(self, context: ConsumeContext) -> None:
        context.state[self] = self._metrics.monotonic()
        self._metrics.delivered(context)

    def after_consume(self, context: ConsumeContext) -> None:
        began_s = context.state.pop(self, None)
        if began_s is not None:
            self._metrics.consumed(context, self._metrics.monotonic() - began_s)


def _families(sums: Mapping[Gauge, Sums]) -> Iterator[Metric]:
    for gauge, found in sums.items():
        name = gauge.name.replace(".", "_")
        labels = ("group", "topic") if gauge.by_topic else ("group",)
        family = GaugeMetricFamily(name, gauge.text, labels=labels)
        for values, number in found.items():
            family.add_metric(values, number)
        yield family

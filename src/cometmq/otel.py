"""Make OpenTelemetry spans and metrics of sends and deliveries (the extra `cometmq[otel]`).

    from cometmq.otel import OpenTelemetryHook

    telemetry = OpenTelemetryHook()
    telemetry.watch(producer)
    telemetry.watch(consumer)

Names follow OpenTelemetry's semantic conventions for messaging. The context of a send travels in
the message's properties, `traceparent` and what else the application's propagators write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq._version import __version__
from cometmq.client.hooks import (
    CommunicationMode,
    ConsumeContext,
    ConsumeMessageHook,
    SendContext,
    SendMessageHook,
)
from cometmq.client.loads import GAUGES, Client, Gauge, WatchedClients
from cometmq.extras import needs
from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.runtime.clock import Clock
from cometmq.runtime.surroundings import current

with needs("otel", "cometmq.otel"):
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Link, SpanKind, StatusCode

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

Attributes = dict[str, "str | int | Sequence[str]"]

# The bounds in OpenTelemetry's conventions for durations of messaging, in seconds.
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
# The attributes of a span that its metrics have, too.
_OF_METRICS: Final = frozenset(
    {
        "error.type",
        "messaging.consumer.group.name",
        "messaging.destination.name",
        "messaging.operation.name",
        "messaging.system",
        "server.address",
        "server.port",
    }
)
_LABELS_BY_GROUP: Final = ("messaging.rocketmq.client_group",)
_LABELS_BY_TOPIC: Final = ("messaging.consumer.group.name", "messaging.destination.name")
_DELAYS: Final = (p.DELAY_TIME_LEVEL, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)
_NAME: Final = "cometmq"


class _Running(NamedTuple):
    """Holds the span of a send or delivery that is under way. `token` undoes `attach`."""

    span: Span
    attributes: Attributes
    began_s: float
    token: Any


class OpenTelemetryHook(SendMessageHook, ConsumeMessageHook):
    """Makes a span and metrics of each attempt to send, each call of a listener, each poll, and each
    block `with message:`, and gauges of the connections, queues and messages that clients hold.

    One hook serves any number of producers and consumers. `watch` measures a client; `client.add_hook`
    does the same without the gauges. Without providers it uses the global ones.
    While a listener or block runs, its span is the current one. The span of a delivery of one message
    belongs to the trace of the send, as do its retries and its dead letter; one of several messages is
    linked to their sends. Each message of a batch carries the context of the batch's span.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._monotonic = (clock or current().clock).monotonic
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were to be sent."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered."
        )
        self._sending, self._processing = (
            meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=list(_BUCKETS_S)
            )
            for name, text in (
                ("messaging.client.operation.duration", "Durations of attempts to send."),
                ("messaging.process.duration", "Durations of calls of listeners."),
            )
        )

        self._clients = WatchedClients()
        for gauge in GAUGES:
            observe = functools.partial(self._observe, gauge)
            meter.create_observable_gauge(gauge.name, [observe], gauge.unit, gauge.text)

    def watch(self, client: Client) -> None:
        """Measure a producer or consumer from now on, started or not; a second call does nothing.

        Raises IllegalArgumentError for anything else.
        """
        if not self._clients.known(client):
            client.add_hook(self)
            self._clients.add(client)

    def _observe(self, gauge: Gauge, _options: CallbackOptions) -> Iterator[Observation]:
        names = _LABELS_BY_TOPIC if gauge.by_topic else _LABELS_BY_GROUP
        for labels, number in self._clients.sums()[gauge].items():
            yield Observation(number, dict(zip(names, labels, strict=True)))

    def before_send(self, context: SendContext) -> None:
        single = len(context.messages) == 1
        attributes = _attributes("send", "send", context.queue.topic, context.messages)
        host, _, port = context.address.rpartition(":")
        attributes |= {
            "server.address": host,
            "server.port": int(port),
            "messaging.destination.partition.id": str(context.queue.queue_id),
            "messaging.message.body.size": context.body_length,
            "messaging.rocketmq.message.type": _message_type(context),
        }
        if context.namespace:
            attributes["messaging.rocketmq.namespace"] = context.namespace
        kind = SpanKind.PRODUCER if single else SpanKind.CLIENT
        span = self._tracer.start_span(
            f"send {context.queue.topic}", kind=kind, attributes=attributes
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        # Replaces what an attempt before this one wrote, or the producer that sent it first. An
        # empty property would fail the send.
        carrier = {name: text for name, text in carrier.items() if text}
        for message in context.messages:
            message.properties.update(carrier)
        context.state[self] = _Running(span, attributes, self._monotonic(), None)

    def after_send(self, context: SendContext) -> None:
        running: _Running | None = context.state.pop(self, None)
        if running is None:  # it was under way when the hook was added
            return
        if context.result is not None:
            running.span.set_attribute("messaging.message.id", context.result.msg_id)
        if context.error is not None:
            running.span.record_exception(context.error)
            self._failed(running, type(context.error).__qualname__, str(context.error))
        elif context.mode is CommunicationMode.ONEWAY:
            running.span.set_attribute("messaging.rocketmq.oneway", value=True)
        labels = self._end(running)
        self._sent.add(len(context.messages), labels)
        self._sending.record(self._monotonic() - running.began_s, labels)

    def before_consume(self, context: ConsumeContext) -> None:
        messages = context.messages
        topic = messages[0].topic
        operation = ("poll", "receive") if context.polled else ("process", "process")
        attributes = _attributes(*operation, topic, messages)
        attributes["messaging.consumer.group.name"] = context.group
        attributes["messaging.destination.partition.id"] = str(context.queue.queue_id)
        if context.namespace:
            attributes["messaging.rocketmq.namespace"] = context.namespace
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].msg_id
            attributes["messaging.message.body.size"] = len(messages[0].body)
        parent = None
        if len(messages) == 1 and not context.polled:
            parent = _context_of(messages[0])
        span = self._tracer.start_span(
            f"{operation[0]} {topic}",
            parent,
            SpanKind.CLIENT if context.polled else SpanKind.CONSUMER,
            attributes,
            list(_links(messages)),
        )
        token = None if context.polled else contexts.attach(trace.set_span_in_context(span, parent))
        context.state[self] = _Running(span, attributes, self._monotonic(), token)

    def after_consume(self, context: ConsumeContext) -> None:
        running: _Running | None = context.state.pop(self, None)
        if running is None:
            return
        if running.token is not None:
            contexts.detach(running.token)
        if not context.success:
            self._failed(running, context.status, f"the listener's outcome is {context.status}")
        labels = self._end(running)
        if not context.received:  # else the poll has counted it
            self._consumed.add(len(context.messages), labels)
        if not context.polled:
            self._processing.record(self._monotonic() - running.began_s, labels)

    def _failed(self, running: _Running, kind: str, text: str) -> None:
        running.attributes["error.type"] = kind
        running.span.set_attribute("error.type", kind)
        running.span.set_status(StatusCode.ERROR, text)

    def _end(self, running: _Running) -> Attributes:
        """End the span; return the attributes of its metrics."""
        running.span.end()
        return {key: value for key, value in running.attributes.items() if key in _OF_METRICS}


def _attributes(name: str, kind: str, topic: str, messages: Sequence[Message]) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    if len(messages) > 1:
        attributes["messaging.batch.message_count"] = len(messages)
        return attributes
    (message,) = messages
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if keys := message.properties.get(p.KEYS):
        attributes["messaging.rocketmq.message.keys"] = keys.split()
    return attributes


def _message_type(context: SendContext) -> str:
    properties: Mapping[str, str] = context.message.properties
    if context.half:
        return "transaction"
    return "delay" if any(name in properties for name in _DELAYS) else "normal"


def _context_of(message: Message) -> Context:
    # An empty context, not the current one: a listener's thread has nothing to do with the last
    # message that it saw.
    return propagate.extract(message.properties, contexts.Context())


def _links(messages: Iterable[Message]) -> Iterable[Link]:
    for message in messages:
        found = trace.get_current_span(_context_of(message)).get_span_context()
        if found.is_valid:
            yield Link(found)

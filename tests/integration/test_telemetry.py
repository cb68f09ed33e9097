"""OpenTelemetry spans and metrics of clients of both faces, over a real broker."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from prometheus_client import CollectorRegistry
from tests.integration.client_faces import AsyncFace, Face
from tests.waits import WAIT_S, eventually

from cometmq import (
    ClientMetrics,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    RpcHook,
)
from cometmq.errors import CometMQError, IllegalArgumentError
from cometmq.otel import OpenTelemetryHook

FIRST = ConsumeFromWhere.FIRST_OFFSET

pytestmark = [pytest.mark.cluster()]


class Observed:
    """Holds a hook, and the spans that it exported."""

    def __init__(self) -> None:
        self.spans_told = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans_told))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader])
        self.hook = OpenTelemetryHook(tracer_provider=self.tracers, meter_provider=self._meters)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans_told.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        reported = self._reader.get_metrics_data()
        return [
            point
            for resource in (reported.resource_metrics if reported is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def close(self) -> None:
        self.tracers.shutdown()
        self._meters.shutdown()


@pytest.fixture
def observed() -> Iterator[Observed]:
    reported = Observed()
    yield reported
    reported.close()


class Breaks(RpcHook):
    """Fails every call."""

    def before_request(self, address: str, command: object) -> None:
        raise KeyError("broken")


def test_a_delivery_belongs_to_the_trace_of_its_send(
    face: Face, name: str, observed: Observed
) -> None:
    producer = face.producer(name)
    producer.add_hook(observed.hook)
    result = producer.send(Message(name, b"four", tags="paid", keys=["one", "two"]))
    current: list[tuple[int, int]] = []

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        found = get_current_span().get_span_context()
        current.append((found.trace_id, found.span_id))
        assert "traceparent" in messages[0].properties
        return ConsumeResult.SUCCESS

    consumer = face.new_consumer(name, face.listener(listen), consume_from=FIRST)
    consumer.add_hook(observed.hook)
    consumer.subscribe(name)
    face.started(consumer)
    (delivery,) = eventually(lambda: observed.spans(f"process {name}"))
    (send,) = observed.spans(f"send {name}")
    assert send.context is not None
    assert delivery.context is not None
    assert (send.kind, delivery.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert delivery.parent is not None
    assert (delivery.parent.span_id, delivery.parent.trace_id) == (
        send.context.span_id,
        send.context.trace_id,
    )
    assert [link.context.span_id for link in delivery.links] == [send.context.span_id]
    assert current == [(delivery.context.trace_id, delivery.context.span_id)]
    assert not get_current_span().get_span_context().is_valid
    sent = dict(send.attributes or {})
    assert sent.pop("server.port") in producer_ports(producer)
    assert sent == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": name,
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("one", "two"),
        "messaging.rocketmq.message.type": "normal",
        "server.address": "127.0.0.1",
    }
    got = dict(delivery.attributes or {})
    assert got["messaging.consumer.group.name"] == name
    assert got["messaging.message.id"] == result.msg_id
    # The listener's thread ends the span first.
    (point,) = eventually(lambda: observed.points("messaging.process.duration"))
    assert (point.count, point.attributes["messaging.consumer.group.name"]) == (1, name)


def producer_ports(producer: Any) -> set[int]:
    return {int(address.rpartition(":")[2]) for address in producer.load().connections}


def test_a_send_belongs_to_the_span_of_its_caller(
    face: Face, name: str, observed: Observed
) -> None:
    """Also when the send runs on the loop's thread."""
    producer = face.producer(name)
    producer.add_hook(observed.hook)
    with observed.tracers.get_tracer("app").start_as_current_span("order") as order:
        producer.send(Message(name, b"x"))
    (send,) = observed.spans(f"send {name}")
    assert send.parent is not None
    assert send.parent.span_id == order.get_span_context().span_id


def test_a_failed_send_and_a_failed_delivery_are_errors(
    face: Face, name: str, observed: Observed
) -> None:
    producer = face.producer(name)
    producer.add_hook(observed.hook)
    producer.send(Message(name, b"x"))
    producer.add_hook(Breaks())
    with pytest.raises(CometMQError):
        producer.send(Message(name, b"x"))
    first, *attempts = observed.spans(f"send {name}")
    assert first.status.status_code is StatusCode.UNSET
    assert len(attempts) == 3
    for span in attempts:
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "RpcHookError"
    counts = {
        point.attributes.get("error.type"): point.value
        for point in observed.points("messaging.client.sent.messages")
    }
    assert counts == {None: 1, "RpcHookError": 3}

    def fail(messages: list[MessageExt]) -> ConsumeResult:
        raise ValueError("the listener's own error")

    consumer = face.new_consumer(name, face.listener(fail), consume_from=FIRST)
    consumer.add_hook(observed.hook)
    consumer.subscribe(name)
    face.started(consumer)
    span = eventually(lambda: observed.spans(f"process {name}"))[0]
    assert (span.attributes or {})["error.type"] == "EXCEPTION"
    assert span.status.status_code is StatusCode.ERROR


def handle(face: Face, consumer: Any, count: int, seen: list[tuple[bytes, int]]) -> None:
    """Handle `count` messages in a block each; note each body and the trace of the span in force.

    A body of b"bad" makes its block raise.
    """

    def note(message: MessageExt) -> None:
        seen.append((message.body, get_current_span().get_span_context().trace_id))
        if message.body == b"bad":
            raise ValueError("a bad message")

    if not isinstance(face, AsyncFace):
        for message in itertools.islice(consumer, count):
            with contextlib.suppress(ValueError), message:
                note(message)
        return

    async def blocks() -> None:
        messages = aiter(consumer.client)
        for _ in range(count):
            with contextlib.suppress(ValueError):
                async with await anext(messages) as message:
                    note(message)

    face.driver.call(blocks())


@pytest.mark.parametrize("kind", ["simple", "lite pull"])
def test_a_block_is_the_current_span_in_the_trace_of_its_send(
    face: Face, name: str, observed: Observed, kind: str
) -> None:
    """A poll's own span is linked to the sends; its messages are counted once."""
    producer = face.producer(name)
    producer.add_hook(observed.hook)
    for body in (b"good", b"bad"):
        producer.send(Message(name, body))
    if kind == "simple":
        consumer = face.new_simple_consumer(name)
    else:
        consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
    consumer.add_hook(observed.hook)
    registry = CollectorRegistry()
    ClientMetrics(registry).watch(consumer)
    consumer.subscribe(name)
    face.started(consumer)
    seen: list[tuple[bytes, int]] = []
    handle(face, consumer, 2, seen)
    sends = [span.context.trace_id for span in observed.spans(f"send {name}") if span.context]
    assert sorted(seen) == sorted(zip([b"good", b"bad"], sends, strict=True))
    assert not get_current_span().get_span_context().is_valid
    blocks = observed.spans(f"process {name}")
    assert {(span.attributes or {}).get("error.type") for span in blocks} == {None, "EXCEPTION"}
    assert {span.context.trace_id for span in blocks if span.context} == set(sends)
    polled = [
        link.context.trace_id for span in observed.spans(f"poll {name}") for link in span.links
    ]
    assert sorted(polled) == sorted(sends)
    consumed = observed.points("messaging.client.consumed.messages")
    assert sum(point.value for point in consumed) == 2
    assert sum(point.count for point in observed.points("messaging.process.duration")) == 2
    sample = registry.get_sample_value
    labels = {"group": name, "topic": name}
    assert sample("cometmq_client_consumed_messages_total", {**labels, "status": "SUCCESS"}) == 2
    for status in ("success", "failure"):
        name_of_count = "rocketmq_process_time_count"
        assert sample(name_of_count, {**labels, "invocation_status": status}) == 1


def test_retries_and_the_dead_letter_stay_in_the_trace_of_the_send(
    face: Face, name: str, observed: Observed
) -> None:
    producer = face.producer(name)
    producer.add_hook(observed.hook)
    producer.send(Message(name, b"bad"))

    def fail(messages: list[MessageExt]) -> ConsumeResult:
        raise ValueError("a bad message")

    # The first delay of 1 s, and one delivery more.
    consumer = face.new_consumer(
        name, face.listener(fail), consume_from=FIRST, max_reconsume_times=1
    )
    consumer.add_hook(observed.hook)
    consumer.subscribe(name)
    face.started(consumer)
    dead = face.new_lite_pull_consumer(f"dead-{name}", consume_from=FIRST)
    dead.add_hook(observed.hook)
    dead.assign([MessageQueue(f"%DLQ%{name}", producer.queues(name)[0].broker_name, 0)])
    face.started(dead)
    eventually(lambda: len(observed.spans(f"process {name}")) == 2)
    handle(face, dead, 1, [])
    (send,) = observed.spans(f"send {name}")
    (letter,) = observed.spans(f"process %DLQ%{name}")
    tries = observed.spans(f"process {name}")
    assert send.context is not None
    traces = {span.context.trace_id for span in (*tries, letter) if span.context}
    assert traces == {send.context.trace_id}


def test_a_batch_is_sent_in_one_span_and_polls_are_linked_to_sends(
    face: Face, name: str, observed: Observed
) -> None:
    producer = face.producer(name)
    producer.add_hook(observed.hook)
    producer.send_batch([Message(name, b"a"), Message(name, b"b")])
    (batch,) = observed.spans(f"send {name}")
    assert batch.kind is SpanKind.CLIENT
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2
    queue = producer.queues(name)[0]
    producer.send(Message(name, b"c"), queue=queue)
    poller = face.new_lite_pull_consumer(name, consume_from=FIRST)
    poller.add_hook(observed.hook)
    poller.subscribe(name)
    face.started(poller)
    bodies: set[bytes] = set()

    def all_came() -> bool:
        bodies.update(message.body for message in poller.poll(200))
        return bodies == {b"a", b"b", b"c"}

    eventually(all_came)
    polls = observed.spans(f"poll {name}")
    linked = [link.context.span_id for span in polls for link in span.links]
    single = observed.spans(f"send {name}")[1]
    assert single.context is not None
    assert batch.context is not None
    assert sorted(linked) == sorted([batch.context.span_id] * 2 + [single.context.span_id])
    assert {span.kind for span in polls} == {SpanKind.CLIENT}
    assert observed.points("messaging.process.duration") == []
    received = sum(point.value for point in observed.points("messaging.client.consumed.messages"))
    assert received == 3
    assert trace.get_current_span().get_span_context().is_valid is False


def test_the_lag_has_no_value_until_a_broker_has_answered_for_each_queue(
    face: Face, name: str, observed: Observed
) -> None:
    producer = face.producer(name)
    queue = producer.queues(name)[0]
    for _ in range(3):
        result = producer.send(Message(name, b"x"), queue=queue)
    face.until_readable(result)
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
    observed.hook.watch(consumer)
    consumer.assign([queue])
    labels = {"messaging.consumer.group.name": name, "messaging.destination.name": name}

    def lag() -> list[Any]:
        points = observed.points("cometmq.client.consumer_lag")
        return [each.value for each in points if dict(each.attributes) == labels]

    assert lag() == []
    face.started(consumer)
    eventually(lag, lambda found: found == [3])
    eventually(lambda: consumer.poll(200))
    assert lag() == [0]
    # Nothing is in this queue, so the broker keeps the pull and says nothing yet.
    consumer.assign([queue, producer.queues(name)[1]])
    assert lag() == []


def test_gauges_show_what_watched_clients_hold(face: Face, name: str, observed: Observed) -> None:
    producer = face.producer(name)
    for _ in range(2):
        observed.hook.watch(producer)
    producer.send_batch([Message(name, b"five5"), Message(name, b"x")])
    entered, leave = threading.Event(), threading.Event()

    def listen(_: list[MessageExt]) -> ConsumeResult:
        entered.set()
        leave.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    # A function runs in a thread on either face, so it may block.
    consumer = face.new_consumer(name, listen, consume_from=FIRST, concurrency=1)
    observed.hook.watch(consumer)
    consumer.subscribe(name)
    face.started(consumer)
    entered.wait(WAIT_S)
    labels = {"messaging.consumer.group.name": name, "messaging.destination.name": name}

    def held(gauge: str) -> list[Any]:
        return [each.value for each in observed.points(gauge) if dict(each.attributes) == labels]

    eventually(lambda: held("rocketmq.consumer.cached_messages"), lambda found: found == [2])
    assert held("rocketmq.consumer.cached_bytes") == [6]
    assert held("cometmq.client.assigned_queues") == [len(producer.queues(name))]
    leave.set()
    eventually(lambda: held("rocketmq.consumer.cached_messages"), lambda found: found == [0])
    (connections,) = [
        each.value
        for each in observed.points("cometmq.client.connections")
        if dict(each.attributes) == {"messaging.rocketmq.client_group": name}
    ]
    assert connections > 0
    assert [each.value for each in observed.points("messaging.client.sent.messages")] == [2]
    with pytest.raises(IllegalArgumentError, match="no producer or consumer"):
        observed.hook.watch("billing")  # type: ignore[arg-type]  # what is tried

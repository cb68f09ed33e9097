"""Metrics of clients of both faces, over a real broker."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from tests.integration.client_faces import Face
from tests.waits import eventually

from cometmq import ClientMetrics, ConsumeFromWhere, ConsumeResult, Message, MessageExt, RpcHook
from cometmq.errors import CometMQError

FIRST = ConsumeFromWhere.FIRST_OFFSET

pytestmark = [pytest.mark.cluster()]


class Breaks(RpcHook):
    """Fails every call."""

    def before_request(self, address: str, command: object) -> None:
        raise KeyError("broken")


def test_producers_and_consumers_are_measured(face: Face, name: str) -> None:
    registry = CollectorRegistry()
    metrics = ClientMetrics(registry)
    labels = {"group": name, "topic": name}

    def of(metric: str, **more: str) -> float | None:
        return registry.get_sample_value(metric, {**labels, **more})

    producer = face.producer(name)
    metrics.watch(producer)
    for _ in range(3):
        producer.send(Message(name, b"four"))
    producer.add_hook(Breaks())
    with pytest.raises(CometMQError):
        producer.send(Message(name, b"four"))  # three attempts
    assert of("rocketmq_send_cost_time_count", invocation_status="success") == 3
    assert of("rocketmq_send_cost_time_count", invocation_status="failure") == 3
    assert of("cometmq_client_send_retries_total") == 2
    assert registry.get_sample_value("cometmq_client_connections", {"group": name}) == 2

    def fail(messages: list[MessageExt]) -> ConsumeResult:
        raise ValueError("the listener's own error")

    consumer = face.new_consumer(name, face.listener(fail), consume_from=FIRST)
    metrics.watch(consumer)
    consumer.subscribe(name)
    face.started(consumer)

    def failed() -> float:
        return of("rocketmq_process_time_count", invocation_status="failure") or 0

    # Ten seconds later they are delivered once more.
    failures = eventually(failed, lambda count: count >= 3)
    assert (of("cometmq_client_consumed_messages_total", status="EXCEPTION") or 0) >= failures
    assert (of("rocketmq_delivery_latency_count") or 0) >= failures
    assert (of("cometmq_client_assigned_queues") or 0) > 0
    assert of("rocketmq_consumer_cached_messages") is not None

    poller = face.new_lite_pull_consumer(f"{name}-poll", consume_from=FIRST)
    metrics.watch(poller)
    poller.subscribe(name)
    face.started(poller)
    labels["group"] = f"{name}-poll"
    eventually(lambda: poller.poll(200) and of("rocketmq_delivery_latency_count"))
    assert (of("cometmq_client_consumed_messages_total", status="SUCCESS") or 0) > 0
    # No listener ran.
    assert of("rocketmq_process_time_count", invocation_status="success") is None

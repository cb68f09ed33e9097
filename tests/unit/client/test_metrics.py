"""Metrics of clients: what is counted under which labels, and that it stays bounded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from tests.unit.client.fakes import FakeInstance, refuse, route, send_ok
from tests.waits import PROCESS_WAIT_S, WAIT_S

import cometmq
from cometmq import ClientMetrics, Message
from cometmq.client.hooks import Hook, HookList, SendMessageHook
from cometmq.client.lifecycle import Cached, ClientLoad
from cometmq.client.metrics import MAX_TOPICS, REST
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.otel import OpenTelemetryHook
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.properties import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2
NOBODY = "127.0.0.1:1"


class Watched:
    """Stands for a producer, or for a consumer that holds what `topics` say."""

    def __init__(self, **topics: Cached) -> None:
        self.hooks = HookList(SendMessageHook)
        self._load = ClientLoad("g", frozenset({"a:1", "b:1"}), 3, 500, topics)

    def lags_by(self, lag: Mapping[str, int | None]) -> Watched:
        self._load = replace(self._load, lag=lag)
        return self

    def load(self) -> ClientLoad:
        return self._load

    def add_hook(self, hook: Hook) -> None:
        self.hooks.add(hook)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


async def send(fake: FakeInstance, watched: Watched) -> None:
    outgoing = await MessageEncoder("g", fake.instance.unique_ids).encode(Message("t", b"x"))
    await Sender(fake.instance, SendLimits(), group="g", hooks=watched.hooks).send(outgoing, WAIT_S)


async def test_attempts_are_counted_by_outcome_and_retries_apart(
    fake: FakeInstance, registry: CollectorRegistry
) -> None:
    metrics, watched = ClientMetrics(registry), Watched()
    metrics.watch(watched)
    metrics.watch(watched)  # once more changes nothing
    fake.remoting.routes["t"] = route("a", "b")
    fake.remoting.answers[SEND] = send_ok
    await send(fake, watched)
    fake.remoting.answers[SEND] = refuse(ResponseCode.SYSTEM_BUSY)
    with pytest.raises(RemoteError):
        await send(fake, watched)
    sample = registry.get_sample_value
    labels = {"group": "g", "topic": "t"}
    name = "rocketmq_send_cost_time_count"
    assert sample(name, {**labels, "invocation_status": "success"}) == 1
    assert sample(name, {**labels, "invocation_status": "failure"}) == 3
    assert sample("cometmq_client_send_retries_total", labels) == 2


def test_what_clients_hold_is_summed_by_group_and_topic(registry: CollectorRegistry) -> None:
    metrics = ClientMetrics(registry)
    clients = Watched(t=Cached(2, 10, 1000)), Watched(t=Cached(1, 5, 1), u=Cached(1))
    for client in clients:
        metrics.watch(client)
    sample = registry.get_sample_value
    assert sample("cometmq_client_connections", {"group": "g"}) == 4
    assert sample("cometmq_client_pending_sends", {"group": "g"}) == 6
    assert sample("cometmq_client_pending_send_bytes", {"group": "g"}) == 1000
    labels = {"group": "g", "topic": "t"}
    assert sample("cometmq_client_assigned_queues", labels) == 3
    assert sample("rocketmq_consumer_cached_messages", labels) == 15
    assert sample("rocketmq_consumer_cached_bytes", labels) == 1001
    assert sample("rocketmq_consumer_cached_messages", {"group": "g", "topic": "u"}) == 0
    # The names and types fit the format.
    assert len(list(text_string_to_metric_families(generate_latest(registry).decode()))) == 12


def test_a_lag_that_one_member_does_not_know_has_no_value(registry: CollectorRegistry) -> None:
    metrics = ClientMetrics(registry)
    lags: list[dict[str, int | None]] = [{"t": 3, "u": 4, "v": 0}, {"t": 2, "u": None, "w": None}]
    clients = [Watched().lags_by(lag) for lag in lags]
    for client in clients:
        metrics.watch(client)

    def lag(topic: str) -> float | None:
        labels = {"group": "g", "topic": topic}
        return registry.get_sample_value("cometmq_client_consumer_lag", labels)

    assert [lag(topic) for topic in "tuvw"] == [5, None, 0, None]


def test_topics_without_end_share_the_last_series(registry: CollectorRegistry) -> None:
    metrics = ClientMetrics(registry)
    client = Watched(**{f"t{number}": Cached(1, 1, 1) for number in range(MAX_TOPICS + 50)})
    metrics.watch(client)
    sample = registry.get_sample_value
    assert sample("rocketmq_consumer_cached_messages", {"group": "g", "topic": REST}) == 50
    assert sample("rocketmq_consumer_cached_messages", {"group": "g", "topic": "t0"}) == 1


def test_a_client_that_is_gone_leaves_the_metrics(registry: CollectorRegistry) -> None:
    metrics = ClientMetrics(registry)
    client = Watched()
    metrics.watch(client)
    del client
    assert registry.get_sample_value("cometmq_client_connections", {"group": "g"}) is None


async def test_a_send_that_was_under_way_when_watching_began_is_not_counted(
    fake: FakeInstance, registry: CollectorRegistry
) -> None:
    """The hook raised KeyError for each such send, which was logged with a traceback."""
    metrics, watched = ClientMetrics(registry), Watched()
    watched.hooks.add(SendMessageHook())
    fake.remoting.routes["t"] = route("a")

    def answer(address: str, command: RemotingCommand) -> RemotingCommand:
        metrics.watch(watched)
        watched.hooks.add(OpenTelemetryHook())
        return send_ok(address, command)

    fake.remoting.answers[SEND] = answer
    with capture_logs() as lines:
        await send(fake, watched)
    assert [line for line in lines if line["event"] == "a hook failed"] == []
    name = "rocketmq_send_cost_time_count"
    labels = {"group": "g", "topic": "t", "invocation_status": "success"}
    assert registry.get_sample_value(name, labels) is None
    fake.remoting.answers[SEND] = send_ok
    await send(fake, watched)
    assert registry.get_sample_value(name, labels) == 1


@pytest.fixture
def writes_empty() -> Iterator[None]:
    """Have OpenTelemetry use a propagator that writes an empty value, and a good one."""

    class Writes(TraceContextTextMapPropagator):
        def inject(self, carrier: Any, *_: object, **__: object) -> None:
            carrier.update({"baggage": "", "traceparent": "00-1-2-01"})

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Writes())
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("writes_empty")
async def test_a_propagator_that_writes_an_empty_value_fails_no_send(fake: FakeInstance) -> None:
    watched, sent = Watched(), []
    watched.hooks.add(OpenTelemetryHook())
    fake.remoting.routes["t"] = route("a")

    def answer(address: str, command: RemotingCommand) -> RemotingCommand:
        sent.append(decode_properties(command.ext["i"]))
        return send_ok(address, command)

    fake.remoting.answers[SEND] = answer
    await send(fake, watched)
    (properties,) = sent
    assert properties["traceparent"] == "00-1-2-01"
    assert "baggage" not in properties


def test_what_is_no_client_is_refused(registry: CollectorRegistry) -> None:
    with pytest.raises(IllegalArgumentError, match="42 is no producer or consumer to watch"):
        ClientMetrics(registry).watch(42)  # type: ignore[arg-type]  # the mistake


def test_a_client_holds_nothing_before_its_start() -> None:
    assert cometmq.Producer("g", namesrv=NOBODY).load() == ClientLoad("g")
    assert cometmq.LitePullConsumer("g", namesrv=NOBODY).load() == ClientLoad("g")


def test_clients_that_nobody_measures_load_neither_prometheus_nor_opentelemetry() -> None:
    program = (
        "import sys, cometmq; cometmq.Producer, cometmq.PushConsumer; "
        "sys.exit('prometheus_client' in sys.modules or 'opentelemetry' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROCESS_WAIT_S)


def test_spans_without_their_extra_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "cometmq.otel", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'cometmq\[otel\]'"):
        importlib.import_module("cometmq.otel")

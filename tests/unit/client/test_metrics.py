"""Metrics of clients: what is counted under which labels, and that it stays bounded."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.client.fakes import FakeInstance, refuse, route, send_ok
from tests.waits import WAIT_S

import cometmq
from cometmq import ClientMetrics, Message
from cometmq.client.hooks import Hook, HookList, SendMessageHook
from cometmq.client.lifecycle import Cached, ClientLoad
from cometmq.client.metrics import MAX_TOPICS, REST
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.protocol.codes import RequestCode, ResponseCode

SEND = RequestCode.SEND_MESSAGE_V2
NOBODY = "127.0.0.1:1"


class Watched:
    """Stands for a producer, or for a consumer that holds what `topics` say."""

    def __init__(self, **topics: Cached) -> None:
        self.hooks = HookList(SendMessageHook)
        self._load = ClientLoad("g", frozenset({"a:1", "b:1"}), 3, 500, topics)

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
    assert len(list(text_string_to_metric_families(generate_latest(registry).decode()))) == 11


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
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_spans_without_their_extra_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "cometmq.otel", raising=False)
    with pytest.raises(ImportError, match=r"pip install cometmq\[otel\]"):
        importlib.import_module("cometmq.otel")

"""Metrics and probes of brokers and name servers, read over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.patience import be_prompt
from tests.integration.routes import until_routed
from tests.waits import WAIT_S, until

from cometmq import ConsumeFromWhere, ConsumeResult, Message
from cometmq.aio import Producer, PushConsumer
from cometmq.broker.config import broker_configs
from cometmq.broker.metrics.lags import Lag, Lags
from cometmq.broker.metrics.messages import GroupLags, GroupMessages, TopicMessages
from cometmq.broker.metrics.series import PairSlots
from cometmq.broker.server import Broker
from cometmq.errors import ConfigError, StoreClosedError, StoreError
from cometmq.metrics.catalogue import (
    BASE_LABELS,
    METRICS,
    PROCESS_METRICS,
    REST,
    Kind,
    Server,
)
from cometmq.metrics.exposition import Exposition
from cometmq.model.topic import TopicConfig
from cometmq.store.refusals import RefusalCause
from cometmq.testing import Cluster

ON = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}

Samples = dict[str, list[tuple[dict[str, str], float]]]


async def get(address: str | None, path: str) -> tuple[int, str]:
    # Without a thread: the server's own look at the machine takes its turn among the loop's threads.
    assert address is not None
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def scraped(address: str | None) -> Samples:
    status, text = await get(address, "/metrics")
    assert status == 200
    return parsed(text)


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    found = [each for have, each in samples.get(name, []) if labels.items() <= have.items()]
    assert found, f"no {name} with {labels}"
    return sum(found)


# What only a slave tells.
OF_SLAVES = {
    "cometmq_replication_connected",
    "cometmq_replication_diverged",
    "cometmq_replication_received_bytes_total",
}


def names_of(server: Server) -> set[str]:
    reported = {metric.name for metric in METRICS.values() if server in metric.servers} - OF_SLAVES
    # Only where TLS is served, and where access control is on.
    return {name for name in reported if not name.startswith(("cometmq_tls_", "cometmq_access_"))}


def check_catalogue(text: str, server: Server) -> None:
    """Check that everything the catalogue declares is exposed, as it is declared, and nothing else."""
    families = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in families, f"{name} is told twice"
            families[name] = kind
    assert families.keys() == names_of(server) | set(PROCESS_METRICS)
    for name, samples in parsed(text).items():
        base = name
        for suffix in ("_bucket", "_sum", "_count"):
            stem = name.removesuffix(suffix)
            if stem in METRICS and METRICS[stem].kind is Kind.HISTOGRAM:
                base = stem
        if base in PROCESS_METRICS:
            continue
        metric = METRICS[base]
        assert families[base] == metric.kind.value
        labels = {*BASE_LABELS, *metric.labels, *(["le"] if name.endswith("_bucket") else [])}
        for have, _ in samples:
            assert have.keys() == labels, name
            assert have["node_type"] == server.value


async def test_a_broker_tells_what_goes_in_and_out_and_how_far_groups_are_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be_prompt(monkeypatch.setattr)
    # Each scrape shows what is true then.
    monkeypatch.setattr("cometmq.remoting.http.monitoring.SHARED_FOR_S", 0.0)
    gate = asyncio.Event()

    async def listener(_messages: list[Any]) -> ConsumeResult:
        await gate.wait()
        return ConsumeResult.SUCCESS

    async with Cluster(properties=ON) as cluster:
        broker = cluster.brokers[0]
        broker.monitoring.machine_s = WAIT_S
        address = broker.metrics_address
        async with Producer("producers", namesrv=cluster.namesrv) as producer:
            for number in range(100):
                await producer.send(Message("orders", b"x" * (number + 1)))
            await producer.send_batch([Message("orders", b"y" * 10) for _ in range(5)])
            consumer = PushConsumer(
                "billing",
                listener,
                namesrv=cluster.namesrv,
                consume_from=ConsumeFromWhere.FIRST_OFFSET,
                concurrency=1,
            )
            consumer.subscribe("orders", "*")
            async with consumer:
                await until(lambda: bool(broker.offsets.queues("billing", "orders")))
                status, text = await get(address, "/metrics")
                assert status == 200
                check_catalogue(text, Server.BROKER)
                reported = parsed(text)
                pair = {"consumer_group": "billing", "topic": "orders"}
                assert value(reported, "rocketmq_messages_in_total", topic="orders") == 105
                assert value(reported, "cometmq_put_latency_seconds_count", topic="orders") == 3
                assert value(reported, "rocketmq_message_size_count", topic="orders") == 3
                assert value(reported, "rocketmq_producer_connections") == 1
                assert value(reported, "rocketmq_consumer_connections", consume_mode="push") == 1
                assert value(reported, "rocketmq_rpc_latency_count", request_code="heart_beat") >= 1
                assert value(reported, "cometmq_ready") == 1
                assert value(reported, "cometmq_connections") >= 2
                gate.set()
                await until(lambda: sum(broker.offsets.queues("billing", "orders").values()) == 105)
                reported = await scraped(address)
                assert value(reported, "rocketmq_messages_out_total", **pair) == 105
                assert value(reported, "rocketmq_throughput_out_total", **pair) == value(
                    reported, "rocketmq_throughput_in_total", topic="orders"
                )
                assert value(reported, "cometmq_get_latency_seconds_count", **pair) > 0
                assert value(reported, "rocketmq_consumer_lag_messages", **pair) == 0
            # The group is gone, and what is sent now waits for it.
            await producer.send(Message("orders", b"late"))
            reported = await scraped(address)
            assert value(reported, "rocketmq_consumer_lag_messages", **pair) == 1
            assert value(reported, "rocketmq_consumer_lag_latency", **pair) >= 0
            assert value(reported, "cometmq_consumer_queue_lag_messages", **pair) == 1
            assert value(reported, "rocketmq_consumer_ready_messages", **pair) == 1
            status, text = await get(address, "/lag/billing?topic=orders")
            lag = json.loads(text)
            assert (status, lag["lag"], lag["members"], lag["topic"]) == (200, 1, 0, "orders")
            assert lag["queues"] == 4
            assert lag["oldestAgeMillis"] >= 0
        for path, sentence in (
            ("/lag/nobody", "knows no consumer group 'nobody'"),
            ("/lag/billing?topic=nothing", "has no topic 'nothing'"),
            ("/lag/", "name a group"),
        ):
            status, text = await get(address, path)
            assert (status, sentence in text) == (404, True), text


async def test_a_slave_tells_how_it_follows_its_master() -> None:
    async with Cluster(slaves=1, properties=ON) as cluster:
        (slave,) = cluster.slaves
        async with Producer("producers", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"x"))
        end = cluster.brokers[0].store.commit_log.end
        await until(lambda: slave.store.commit_log.end == end)
        samples = await scraped(slave.metrics_address)
    assert value(samples, "cometmq_replication_connected") == 1
    assert value(samples, "cometmq_replication_diverged") == 0
    assert value(samples, "cometmq_replication_received_bytes_total") > end, (
        "with the frames' heads"
    )


async def test_probes_hear_when_a_broker_takes_no_messages() -> None:
    async with Cluster(properties=ON) as cluster:
        broker = cluster.brokers[0]
        assert await get(broker.metrics_address, "/health") == (200, "alive\n")
        assert await get(broker.metrics_address, "/ready") == (200, "ready\n")
        broker.store.refusals.set(RefusalCause.DISK_FULL, StoreClosedError("the disk is full"))
        assert await get(broker.metrics_address, "/ready") == (503, "the disk is full\n")
        assert await get(broker.metrics_address, "/health") == (200, "alive\n")
        assert value(await scraped(broker.metrics_address), "cometmq_ready") == 0
        broker.store.refusals.lift(RefusalCause.DISK_FULL)
        broker.config.broker_permission = 4
        status, text = await get(broker.metrics_address, "/ready")
        assert (status, "brokerPermission is 4" in text) == (503, True)


async def test_a_broker_says_that_it_starts_while_its_store_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, str]] = []
    opened = Broker._open_store

    async def open_slowly(self: Broker, *given: Any) -> Any:
        asked.append(await get(self.metrics_address, "/health"))
        asked.append(await get(self.metrics_address, "/ready"))
        return await opened(self, *given)

    monkeypatch.setattr(Broker, "_open_store", open_slowly)
    async with Cluster(properties=ON):
        assert asked == [(200, "alive\n"), (503, "the server is starting\n")]


async def test_scrapers_that_ask_at_once_share_a_scrape() -> None:
    async with Cluster(properties=ON) as cluster:
        monitoring = cluster.brokers[0].monitoring
        texts = await asyncio.gather(*(monitoring.scrape() for _ in range(8)))
        assert all(text is texts[0] for text in texts)
        assert value(parsed(texts[0].decode()), "cometmq_scrapes_total") == 1


async def test_a_disk_that_fails_leaves_the_other_figures() -> None:
    def fail() -> None:
        raise StoreError("statvfs: I/O error")

    async with Cluster(properties=ON) as cluster:
        monitoring = cluster.brokers[0].monitoring
        monitoring.machine_s = WAIT_S
        monitoring.machine.insert(0, fail)
        reported = parsed((await monitoring.scrape()).decode())
        assert value(reported, "process_cpu_seconds_total") > 0
        assert value(reported, "cometmq_disk_free_bytes") > 0


async def test_an_error_is_counted_by_request_and_answer() -> None:
    async with Cluster(properties={**ON, "autoCreateTopicEnable": "false"}) as cluster:
        broker = cluster.brokers[0]
        broker.topics.put(TopicConfig("small", read_queue_nums=1, write_queue_nums=1))
        await until_routed(cluster, "small", "broker-a")
        refused = broker.handlers.refused
        broker.store.config.max_message_size = 10
        broker.store.settings_changed()
        async with Producer("producers", namesrv=cluster.namesrv, retry_times=0) as producer:
            with pytest.raises(Exception, match="maxMessageSize"):
                await producer.send(Message("small", b"x" * 100))
        assert sum(refused.values()) == 1
        reported = await scraped(broker.metrics_address)
        assert (
            value(reported, "cometmq_refused_requests_total", response_code="message_illegal") == 1
        )


async def test_a_scrape_of_many_topics_and_groups_is_bounded_and_made_in_small_steps() -> None:
    limits = {
        "metricsMaxTopics": "20",
        "metricsMaxPairs": "30",
        "metricsMaxQueues": "10",
        "metricsMaxHistograms": "5",
    }
    async with Cluster(properties={**ON, **limits}) as cluster:
        broker = cluster.brokers[0]
        parts = broker.parts
        traffic = broker.traffic
        topics = [f"topic-{number}" for number in range(100)]
        for topic in topics:
            broker.topics.put(TopicConfig(topic, read_queue_nums=2, write_queue_nums=2))
            for queue_id in range(2):
                queue = broker.store.queue(topic, queue_id)
                broker.store.append(queue, b"x", b"", 0, 1, b"\x7f\0\0\1\0\0\0\1")
                queue.totals.sample(1, 0.001)
        for group in range(100):
            for topic in topics:
                broker.offsets.keep(f"group-{group}", topic, 0, 0)
                traffic.took(f"group-{group}", topic, 0, 1, 1, 100, traffic.monotonic())
        reported = await scraped(broker.metrics_address)
        for name, most in (
            ("rocketmq_messages_in_total", 20 + 1),
            ("cometmq_put_latency_seconds_count", 5 + 1),
            ("rocketmq_messages_out_total", 2 * 30 + 1),
            ("cometmq_get_latency_seconds_count", 5 + 1),
            ("rocketmq_consumer_lag_messages", 2 * 30 + 1),
            ("cometmq_consumer_queue_lag_messages", 10 + 30 + 1),
        ):
            assert 0 < len(reported[name]) <= most, name
        # Nothing is lost in the sums.
        assert value(reported, "rocketmq_messages_in_total") == broker.store.appended_count == 200
        assert value(reported, "rocketmq_messages_out_total") == 100 * 100
        assert value(reported, "rocketmq_consumer_lag_messages") == 2 * 100 * 100
        assert value(reported, "cometmq_consumer_queue_lag_messages") == 2 * 100 * 100
        assert value(reported, "rocketmq_messages_in_total", topic=REST) == 200 - 20 * 2
        assert value(reported, "cometmq_metrics_left_out", what="metricsMaxTopics") == 100 - 20
        assert value(reported, "cometmq_metrics_left_out", what="metricsMaxPairs") >= 100 * 100 - 30

        # Between two pauses there is a topic, a pair or a line at most, never all of them.
        pairs = PairSlots()
        pairs.begin(30)
        for collector in (
            TopicMessages(parts, pairs),
            GroupMessages(parts.config, traffic, pairs),
            GroupLags(parts, traffic, pairs),
        ):
            assert most_lines_in_a_step(collector.collect, broker) <= 20


class SlowDisk:
    """A clock by which each look at a message takes LOOK_S."""

    LOOK_S = 0.01

    def __init__(self) -> None:
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return self.asked * self.LOOK_S

    def now_ms(self) -> int:
        return 0


async def test_looks_at_messages_that_are_on_disk_take_a_bounded_time() -> None:
    async with Cluster(properties=ON) as cluster:
        broker = cluster.brokers[0]
        broker.topics.put(TopicConfig("orders", read_queue_nums=20, write_queue_nums=20))
        for queue_id in range(20):
            queue = broker.store.queue("orders", queue_id)
            broker.store.append(queue, b"x", b"", 0, 1, b"\x7f\0\0\1\0\0\0\1")
            broker.offsets.keep("billing", "orders", queue_id, 0)
        lags = Lags(dataclasses.replace(broker.parts, clock=SlowDisk()), broker.traffic)
        unlooked: list[int] = []
        while not unlooked or unlooked[-1]:
            lags.begin(1_000, 4.5 * SlowDisk.LOOK_S)
            lag = Lag()
            for _ in lags.look("billing", "orders", lag):
                pass
            assert lag.messages == 20
            unlooked.append(lags.unlooked)
        # What was found is remembered, so every look brought something new.
        assert unlooked == [15, 10, 5, 0]


def most_lines_in_a_step(collect: Any, broker: Broker) -> int:
    out = Exposition(dict.fromkeys(BASE_LABELS, "x"))
    steps: Iterator[None] = collect(out)
    before = most = 0
    for _ in steps:
        now = out.text().count(b"\n")
        most, before = max(most, now - before), now
    return most


async def test_a_name_server_tells_of_its_brokers() -> None:
    async with Cluster(properties=ON) as cluster:
        server = cluster.name_servers[0]
        server.monitoring.machine_s = WAIT_S
        status, text = await get(server.metrics_address, "/metrics")
        assert status == 200
        check_catalogue(text, Server.NAMESRV)
        reported = parsed(text)
        assert value(reported, "cometmq_namesrv_brokers") == 1
        assert value(reported, "cometmq_namesrv_topics") > 1
        assert value(reported, "rocketmq_rpc_latency_count", request_code="register_broker") >= 1
        assert await get(server.metrics_address, "/health") == (200, "alive\n")
        assert await get(server.metrics_address, "/ready") == (200, "ready\n")
        assert (await get(server.metrics_address, "/lag/g"))[0] == 404


async def test_without_the_key_no_port_is_opened_and_a_taken_one_ends_the_start() -> None:
    async with Cluster() as cluster:
        assert cluster.brokers[0].metrics_address is None
        assert cluster.name_servers[0].metrics_address is None
        taken = str(cluster.brokers[0].port)
        properties = {
            **ON,
            "metricsPromExporterPort": taken,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(cluster.directory / "other"),
        }
        broker = Broker(*broker_configs(properties, source="properties"))
        with pytest.raises(ConfigError, match="set another metricsPromExporterPort"):
            await broker.start()

"""`trace`: latencies, slow and failed messages of what real clients have traced."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.spark.audited import audited, balance, context_of, kinds
from tests.waits import SEND_WAIT_MS, WAIT_S

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, Producer, PushConsumer
from cometmq.errors import ConfigError
from cometmq.pipelines import trace
from cometmq.pipelines.page import write_page
from cometmq.pipelines.trace.report import Latency, Report
from cometmq.testing import Cluster

TOPIC, GROUP = "orders", "billing"
COUNT = 40
TRACE = "RMQ_SYS_TRACE_TOPIC"
# Consumed at the second attempt, and never.
LATER, NEVER = b"3", b"7"


def run_clients(namesrv: str) -> None:
    """Send COUNT messages and a batch of 3, all traced, and consume them, but for one."""
    wanted = {b"%d" % at for at in range(COUNT)} | {b"a", b"b", b"c"}
    wanted.remove(NEVER)
    failed: set[bytes] = set()
    complete = threading.Event()
    lock = threading.Lock()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        (message,) = messages
        with lock:
            if message.body == NEVER or (message.body == LATER and message.body not in failed):
                failed.add(message.body)
                raise ValueError("the listener's own error")
            wanted.discard(message.body)
            if not wanted and failed == {LATER, NEVER}:
                complete.set()
        return ConsumeResult.SUCCESS

    with Producer(
        "shop", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS, enable_trace=True
    ) as producer:
        for at in range(COUNT):
            producer.send(Message(TOPIC, b"%d" % at, keys=[f"O-{at}"]))
        producer.send_batch([Message(TOPIC, body) for body in (b"a", b"b", b"c")])
    consumer = PushConsumer(
        GROUP,
        listen,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        enable_trace=True,
    )
    consumer.subscribe(TOPIC)
    with consumer:
        assert complete.wait(WAIT_S), wanted


def damage_first_trace(spark: Any, store: Path) -> None:
    traces = spark.read.format("rocketmq-store").option("subscribe", TRACE)
    traces = traces.option("columns", "commit_log_offset").load(str(store))
    place = traces.agg({"commit_log_offset": "min"}).collect()[0][0]
    (log,) = [file for file in (store / "commitlog").iterdir() if int(file.name) == 0]
    with log.open("r+b") as file:
        file.seek(place + 4)
        file.write(bytes(4))


def by_measure(report: Report, topic: str = TOPIC) -> dict[str, Latency]:
    return {each.measure: each for each in report.latencies if each.topic == topic}


def test_latencies_of_real_clients_and_an_audit_by_their_traces(spark: Any, tmp_path: Path) -> None:
    # A failed message comes again at once, and is late for ever after the second time.
    levels = "1s 1s 1s 2h" + " 2h" * 14
    stores = tmp_path / "stores"
    with Cluster(directory=stores, properties={"messageDelayLevel": levels}) as cluster:
        run_clients(cluster.namesrv)
        context = context_of(spark, cluster)
        report = trace.run(trace.Config(topics=[TOPIC], slowest=5), context)
        audit = audited(
            context,
            topics=[TOPIC],
            groups=[GROUP],
            trace_topic=TRACE,
            delay_levels=levels,
        )
        traces = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
        traces.options(subscribe=TRACE, columns="all").load().write.parquet(
            str(tmp_path / "traces")
        )
        with pytest.raises(ConfigError, match="trace_topic names other, of which the brokers' log"):
            trace.run(trace.Config(trace_topic="other"), context)
    found = by_measure(report)
    assert {name: each.count for name, each in found.items()} == {
        # A batch is one send of three messages.
        "produce": COUNT + 3,
        "store": COUNT + 3,
        "deliver": COUNT + 3,
        # Two attempts at the one that came later, two at least at the one that never did.
        "consume": found["consume"].count,
    }
    assert found["consume"].count >= COUNT + 3 + 1
    assert {name: each.group for name, each in found.items()} == {
        "produce": "shop",
        "store": "shop",
        "deliver": GROUP,
        "consume": GROUP,
    }
    for each in found.values():
        assert 0 <= each.p50 <= each.p99 <= each.p999 <= each.most
        assert sum(each.histogram.values()) == each.count
        assert max(each.histogram) >= each.most
    (failure,) = report.failures
    assert (failure.kind, failure.topic, failure.group) == ("consume", TOPIC, GROUP)
    assert failure.code == "EXCEPTION"
    assert failure.count >= 2
    assert len(report.failed) == failure.count
    assert [each.measure for each in report.slowest] == [
        measure for measure in ("produce", "store", "deliver", "consume") for _ in range(5)
    ]
    assert report.events["Pub"] == COUNT + 3
    assert report.holds
    write_page(report, tmp_path / "trace.html")
    assert (tmp_path / "trace.html").read_text().count("<svg") == 1
    report.write_json(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["events"] == report.events

    assert balance(audit, TOPIC) == (COUNT + 3, COUNT + 3, None, {GROUP: COUNT + 2})
    # It depends on how far its second failure had come when the consumer left.
    ((what, cause),) = kinds(audit, TOPIC)
    assert what == f"stored, not consumed/{GROUP}"
    assert cause in ("waits to be consumed again", "not consumed yet")
    assert audit.holds

    # Archived traces without the messages: what the traces alone say.
    alone = trace.run(
        trace.Config(
            archive=str(tmp_path / "traces"), limits={"produce.p99": 1e-9, "consume.p50": 1e9}
        ),
        context_of(spark),
    )
    assert {name: each.count for name, each in by_measure(alone).items()} == {
        "produce": COUNT + 3,
        "deliver": COUNT + 3,
        "consume": found["consume"].count,
    }
    (broken,) = alone.broken or ["none"]
    assert found["produce"].p99 == 0 or broken.startswith("produce.p99 of orders, shop, is ")

    # The files of the broker that was stopped, one record of which is damaged.
    damage_first_trace(spark, stores / "broker-a")
    damaged = trace.run(
        trace.Config(topics=[TOPIC], stores={"broker-a": str(stores / "broker-a")}),
        context_of(spark),
    )
    assert [(gap.topic, gap.count, gap.cause) for gap in damaged.gaps] == [(TRACE, 1, "damage")]
    assert not damaged.holds
    assert ", 1 gone or damaged" in damaged.summary
    assert sum(damaged.events.values()) < sum(report.events.values())
    write_page(damaged, tmp_path / "damaged.html")
    assert "Gone or damaged" in (tmp_path / "damaged.html").read_text()


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_nothing_could_exceed_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=f"limits has produce.p99 = {limit}; it is a time in ms"):
        trace.Config(limits={"produce.p99": limit})

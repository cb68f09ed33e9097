"""The pipelines `trace` and `audit` on what Java's clients and brokers write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.clients import JavaClient
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.spark.audited import audited, balance, context_of, kinds

from cometmq.pipelines import trace
from cometmq.testing import Cluster

pytestmark = pytest.mark.interop

TOPIC, GROUP, TRACE = "orders", "billing", "RMQ_SYS_TRACE_TOPIC"
COUNT = 12


def test_traces_of_java_clients_at_a_java_broker_and_in_its_store(
    spark: Any, tmp_path: Path
) -> None:
    need("java", "mvn")
    store = tmp_path / "store"
    with (
        Cluster(brokers=0) as cluster,
        JavaBroker(cluster.namesrv, store=store, conf={"traceTopicEnable": "true"}) as broker,
    ):
        base: dict[str, Any] = {"namesrv": cluster.namesrv, "topic": TOPIC, "trace": True}
        java = JavaClient(5)
        java.produce(**base, group=GROUP, count=COUNT, tags="a,b", prefix="key")
        java.run("consume", **base, group=GROUP, expected=COUNT)
        report = trace.run(trace.Config(topics=[TOPIC]), context_of(spark, cluster))
        broker.stop()
    counts = {each.measure: (each.topic, each.group, each.count) for each in report.latencies}
    assert counts == dict.fromkeys(
        ("produce", "store", "deliver", "consume"), (TOPIC, GROUP, COUNT)
    )
    assert report.failures == []
    # Of the same broker's files: by traces, and by what the group has committed.
    settings: dict[str, Any] = {
        "topics": [TOPIC],
        "groups": [GROUP],
        "stores": {broker.broker_name: str(store)},
    }
    for more in ({"trace_topic": TRACE}, {}):
        audit = audited(context_of(spark), **settings, **more)
        assert balance(audit, TOPIC) == (COUNT, COUNT, None, {GROUP: COUNT})
        assert kinds(audit, TOPIC) == {}
        assert audit.holds

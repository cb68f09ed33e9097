"""Temporary views of topics: `cometmq.spark.views`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.archives import send

from cometmq.errors import IllegalArgumentError
from cometmq.spark import views
from cometmq.testing.cluster import Cluster


def count(spark: Any, view: str) -> int:
    found: int = spark.sql(f"SELECT count(*) AS n FROM {view}").collect()[0]["n"]
    return found


def test_each_topic_of_a_cluster_and_of_its_store_is_a_view(spark: Any) -> None:
    with Cluster() as cluster:
        namesrv = cluster.namesrv
        for topic, messages in (("orders", 4), ("orders-eu", 3), ("payments", 2)):
            send(namesrv, topic, messages)
        names = views(spark, namesrv=namesrv, topics="orders, payments")
        assert names == {"orders": "orders", "payments": "payments"}
        assert count(spark, "orders") == 4
        # A query reads what the topic has by then.
        send(namesrv, "orders", 5)
        assert count(spark, "orders") == 9
        joined = (
            "SELECT count(*) AS n FROM orders o JOIN payments p ON o.queue_offset = p.queue_offset"
        )
        assert spark.sql(joined).collect()[0]["n"] > 0
        names = views(spark, namesrv=namesrv, pattern="orders.*", prefix="live_", columns="all")
        assert names == {"orders": "live_orders", "orders-eu": "`live_orders-eu`"}
        assert count(spark, names["orders-eu"]) == 3
        assert "born_host" in spark.table(names["orders-eu"]).columns
        assert set(views(spark, namesrv=namesrv)) == {"orders", "orders-eu", "payments"}
        with pytest.raises(
            IllegalArgumentError, match=r"topics names ordres, .* did you mean orders"
        ):
            views(spark, namesrv=namesrv, topics=["ordres"])
        with pytest.raises(IllegalArgumentError, match=r"matches 'x\.\*'"):
            views(spark, namesrv=namesrv, pattern="x.*")
        cluster.call("stop_broker", 0)
        store = str(cluster.directory / "broker-a")
        names = views(spark, store=store, topics="orders", prefix="stored_", brokerName="broker-a")
        assert count(spark, names["orders"]) == 9
        rows = spark.sql("SELECT DISTINCT broker FROM stored_orders").collect()
        assert [row["broker"] for row in rows] == ["broker-a"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give one of namesrv and store"),
        ({"namesrv": "127.0.0.1:1", "store": "/data"}, "give one of namesrv and store"),
        ({"namesrv": "127.0.0.1:1", "topics": "a", "pattern": "b"}, "give one of them"),
        ({"namesrv": "127.0.0.1:1", "secretKey": "x"}, "secretKey"),
    ],
)
def test_values_that_do_not_fit(given: dict[str, Any], said: str) -> None:
    with pytest.raises(IllegalArgumentError, match=said):
        views(None, **given)


def test_topics_that_differ_in_case_only_are_refused(spark: Any, cluster: Cluster) -> None:
    for topic in ("Cases", "cases"):
        send(cluster.namesrv, topic, 1)
    with pytest.raises(IllegalArgumentError, match="Cases and cases would have one view"):
        views(spark, namesrv=cluster.namesrv, topics=["Cases", "cases"])

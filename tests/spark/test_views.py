"""Temporary views of topics: `cometmq.spark.views`, and the programs and queries of docs/sql.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_snippets import of
from tests.spark.archives import send
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.errors import IllegalArgumentError
from cometmq.spark import views
from cometmq.testing.cluster import Cluster

ROOT = Path(__file__).parents[2]


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
        # The first query fixes what all later ones read.
        send(namesrv, "orders", 5)
        assert count(spark, "orders") == 4
        views(spark, namesrv=namesrv, topics="orders")
        assert count(spark, "orders") == 9
        joined = (
            "SELECT count(*) AS n FROM orders o JOIN payments p ON o.queue_offset = p.queue_offset"
        )
        assert spark.sql(joined).collect()[0]["n"] > 0
        names = views(spark, namesrv=namesrv, pattern="orders.*", prefix="live_", columns="all")
        assert names == {"orders": "live_orders", "orders-eu": "`live_orders-eu`"}
        assert count(spark, names["orders-eu"]) == 3
        assert "born_host" in spark.table(names["orders-eu"]).columns
        with pytest.raises(
            IllegalArgumentError, match=r"topics names ordres, .* did you mean orders"
        ):
            views(spark, namesrv=namesrv, topics=["ordres"])
        with pytest.raises(IllegalArgumentError, match=r"matches pattern, which is 'x\.\*'"):
            views(spark, namesrv=namesrv, pattern="x.*")
        cluster.call("stop_broker", 0)
        store = str(cluster.directory / "broker-a")
        names = views(spark, store=store, topics="orders", prefix="stored_", brokerName="broker-a")
        assert count(spark, names["orders"]) == 9
        rows = spark.sql("SELECT DISTINCT broker FROM stored_orders").collect()
        assert [row["broker"] for row in rows] == ["broker-a"]


def test_the_programs_and_queries_of_the_page_run(spark: Any) -> None:
    with Cluster() as cluster:
        with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for number in range(4):
                body = b'{"customer": "c-%d"}' % (number % 2)
                producer.send(Message("orders", body, keys=[f"O-{number}"]))
            producer.send(Message("payments", b"x", keys=["O-2"]))
        live, stored = of("docs/sql.md")
        scope: dict[str, Any] = {}
        exec(live.replace("127.0.0.1:9876", cluster.namesrv), scope)
        # Streams of other tests may have left a session of theirs as the active one; views are the session's own.
        spark = scope["spark"]
        page = (ROOT / "docs" / "sql.md").read_text()
        (queries,) = re.findall(r"^```sql\n(-- Fields.*?)^```$", page, re.MULTILINE | re.DOTALL)
        fields, minutes, unpaid, places = [
            spark.sql(text).collect() for text in queries.split(";") if text.strip()
        ]
        assert {tuple(row) for row in fields} == {("c-0", 2), ("c-1", 2)}
        assert sum(row["messages"] for row in minutes) == 4
        assert {row["id"] for row in unpaid} == {"O-0", "O-1", "O-3"}
        assert sum(row["last"] - row["first"] + 1 for row in places) == 4
        cluster.call("stop_broker", 0)
        exec(stored.replace("/data/store", str(cluster.directory / "broker-a")), scope)
        assert count(spark, "stored_orders") == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give one of namesrv and store"),
        ({"namesrv": "127.0.0.1:1", "store": "/data"}, "give one of namesrv and store"),
        (
            {"namesrv": "127.0.0.1:1", "topics": "a", "pattern": "b"},
            "give one of topics and pattern",
        ),
        ({"namesrv": "127.0.0.1:1"}, "give one of topics and pattern"),
        ({"namesrv": "127.0.0.1:1", "topics": "a", "secretKey": "x"}, "secretKey"),
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

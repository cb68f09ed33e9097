"""The programs of docs/spark.md, docs/spark-options.md and docs/pipelines.md run, on one Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_snippets import of

from cometmq import AdminClient, Message, Producer
from cometmq.testing import Cluster


def test_the_programs_of_the_guides_to_spark_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.functions import col

    monkeypatch.chdir(tmp_path)  # for what a program writes beside itself
    # Programs name the source once more: what they read is made first.
    batch, stream, store, write, write_stream, decode = of("docs/spark.md")
    lag, group_lag = of("docs/spark-options.md")
    [archive] = of("docs/pipelines.md")
    with Cluster() as cluster:
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            for topic in ("orders", "orders-eu"):
                for number in range(3):
                    producer.send(Message(topic, b"%d" % number, tags="paid"), key=number)

        with AdminClient(cluster.namesrv) as admin:
            admin.groups.create("orders-archive")  # Spark commits for a group that exists

        def run(code: str, **names: Any) -> dict[str, Any]:
            here = code.replace("127.0.0.1:9876", cluster.namesrv).replace("/data/", f"{tmp_path}/")
            scope = {"spark": spark, **names}
            exec(compile(here, "a guide", "exec"), scope)
            return scope

        orders = run(batch)["orders"]
        assert orders.count() == 3
        query = run(stream)["query"]
        query.processAllAvailable()
        query.stop()
        assert spark.read.parquet(str(tmp_path / "orders")).count() == 3
        keyed = orders.select(
            "*", col("tags").alias("sharding_key"), col("born_time").alias("created")
        )
        run(write, orders=keyed)
        assert run(batch)["orders"].count() == 6
        rows = (
            spark.readStream.format("rate")
            .load()
            .selectExpr("encode(string(value), 'UTF-8') as body")
        )
        writing = run(write_stream, rows=rows.limit(2))["query"]
        writing.stop()
        body = b'encode(\'{"id":"O-1","cents":5}\', \'UTF-8\')'.decode()
        given = orders.selectExpr("queue_offset", f"{body} AS body")
        found = run(decode, orders=given)
        assert [tuple(row) for row in found["paid"].collect()] == [("O-1", 5 * given.count())]
        assert found["bad"].count() == 0
        run(archive)
        assert (tmp_path / "archive" / "data").is_dir()
        assert (
            run(group_lag.replace('"billing"', '"orders-archive"'))["billing"].progress is not None
        )
        listener = run(lag.replace("9404", "0"))["lag"]
        spark.streams.removeListener(listener)
        cluster.call("stop_broker", 0)
        of_store = f"stored = {store}".replace("/data/store", str(cluster.directory / "broker-a"))
        assert run(of_store)["stored"].count() == 6

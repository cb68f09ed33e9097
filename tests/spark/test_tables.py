"""Statements with tables of Spark's catalog: none sends anything, and each says what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.sink_rows import awaited_messages, make_topic, messages_of

from cometmq.testing.cluster import Cluster

pytestmark = [pytest.mark.timeout(1500), pytest.mark.cluster()]

REMEDY = r"(?s)write CREATE TEMPORARY VIEW .* to read in SQL, and df\.write.*save\(\) to send"


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    yield "orders_table"
    spark.sql("DROP TABLE IF EXISTS orders_table")


def options_of(cluster: Cluster) -> dict[str, str]:
    make_topic(cluster.namesrv, "orders")
    return {"namesrv": cluster.namesrv, "topic": "orders"}


SAVES: dict[str, Callable[[Any, dict[str, str], str], None]] = {
    "saveAsTable": lambda frame, options, table: (
        frame.write.format("rocketmq").options(**options).saveAsTable(table)
    ),
    "saveAsTable append": lambda frame, options, table: (
        frame.write.format("rocketmq").mode("append").options(**options).saveAsTable(table)
    ),
    "create": lambda frame, options, table: (
        frame.writeTo(table).using("rocketmq").options(**options).create()
    ),
}


@pytest.mark.parametrize("how", SAVES)
def test_a_frame_saved_as_a_table_sends_nothing_and_leaves_no_table(
    spark: Any, cluster: Cluster, table: str, how: str
) -> None:
    options = options_of(cluster)
    before = len(messages_of(cluster.namesrv, "orders"))
    frame = spark.range(3).selectExpr("cast(id as string) as body")
    with pytest.raises(Exception, match="nothing is sent, because saveAsTable") as caught:
        SAVES[how](frame, options, table)
    caught.match(REMEDY)
    assert len(messages_of(cluster.namesrv, "orders")) == before
    assert not spark.catalog.tableExists(table)


def test_sql_with_tables_says_what_to_write(spark: Any, cluster: Cluster, table: str) -> None:
    options = options_of(cluster)
    before = len(messages_of(cluster.namesrv, "orders"))
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    with pytest.raises(Exception, match=REMEDY):
        spark.sql(f"CREATE TABLE {table} USING rocketmq OPTIONS ({given}) AS SELECT 'x' AS body")
    assert not spark.catalog.tableExists(table)
    # Spark asks nobody whether it may make this one.
    spark.sql(f"CREATE TABLE {table} (body STRING) USING rocketmq OPTIONS ({given})")
    with pytest.raises(Exception, match=REMEDY):
        spark.sql(f"INSERT INTO {table} VALUES ('x')")
    with pytest.raises(Exception, match=REMEDY):
        spark.sql("SELECT 'x' AS body").write.insertInto(table)
    with pytest.raises(Exception, match=REMEDY):
        spark.sql(f"SELECT * FROM {table}").collect()
    assert len(messages_of(cluster.namesrv, "orders")) == before


def test_a_function_of_foreach_batch_sends_all_the_same(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    """Its writes are executions within another one, too."""
    options = options_of(cluster) | {"topic": "batches"}
    make_topic(cluster.namesrv, "batches")
    spark.range(5).selectExpr("cast(id as string) as body").write.parquet(str(tmp_path / "rows"))

    def send(batch: Any, _: int) -> None:
        batch.write.format("rocketmq").mode("append").options(**options).save()

    rows = spark.readStream.schema("body string").parquet(str(tmp_path / "rows"))
    query = rows.writeStream.foreachBatch(send).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert len(awaited_messages(cluster.namesrv, "batches", 5)) == 5

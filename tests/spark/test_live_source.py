"""The source `rocketmq` as a batch, against what the broker gives message by message."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.rows import by_place, pulled_rows, rows_of
from tests.waits import SEND_WAIT_MS

from cometmq import AdminClient, Message, MessageQueue, Producer
from cometmq.spark.rows.columns import DEFAULT_COLUMNS
from cometmq.testing.cluster import Cluster

TOPICS = ("orders", "payments")
COUNT = 900


def send_all(namesrv: str) -> None:
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(COUNT):
            producer.send(
                Message(
                    TOPICS[at % 3 == 0],
                    b"body %d " % at * (at % 7 * 100 + 1),
                    tags=("paid", "open", "late", None)[at % 4],
                    keys=[f"O-{at}", f"C-{at % 10}"][: at % 4],
                    properties={"color": "röt", "amount": str(at)} if at % 5 == 0 else {},
                    flag=at,
                )
            )


pytestmark = pytest.mark.cluster(
    properties={"enablePropertyFilter": "true", "mappedFileSizeCommitLog": str(256 * 1024)}
)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    send_all(cluster.namesrv)
    return cluster


def all_rows(namesrv: str) -> list[dict[str, Any]]:
    return by_place(
        [
            row
            for topic in TOPICS
            for queue_id in range(4)
            for row in pulled_rows(namesrv, MessageQueue(topic, "broker-a", queue_id))
        ]
    )


@pytest.fixture(scope="module")
def rows(cluster: Cluster) -> list[dict[str, Any]]:
    rows = all_rows(cluster.namesrv)
    assert len(rows) == COUNT
    return rows


def frame(spark: Any, namesrv: str, **options: Any) -> Any:
    reader = spark.read.format("rocketmq").option("namesrv", namesrv)
    if not options.keys() & {"subscribe", "subscribePattern", "assign"}:
        options["subscribe"] = ",".join(TOPICS)
    options.setdefault("columns", "all")
    return reader.options(**options).load()


def read(spark: Any, cluster: Cluster, **options: Any) -> list[dict[str, Any]]:
    return rows_of(frame(spark, cluster.namesrv, **options).toArrow())


def test_every_column_is_that_of_the_message(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    assert by_place(read(spark, cluster)) == rows


def test_only_the_columns_that_describe_the_message_come_unless_others_are_asked_for(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    for asked, names in (
        ("default", DEFAULT_COLUMNS),
        ("default, sys_flag", (*DEFAULT_COLUMNS, "sys_flag")),
        ("tags,queue_offset,topic,queue_id", ("tags", "queue_offset", "topic", "queue_id")),
    ):
        found = frame(spark, cluster.namesrv, columns=asked).toArrow()
        assert found.column_names == list(names)
        assert by_place(rows_of(found)) == [{name: row[name] for name in names} for row in rows]
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
    assert reader.option("subscribe", "orders").load().columns == list(DEFAULT_COLUMNS)
    stream = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv)
    assert stream.option("subscribe", "orders").load().columns == list(DEFAULT_COLUMNS)


@pytest.mark.parametrize("count", [3, 25])
def test_however_it_is_split_each_offset_comes_once(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]], count: int
) -> None:
    found = frame(spark, cluster.namesrv, minPartitions=count)
    assert found.rdd.getNumPartitions() >= count
    places = [tuple(row) for row in found.select("topic", "queue_id", "queue_offset").collect()]
    assert sorted(places) == [(r["topic"], r["queue_id"], r["queue_offset"]) for r in rows]


def test_ranges_by_offset_for_each_queue(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    high = max(r["queue_offset"] for r in rows if r["topic"] == "orders" and r["queue_id"] == 3) + 1
    found = read(
        spark,
        cluster,
        assign='{"orders": {"broker-a": [1, 3]}}',
        startingOffsets='{"orders": {"broker-a": {"1": 17, "3": -2}}}',
        endingOffsets='{"orders": {"broker-a": {"1": 17, "3": -1}}}',
    )
    assert found == [r for r in rows if r["topic"] == "orders" and r["queue_id"] == 3]
    assert len(found) == high


def test_ranges_by_time(spark: Any, cluster: Cluster, rows: list[dict[str, Any]]) -> None:
    times = sorted({row["store_time"] for row in rows})
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    wanted = [row for row in rows if low <= row["store_time"] < high]
    found = read(spark, cluster, startingTimestamp=low, endingTimestamp=high)
    assert by_place(found) == wanted
    assert wanted
    begin = f"timestamp_millis({low})"
    filtered = frame(spark, cluster.namesrv).where(
        f"store_time >= {begin} and store_time < timestamp_millis({high})"
    )
    assert by_place(rows_of(filtered.toArrow())) == wanted


def test_the_broker_selects_by_tags_and_sql(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    by_tags = read(spark, cluster, tags="paid || late", minPartitions=20)
    assert by_place(by_tags) == [row for row in rows if row["tags"] in ("paid", "late")]
    by_sql = read(spark, cluster, sqlFilter="amount > 300 AND color = 'röt'", minPartitions=20)
    wanted = [r for r in rows if int(dict(r["properties"]).get("amount", 0)) > 300]
    assert by_place(by_sql) == wanted


def test_filters_are_pushed_down_and_change_nothing(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    found = frame(spark, cluster.namesrv, minPartitions=16, pushFilters=True).where(
        "topic = 'orders' and queue_id in (0, 3) and queue_offset between 5 and 60 "
        "and tags in ('paid', 'open')"
    )
    # Two queues are left of eight.
    assert found.rdd.getNumPartitions() <= 17
    assert by_place(rows_of(found.toArrow())) == [
        row
        for row in rows
        if row["topic"] == "orders"
        and row["queue_id"] in (0, 3)
        and 5 <= row["queue_offset"] <= 60
        and row["tags"] in ("paid", "open")
    ]


def test_a_filter_on_the_topic_keeps_rows_of_a_light_queue(spark: Any, tmp_path: Path) -> None:
    """A Java broker's `%LMQ%` queue refers to records, which name the topic they were sent to."""
    light = "%LMQ%mine"
    with Cluster(directory=tmp_path) as cluster:
        with AdminClient(namesrv=cluster.namesrv) as admin:
            admin.topics.create("orders", read_queues=1, write_queues=1)
        with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for at in range(5):
                producer.send(Message("orders", b"%d" % at))
    (queues,) = tmp_path.rglob("consumequeue")
    shutil.copytree(queues / "orders", queues / light)
    with Cluster(directory=tmp_path) as cluster:
        with AdminClient(namesrv=cluster.namesrv) as admin:
            admin.topics.create(light, read_queues=1, write_queues=1)
        found = frame(spark, cluster.namesrv, subscribe=light, pushFilters=True)
        for condition in ("topic = 'orders'", "queue_id = 0", "queue_offset >= 0"):
            assert found.where(condition).count() == 5, condition


def test_a_frame_that_is_used_twice_has_all_of_its_rows(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    """Spark keeps what a Python source planned for the filters of another use."""
    whole = frame(spark, cluster.namesrv)
    of_queue = {at: len([row for row in rows if row["queue_id"] == at]) for at in (0, 1)}
    first, second = whole.where("queue_id = 0"), whole.where("queue_id = 1")
    assert first.count() == of_queue[0]
    assert whole.count() == len(rows)
    assert first.union(second).count() == of_queue[0] + of_queue[1]


def test_without_push_down_the_source_works_too(
    spark: Any, cluster: Cluster, rows: list[dict[str, Any]]
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        found = frame(spark, cluster.namesrv).where("queue_id = 2").count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert found == len([row for row in rows if row["queue_id"] == 2])


def test_tags_of_delayed_messages_are_selected_though_brokers_cannot(
    spark: Any, cluster: Cluster
) -> None:
    with Producer("delaying", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(6):
            producer.send(Message("later", b"x", tags=("paid", "open")[at % 2], delay_level=18))
    waiting = frame(spark, cluster.namesrv, subscribe="SCHEDULE_TOPIC_XXXX")
    assert waiting.where("tags = 'paid'").count() == 3
    chosen = frame(spark, cluster.namesrv, subscribe="SCHEDULE_TOPIC_XXXX", tags="open")
    assert chosen.count() == 3


def test_an_empty_range_has_no_rows(spark: Any, cluster: Cluster) -> None:
    assert read(spark, cluster, startingOffsets="latest") == []


def test_a_broker_that_restarts_meanwhile_costs_no_row(
    spark: Any, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    with Cluster(directory=tmp_path) as own:
        send_all(own.namesrv)
        found = frame(spark, own.namesrv, minPartitions=40)
        done = threading.Event()

        def restart() -> None:
            while not done.wait(1):
                own.call("restart_broker", 0)

        thread = threading.Thread(target=restart)
        thread.start()
        try:
            places = found.select("topic", "queue_id", "queue_offset", "flag").collect()
        finally:
            done.set()
            thread.join()
        wanted = all_rows(own.namesrv)
    assert sorted(map(tuple, places)) == [
        (row["topic"], row["queue_id"], row["queue_offset"], row["flag"]) for row in wanted
    ]


# Messages that are gone


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker whose oldest file of the log was removed."""
    directory = tmp_path_factory.mktemp("short")
    properties = {"mappedFileSizeCommitLog": str(256 * 1024)}
    with Cluster(directory=directory, properties=properties) as cluster:
        send_all(cluster.namesrv)
        cluster.call("stop_broker", 0)
        (directory / "broker-a" / "commitlog" / f"{0:020d}").unlink()
        cluster.call("start_broker", 0)
        yield cluster


START = {topic: {"broker-a": {str(queue): 0 for queue in range(4)}} for topic in TOPICS}


def test_messages_that_are_gone_fail_the_read(spark: Any, shortened: Cluster) -> None:
    found = frame(spark, shortened.namesrv, startingOffsets=json.dumps(START))
    with pytest.raises(
        Exception, match=r"offsets 0 to \d+ of orders@broker-a:\d \(retention\) are"
    ):
        found.rdd.getNumPartitions()


def test_messages_that_are_gone_are_noted(spark: Any, shortened: Cluster, tmp_path: Path) -> None:
    options = {"failOnDataLoss": "false", "gapLog": str(tmp_path / "gaps")}
    found = read(spark, shortened, startingOffsets=json.dumps(START), **options)
    gaps = spark.read.json(str(tmp_path / "gaps")).collect()
    assert {gap.cause for gap in gaps} == {"retention"}
    assert {gap.topic for gap in gaps} == set(TOPICS)
    assert sum(gap["count"] for gap in gaps) + len(found) == COUNT
    assert {(g.topic, g.queue_id, g.end) for g in gaps} == {
        (
            topic,
            queue,
            min(r["queue_offset"] for r in found if (r["topic"], r["queue_id"]) == (topic, queue)),
        )
        for topic, queue in {(r["topic"], r["queue_id"]) for r in found}
    }


def test_of_a_range_that_is_gone_as_a_whole_no_more_is_noted_than_was_asked_for(
    spark: Any, shortened: Cluster, tmp_path: Path
) -> None:
    end = {"orders": {"broker-a": {str(queue): 3 for queue in range(4)}}}
    options = {
        "subscribe": "orders",
        "startingOffsets": json.dumps({"orders": START["orders"]}),
        "endingOffsets": json.dumps(end),
    }
    with pytest.raises(Exception, match=r"offsets 0 to 2 of orders@broker-a:0 \(retention\) are"):
        read(spark, shortened, **options)
    gaps = {"failOnDataLoss": "false", "gapLog": (tmp_path / "gaps").as_uri()}
    assert read(spark, shortened, **options, **gaps) == []
    noted = spark.read.json(str(tmp_path / "gaps")).collect()
    assert {(g.queue_id, g.start, g.end, g["count"]) for g in noted} == {
        (queue, 0, 3, 3) for queue in range(4)
    }


# What is refused on the driver


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"subscribe": "refunds"},
            "knows a route of topic refunds; there are .*orders.* updateTopic .* -t refunds,",
        ),
        (
            {"subscribe": "oders,orders"},
            r"knows a route of topic oders; did you mean orders\? Correct the name, or make",
        ),
        ({"subscribePattern": "x.*"}, "no topic matches subscribePattern 'x"),
        ({"subscribe": "a b"}, "a b"),
        (
            {"assign": '{"orders": {"broker-a": [9]}}'},
            "assign names orders@broker-a:9.* there are orders@",
        ),
        ({"assign": "[1]"}, "the option assign .* does not fit: Expected `object`"),
        ({"assign": "{}"}, "names no queue"),
        ({"subscribe": "orders", "assign": "{}"}, "not several"),
        ({"startingOffsets": "first"}, "the option startingOffsets .* does not fit"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 1}}}'}, "says nothing of orders@"),
        ({"startingOffsets": '{"x": {"broker-a": {"0": 1}}}'}, "names x@broker-a:0, which are not"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": -5}}}'}, "the offset -5"),
        (
            {
                "assign": '{"orders": {"broker-a": [0]}}',
                "endingOffsets": '{"orders": {"broker-a": {"0": 99999}}}',
            },
            r"the offset 99999, its queue ends at \d+: give that at most",
        ),
        (
            {"startingOffsets": "latest", "endingOffsets": "earliest"},
            "it would end before it starts",
        ),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "not several"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "not be before startingTimestamp, 6"),
        (
            {"failOnDataLoss": "false", "gapLog": "s3a://gaps/x"},
            "gapLog .* is s3a://gaps/x; .* path",
        ),
        ({"startingTimestamp": "yesterday"}, "must be ms since the epoch or a time such as"),
        ({"tags": "a", "sqlFilter": "b = 1"}, "not several"),
        ({"sqlFilter": "b = = 1"}, "b = = 1|line 1"),
        ({"maxMessagesPerTrigger": "5"}, "is for a stream, not a batch"),
        ({"commitGroup": "g"}, "is for a stream, not a batch"),
        ({"tag": "a"}, "no option tag; did you mean tags"),
        ({"columns": "body,tag"}, r"columns .* names 'tag' \(did you mean tags\?\); columns are"),
        ({"columns": "body,all"}, "is 'body,all', which names body more than once"),
        ({"columns": " "}, "columns .* is empty; give it a value"),
        ({"namesrv": "nowhere"}, "'nowhere' is no name-server address"),
        ({"namesrv": "127.0.0.1:1"}, "no name server of 127.0.0.1:1 answers"),
    ],
)
def test_what_does_not_fit_is_said_before_the_job(
    spark: Any, cluster: Cluster, options: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=text):
        frame(spark, options.pop("namesrv", cluster.namesrv), **options).rdd.getNumPartitions()


@pytest.mark.parametrize("source", ["rocketmq", "rocketmq-store"])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("password", "has no option password"),
        ("secretKey", r"secret[kK]ey .* give secretKeyFile"),
    ],
)
def test_what_is_written_into_a_wrong_option_is_not_repeated(
    spark: Any, source: str, option: str, text: str
) -> None:
    reader = spark.read.format(source).option(option, "hunter2")
    if source == "rocketmq-store":
        reader = reader.option("path", "/tmp")

    def ask() -> None:
        frame = reader.load()
        # A secret does not even get into a plan.
        if option != "secretKey":
            frame.rdd.getNumPartitions()

    with pytest.raises(Exception, match=text) as caught:
        ask()
    assert "hunter2" not in str(caught.value)


def test_who_reads_does_not_wait_for_the_import_of_the_sink() -> None:
    look = (
        "import sys, cometmq.spark.live.source; print('cometmq.spark.sink.writer' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


def test_a_source_without_topics(spark: Any, cluster: Cluster) -> None:
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
    with pytest.raises(Exception, match="one of the options subscribe, subscribePattern and"):
        reader.load().rdd.getNumPartitions()
    with pytest.raises(Exception, match="needs the option namesrv, for example"):
        spark.read.format("rocketmq").option("subscribe", "orders").load().rdd.getNumPartitions()

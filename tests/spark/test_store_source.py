"""The source `rocketmq-store` against what the broker itself gives of the same messages."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.golden.golden import unpack_store
from tests.spark.rows import by_place, pulled_rows, rows_of
from tests.waits import SEND_WAIT_MS

from cometmq import Message, MessageQueue, Producer
from cometmq.protocol.messages.record import decode_record
from cometmq.spark.rows.columns import DEFAULT_COLUMNS
from cometmq.testing.cluster import Cluster

TOPICS = ("orders", "payments")
COUNT = 600


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A store that a broker left behind, of several files, and the rows it gave."""
    directory = tmp_path_factory.mktemp("stores")
    properties = {"mappedFileSizeCommitLog": str(256 * 1024)}
    with Cluster(directory=directory, properties=properties) as cluster:
        with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for at in range(COUNT):
                message = Message(
                    TOPICS[at % 3 == 0],
                    b"body %d " % at * (at % 7 * 100 + 1),
                    tags=("paid", "open", None)[at % 3],
                    keys=[f"O-{at}", f"C-{at % 10}"][: at % 4],
                    properties={"color": "röt"} if at % 5 == 0 else {},
                    flag=at,
                )
                producer.send(message)
        rows = [
            row
            for topic in TOPICS
            for queue_id in range(4)
            for row in pulled_rows(cluster.namesrv, MessageQueue(topic, "broker-a", queue_id))
        ]
    assert len(rows) == COUNT
    return directory / "broker-a", rows


@pytest.fixture
def store(written: tuple[Path, list[dict[str, Any]]]) -> Path:
    return written[0]


@pytest.fixture
def rows(written: tuple[Path, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return by_place(written[1])


def frame(spark: Any, path: Path | str, **options: Any) -> Any:
    reader = spark.read.format("rocketmq-store").option("brokerName", "broker-a")
    options.setdefault("columns", "all")
    return reader.options(**options).load(str(path))


def read(spark: Any, path: Path, **options: Any) -> list[dict[str, Any]]:
    return rows_of(frame(spark, path, **options).toArrow())


def test_the_rows_of_topics_are_those_that_the_broker_gives(
    spark: Any, store: Path, rows: list[dict[str, Any]]
) -> None:
    assert by_place(read(spark, store, subscribe="orders, payments", checkCrc="true")) == rows


def test_a_queue_comes_in_its_order(spark: Any, store: Path, rows: list[dict[str, Any]]) -> None:
    found = frame(spark, store, subscribePattern="ord.*").where("queue_id = 1").toArrow()
    wanted = [row for row in rows if row["topic"] == "orders" and row["queue_id"] == 1]
    assert rows_of(found) == wanted


def test_without_a_topic_the_rows_are_the_whole_log(
    spark: Any, store: Path, rows: list[dict[str, Any]]
) -> None:
    found = [row for row in read(spark, store) if row["topic"] in TOPICS]
    assert by_place(found) == rows


@pytest.mark.parametrize("count", [1, 7, 50])
@pytest.mark.parametrize("topics", [{}, {"subscribe": "orders,payments"}], ids=["log", "queues"])
def test_however_it_is_split_each_row_comes_once(
    spark: Any, store: Path, rows: list[dict[str, Any]], topics: dict[str, str], count: int
) -> None:
    found = frame(spark, store, minPartitions=count, **topics)
    assert found.rdd.getNumPartitions() >= min(count, 50)
    places = [
        (row.topic, row.queue_id, row.queue_offset)
        for row in found.select("topic", "queue_id", "queue_offset").collect()
        if row.topic in TOPICS
    ]
    assert sorted(places) == [(r["topic"], r["queue_id"], r["queue_offset"]) for r in rows]


def test_filters_change_nothing_but_what_is_read(
    spark: Any, store: Path, rows: list[dict[str, Any]]
) -> None:
    found = (
        frame(spark, store, subscribe="orders,payments", pushFilters=True)
        .where("topic = 'orders' and queue_id in (0, 3) and queue_offset between 5 and 20")
        .where("tags <> 'paid'")
    )
    wanted = [
        row
        for row in rows
        if row["topic"] == "orders"
        and row["queue_id"] in (0, 3)
        and 5 <= row["queue_offset"] <= 20
        and row["tags"] not in (None, "paid")
    ]
    assert by_place(rows_of(found.toArrow())) == wanted
    assert wanted
    assert frame(spark, store, subscribe="orders").where("queue_offset > 99999").count() == 0


@pytest.mark.parametrize("reader", ["python", "auto"])
def test_a_frame_that_is_used_twice_has_all_of_its_rows(
    spark: Any, store: Path, rows: list[dict[str, Any]], reader: str
) -> None:
    """Spark keeps what a Python source planned for the filters of another use."""
    whole = frame(spark, store, subscribe="orders", reader=reader)
    orders = [row["queue_id"] for row in rows if row["topic"] == "orders"]
    first, second = whole.where("queue_id = 0"), whole.where("queue_id = 1")
    assert first.count() == orders.count(0)
    assert whole.count() == len(orders)
    assert first.union(second).count() == orders.count(0) + orders.count(1)


def test_after_a_crash_the_log_is_read_in_place_of_the_queues(
    spark: Any, store: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    (copy / "abort").touch()
    for path in (copy / "consumequeue" / "orders" / "0").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert by_place(read(spark, copy, subscribe="orders,payments")) == rows


def test_a_log_that_is_spread_over_directories(
    spark: Any, store: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    rest = tmp_path / "rest"
    shutil.copytree(store, rest, ignore=shutil.ignore_patterns("commitlog"))
    directories = [tmp_path / "log-0", tmp_path / "log-1"]
    for directory in directories:
        directory.mkdir()
    for at, path in enumerate(sorted((store / "commitlog").iterdir())):
        shutil.copy(path, directories[at % 2])
    spread = ", ".join([directories[1].as_uri(), str(directories[0])])
    reader = spark.read.format("rocketmq-store").option("brokerName", "broker-a")
    reader = reader.options(commitLogPath=spread, columns="all")
    # As Hadoop writes paths.
    chosen = reader.option("subscribe", "orders,payments").load(rest.as_uri())
    assert by_place(rows_of(chosen.toArrow())) == rows
    everything = frame(spark, rest, commitLogPath=spread, minPartitions=9).toArrow()
    assert by_place([row for row in rows_of(everything) if row["topic"] in TOPICS]) == rows


def test_a_java_store(spark: Any, tmp_path: Path) -> None:
    root = unpack_store(tmp_path)
    everything = frame(spark, root).orderBy("commit_log_offset").toArrow().to_pylist()
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    assert everything
    for row in everything:
        record = decode_record(log, row["commit_log_offset"])
        assert (row["topic"], row["queue_id"]) == (record.topic, record.queue_id)
    topic = max({row["topic"] for row in everything if not row["topic"].startswith("rmq_sys")})
    by_topic = read(spark, root, subscribe=topic)
    assert {row["commit_log_offset"] for row in by_topic} == {
        row["commit_log_offset"] for row in everything if row["topic"] == topic
    }


def test_columns_that_the_schema_leaves_out_are_not_made(
    spark: Any, store: Path, rows: list[dict[str, Any]]
) -> None:
    reader = spark.read.format("rocketmq-store").schema("tags string, queue_offset bigint")
    found = reader.option("subscribe", "orders").load(str(store)).toArrow()
    assert found.column_names == ["tags", "queue_offset"]
    assert found.num_rows == len([row for row in rows if row["topic"] == "orders"])
    with pytest.raises(Exception, match="columns asks for body, but the schema for tags, queue_of"):
        reader.options(subscribe="orders", columns="body").load(str(store)).count()
    plain = spark.read.format("rocketmq-store").option("subscribe", "orders").load(str(store))
    assert plain.columns == list(DEFAULT_COLUMNS)
    few = frame(spark, store, subscribe="orders", columns="default,body_crc").toArrow()
    assert few.column_names == [*DEFAULT_COLUMNS, "body_crc"]
    wanted = [row for row in rows if row["topic"] == "orders"]
    assert by_place(rows_of(few)) == [{n: row[n] for n in few.column_names} for row in wanted]


# Damage


@pytest.fixture
def damaged(store: Path, rows: list[dict[str, Any]], tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy in which the body of one message has changed, and the message."""
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    row = next(row for row in rows if row["topic"] == "orders" and row["queue_offset"] == 7)
    base = row["commit_log_offset"] // (256 * 1024) * (256 * 1024)
    path = copy / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[row["commit_log_offset"] - base + 90] ^= 1
    path.write_bytes(data)
    return copy, row


@pytest.mark.parametrize("topics", [{}, {"subscribe": "orders"}], ids=["log", "queues"])
def test_a_body_that_contradicts_its_crc_fails_the_read(
    spark: Any, damaged: tuple[Path, dict[str, Any]], topics: dict[str, str]
) -> None:
    path, row = damaged
    assert len(read(spark, path, **topics)) >= 400 - 200
    with pytest.raises(Exception, match=f"no record is at offset {row['commit_log_offset']} "):
        read(spark, path, checkCrc="true", **topics)


@pytest.mark.parametrize("topics", [{}, {"subscribe": "orders"}], ids=["log", "queues"])
def test_what_is_left_out_is_noted(
    spark: Any,
    damaged: tuple[Path, dict[str, Any]],
    topics: dict[str, str],
    rows: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    path, row = damaged
    gaps = tmp_path / "gaps"
    options = {"checkCrc": "true", "failOnDataLoss": "false", "gapLog": str(gaps), **topics}
    for _ in range(2):
        found = [r for r in read(spark, path, **options) if r["topic"] == "orders"]
    wanted = [r for r in rows if r["topic"] == "orders" and r != row]
    assert by_place(found) == wanted
    (gap,) = spark.read.json(str(gaps)).collect()
    assert gap.cause == "damage"
    if topics:
        assert (gap.topic, gap.queue_id, gap.start) == ("orders", row["queue_id"], 7)
        assert (gap.end, gap["count"]) == (8, 1)
    else:
        assert gap.start == row["commit_log_offset"]


def test_a_file_that_is_missing_in_the_middle_of_the_log(
    spark: Any, store: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    copy, gaps, size = tmp_path / "store", tmp_path / "gaps", 256 * 1024
    shutil.copytree(store, copy)
    (copy / "commitlog" / f"{size:020d}").unlink()
    with pytest.raises(Exception, match=f"no record is at offset {size} where one belongs"):
        frame(spark, copy).rdd.getNumPartitions()
    found = read(spark, copy, failOnDataLoss="false", gapLog=str(gaps))
    wanted = [r for r in rows if r["commit_log_offset"] // size != 1]
    assert by_place([row for row in found if row["topic"] in TOPICS]) == wanted
    (gap,) = spark.read.json(str(gaps)).collect()
    assert (gap.start, gap.end, gap["count"], gap.cause) == (size, 2 * size, size, "damage")


# What is refused on the driver


@pytest.fixture
def live(store: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    fd = os.open(copy / "lock", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    yield copy
    os.close(fd)


def test_a_store_in_use_is_refused(spark: Any, live: Path) -> None:
    with pytest.raises(Exception, match="is being written by a broker that runs: stop it first"):
        read(spark, live, subscribe="orders")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "refunds"}, "has no consume queue of refunds; there are"),
        ({"subscribePattern": "x.*"}, "no topic in .* matches subscribePattern 'x"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"subscribe": "orders,,payments"}, "an empty topic name"),
        ({"subscribe": "orders", "subscribePattern": "o.*"}, "not several"),
        ({"subscribed": "orders"}, "no option subscribed; did you mean subscribe"),
        ({"checkCrc": "maybe"}, "must be true or false"),
        ({"minPartitions": "0"}, r"must lie in 1\.\."),
        ({"failOnDataLoss": "false"}, "so give gapLog too"),
        ({"gapLog": "/tmp"}, "is for failOnDataLoss=false"),
        (
            {"path": "hdfs://nn/store"},
            "path .* is hdfs://nn/store; it must be a path that the driver",
        ),
        (
            {"commitLogPath": "/none"},
            "/none, which the option commitLogPath names, is no directory",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_the_job(
    spark: Any, store: Path, options: dict[str, str], text: str
) -> None:
    path = options.pop("path", str(store))
    with pytest.raises(Exception, match=text):
        frame(spark, path, **options).rdd.getNumPartitions()


def test_load_says_which_value_does_not_fit(spark: Any, store: Path) -> None:
    source = spark.read.format("rocketmq-store").option("minPartitions", "0")
    with pytest.raises(Exception, match=r"must lie in 1\.\."):
        source.load(str(store))


def test_a_directory_that_is_no_store(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is no store, it has no directory commitlog"):
        frame(spark, tmp_path).rdd.getNumPartitions()
    with pytest.raises(Exception, match="reads one store, and load was given several"):
        spark.read.format("rocketmq-store").load([str(tmp_path), "/b"]).rdd.getNumPartitions()
    with pytest.raises(Exception, match="no directory on this machine"):
        frame(spark, tmp_path / "missing").rdd.getNumPartitions()


def test_a_schema_that_is_not_ours(spark: Any, store: Path) -> None:
    reader = spark.read.format("rocketmq-store")
    with pytest.raises(Exception, match="a column 'value', which messages do not have"):
        reader.schema("value string").load(str(store)).collect()
    with pytest.raises(Exception, match="gives the column body as string, it is a binary"):
        reader.schema("body string").load(str(store)).collect()
    with pytest.raises(Exception, match="the schema names no column; name one at least of topic"):
        reader.schema(StructType([])).load(str(store)).count()

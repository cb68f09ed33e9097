"""The pipeline `replay`: what comes out is what went in, once, in order, and nothing else."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from examples.order_events import load_events, to_message
from tests.spark.archives import archived_rows, context_of
from tests.spark.archives import run as run_archive
from tests.spark.dead_letters import stored_count
from tests.spark.processes import below, kill
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import Message, MessageQueue, Producer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import ConfigError
from cometmq.model.java.hashing import java_hash
from cometmq.pipelines import replay
from cometmq.pipelines.configuration import ClusterConfig, ConfigFile
from cometmq.pipelines.context import open_context
from cometmq.pipelines.page import write_page
from cometmq.pipelines.resending.marks import LEFT_OUT
from cometmq.testing.cluster import Cluster

OURS = {"REPLAY_ID", "UNIQ_KEY"} | LEFT_OUT
Row = dict[str, Any]


pytestmark = pytest.mark.cluster(
    brokers=2, properties={"defaultTopicQueueNums": "4", "messageDelayLevel": "1s 1s"}
)


@pytest.fixture(scope="module")
def archive_path(spark: Any, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of messages of all kinds, in the topic `orders`."""
    path = tmp_path_factory.mktemp("archive") / "orders"
    messages = list(all_kinds())
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for topic in ("orders", "copy", "slow"):
            # Queues of all brokers, until the topic is made: then it is on those that were sent to.
            first_queues = [queue for queue in producer.queues(topic) if queue.queue_id == 0]
            for queue in first_queues:
                producer.send(Message(topic, b"makes the topic", tags="first"), queue=queue)
        for message in messages:
            producer.send(message, key=message.properties.get("__SHARDINGKEY", message.keys[:1]))
    eventually(
        lambda: stored_count(cluster.namesrv, "orders") == len(messages) + 2, wait_s=JVM_WAIT_S
    )
    run_archive(spark, cluster.namesrv, path, topics=["orders"])
    return path


def all_kinds() -> Iterator[Message]:
    """Messages of all kinds, some thousand."""
    dice = random.Random(7)
    for event in islice(load_events(), 2000):
        yield to_message(event, "orders")
    for at in range(400):
        yield Message("orders", dice.randbytes(at * 7 + 1), tags="binary", keys=[f"bin-{at}"])
    for at in range(200):
        properties = {"__SHARDINGKEY": f"käy-{at % 11}-\N{GRINNING FACE}", "n": str(at)}
        yield Message("orders", b"text " * at * 10 + b".", properties=properties, flag=at - 100)
    for at in range(60):
        keys = [f"schlüssel-{at}", "\N{SNOWMAN}", f"k{at % 3}"]
        yield Message("orders", f"größe {at}".encode(), keys=keys, tags="ü")
        yield Message("orders", b"nothing beside the body")
        yield Message("orders", b"\x00", tags="delayed", keys="later", delay_level=at % 2 + 1)
    for at in range(3):
        yield Message("orders", bytes([at]) * 3_000_000, tags="big")
        yield Message("orders", dice.randbytes(1_000_000), tags="big", keys=f"big-{at}")


def run(spark: Any, cluster: Cluster, **settings: Any) -> replay.Report:
    return replay.run(replay.Config(**settings), context_of(spark, cluster.namesrv))


def replayed(spark: Any, path: Path, replay_id: str) -> list[Row]:
    """The rows that a replay made, out of an archive."""
    return [
        row for row in archived_rows(spark, path) if properties(row).get("REPLAY_ID") == replay_id
    ]


def properties(row: Row) -> dict[str, str]:
    return dict(row["properties"])


def content(row: Row) -> tuple[Any, ...]:
    """The parts of a message that have to be the same; of the properties only the producer's own."""
    own = sorted((n, v) for n, v in row["properties"] if n not in OURS)
    return (row["body"], row["tags"], tuple(row["keys"]), row["flag"], tuple(own))


def origin(row: Row) -> tuple[Any, ...]:
    found = properties(row)
    place = ("ORIGIN_TOPIC", "ORIGIN_BROKER", "ORIGIN_QUEUE_ID", "ORIGIN_QUEUE_OFFSET")
    return tuple(found[name] for name in place)


def place(row: Row) -> tuple[Any, ...]:
    return (row["topic"], row["broker"], str(row["queue_id"]), str(row["queue_offset"]))


def check_order(rows: Sequence[Row]) -> None:
    """Rows of one origin queue in one target queue are in their order, and so are those of a key."""
    last: dict[tuple[Any, ...], int] = defaultdict(lambda: -1)
    key_queues: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for row in rows:
        where = (row["broker"], row["queue_id"])
        stream = (*origin(row)[:3], *where)
        offset = int(origin(row)[3])
        assert offset > last[stream]
        last[stream] = offset
        key = properties(row).get("__SHARDINGKEY")
        if key is not None:
            key_queues[key].add(where)
    assert all(len(queues) == 1 for queues in key_queues.values())


def test_what_is_archived_again_is_what_was_archived_first(
    spark: Any, cluster: Cluster, archive_path: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "archive": str(archive_path), "topics": ["orders"], "to": "copy", "id": "whole",
        "state": str(tmp_path / "state"), "chunk_messages": 1000,
    }  # fmt: skip
    before = archived_rows(spark, archive_path)
    assert len(before) > 2700
    report = run(spark, cluster, **settings)
    assert report.holds, report.summary
    assert (report.sent, report.already_there, report.refused) == (len(before), 0, 0)
    assert report.chunks > 1
    again = run(spark, cluster, **settings)
    assert (again.holds, again.sent) == (True, report.sent)
    run_archive(spark, cluster.namesrv, tmp_path / "archive", topics=["copy"])
    after = replayed(spark, tmp_path / "archive", "whole")
    by_place = {place(row): row for row in before}
    assert Counter(map(origin, after)) == Counter(list(by_place))
    for row in after:
        first = by_place[origin(row)]
        assert content(row) == content(first)
        found = properties(row)
        assert found["ORIGIN_MSG_ID"] == first["msg_id"] != row["msg_id"]
        assert int(found["ORIGIN_BORN_TIME"]) == first["born_time"]
        assert int(found["ORIGIN_STORE_TIME"]) == first["store_time"]
        assert (row["delay_level"], row["deliver_time"], row["reconsume_times"]) == (None, None, 0)
    check_order(after)
    # A queue went to its namesake, unless a sharding key knew better.
    with BlockingRangeReader(namesrv=cluster.namesrv) as reader:
        queues = sorted(queue[1:] for queue in reader.queues("copy"))
    assert len(queues) == 8
    for row in after:
        key = properties(row).get("__SHARDINGKEY")
        to = (row["broker"], row["queue_id"])
        if key is None:
            assert to == (origin(row)[1], int(origin(row)[2]))
        else:
            assert to == queues[abs(java_hash(key)) % len(queues)]
    write_page(report, tmp_path / "replay.html")
    page = (tmp_path / "replay.html").read_text()
    assert "chosen messages are in copy" in page
    assert "<svg" in page


def test_chosen_by_time_tag_key_and_sql(
    spark: Any, cluster: Cluster, archive_path: Path, tmp_path: Path
) -> None:
    rows = archived_rows(spark, archive_path)
    common: dict[str, Any] = {
        "archive": str(archive_path), "topics": ["orders"], "to": "copy", "dry_run": True,
    }  # fmt: skip
    middle = sorted(row["store_time"] for row in rows)[len(rows) // 2]
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=middle)
    late = [row for row in rows if row["store_time"] >= middle]
    paid = [row for row in late if row["tags"] in ("paid", "ü")]
    report = run(spark, cluster, **common, since=since, tags=["paid", "ü"])
    assert (report.chosen, report.passed_over) == (len(paid), len(late) - len(paid))
    assert len(report.samples) == 10
    assert {sample.tags for sample in report.samples} <= {"paid", "ü"}
    queue = MessageQueue("orders", "broker-a", 1)
    wanted = [
        row
        for row in rows
        if (row["broker"], row["queue_id"]) == queue[1:]
        and (properties(row).get("region") == "eu-west" or "\N{SNOWMAN}" in row["keys"])
    ]
    where = "properties['region'] = 'eu-west' OR array_contains(keys, '\N{SNOWMAN}')"
    chosen = run(spark, cluster, **common, queues=["orders@broker-a:1"], where=where)
    assert (chosen.chosen, chosen.by_queue) == (
        len(wanted),
        [("orders", "broker-a", 1, len(wanted))],
    )
    keyed = run(spark, cluster, **common, keys=["k1", "big-2"])
    assert keyed.chosen == sum(bool({"k1", "big-2"} & set(row["keys"])) for row in rows)
    assert run(spark, cluster, **common, keys=["nobody's"]).chosen == 0
    write_page(chosen, tmp_path / "replay.html")
    assert "Some of them" in (tmp_path / "replay.html").read_text()


def kill_workers(spark: Any) -> None:
    """The Python workers of this Spark, but not those who start them."""
    java = spark.sparkContext._gateway.proc.pid
    processes = below([java])
    daemons = {process.pid for process in processes if process.parent == java}
    for process in processes:
        if process.parent in daemons:
            kill(process.pid)


def test_killed_in_the_middle_it_goes_on_and_sends_nothing_twice(
    spark: Any, cluster: Cluster, archive_path: Path, tmp_path: Path
) -> None:
    rows = [row for row in archived_rows(spark, archive_path) if row["tags"] == "created"]
    settings: dict[str, Any] = {
        "archive": str(archive_path), "topics": ["orders"], "to": "slow", "id": "killed",
        "state": str(tmp_path / "state"), "tags": ["created"],
    }  # fmt: skip
    begin = stored_count(cluster.namesrv, "slow")

    def kill() -> None:
        eventually(lambda: stored_count(cluster.namesrv, "slow") >= begin + 20, wait_s=JVM_WAIT_S)
        kill_workers(spark)

    killer = threading.Thread(target=kill)
    killer.start()
    # So slow that it is not done before it is killed, on the slowest machine.
    with pytest.raises(Exception, match="worker"):
        run(spark, cluster, **settings, rate=4.0)
    killer.join()
    with pytest.raises(ConfigError, match="tags: the id killed was begun with"):
        run(spark, cluster, **{**settings, "tags": ["paid"]})
    # Locks of whoever was killed expire after a minute. A broker that restarts has none.
    for index in range(2):
        cluster.call("restart_broker", index)
    report = run(spark, cluster, **settings)
    assert report.holds, report.summary
    assert report.sent + report.already_there == len(rows)
    assert report.already_there >= 20
    run_archive(spark, cluster.namesrv, tmp_path / "archive", topics=["slow"])
    after = replayed(spark, tmp_path / "archive", "killed")
    assert Counter(map(origin, after)) == Counter(map(place, rows))
    check_order(after)


def test_a_store_into_a_topic_with_fewer_queues(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    stores = tmp_path / "stores"
    with (
        Cluster(directory=stores, properties={"defaultTopicQueueNums": "6"}) as old,
        Producer("filler", namesrv=old.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer,
    ):
        for at in range(300):
            producer.send(Message("history", b"%d" % at, keys=f"k{at % 13}"), key=f"k{at % 13}")
    with Producer(
        "filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS, default_topic_queue_nums=1
    ) as producer:
        producer.send(Message("one-queue", b"makes the topic"))
    report = run(
        spark, cluster, store=str(stores / "broker-a"), topics=["history"], to="one-queue",
        id="store", state=str(tmp_path / "state"), delivery="at-least-once",
    )  # fmt: skip
    assert report.holds, report.summary
    run_archive(spark, cluster.namesrv, tmp_path / "archive", topics=["one-queue"])
    after = replayed(spark, tmp_path / "archive", "store")
    assert sorted(int(row["body"]) for row in after) == list(range(300))
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in after:
        assert "ORIGIN_BROKER" not in properties(row)
        by_key[row["keys"][0]].append(int(row["body"]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    # Queues that meet take turns, so nobody waits for the end of another one.
    assert len({properties(row)["ORIGIN_QUEUE_ID"] for row in after[:60]}) > 3


def test_times_are_utc_whatever_session_and_machine_have(
    spark: Any, cluster: Cluster, archive_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive's hours are: a replay that asked it for those of another zone would find nothing."""
    stored = {row["store_time"] for row in archived_rows(spark, archive_path)}
    times = [datetime.fromtimestamp(ms / 1000, UTC) for ms in stored]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        spark.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
        spark.createDataFrame([(1,)], "x int")  # makes it the active one
        try:
            with open_context(ClusterConfig(namesrv=cluster.namesrv)) as context:
                config = replay.Config(
                    archive=str(archive_path), topics=["orders"], to="copy", dry_run=True
                )
                report = replay.run(config, context)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    time.tzset()
    assert {hour.hour for hour in report.by_hour} == {f"{at:%Y-%m-%dT%H}" for at in times}
    assert {sample.store_time for sample in report.samples} <= set(times)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('topics = ["orders"]', "give archive, .* neither is given"),
        ('archive = "{archive}"\nstore = "/x"\ntopics = ["orders"]', "both is given"),
        ('archive = "{archive}"\ntopics = []', "topics is empty"),
        ('archive = "{archive}"\ntopics = ["orders"]', "id is ''"),
        ('archive = "{archive}"\ntopics = ["orders"]\nid = "a b"', "id is 'a b'; it needs 1 to"),
        ('archive = "{archive}"\ntopics = ["orders"]\nid = "a"', "state is not given"),
        ('archive = "{archive}"\ntopics = ["o"]\nrate = 0\ndry_run = true', "rate is 0"),
        (
            'archive = "{archive}"\ntopics = ["o"]\nqueues = ["o:1"]\ndry_run = true',
            "'o:1' is no q",
        ),
        (
            'archive = "{archive}"\ntopics = ["o"]\nsince = 2026-11-20T10:00:00\ndry_run = true',
            "since is 2026-11-20T10:00:00, which says no time zone",
        ),
        (
            'archive = "{archive}"\ntopics = ["orders"]\nwhere = "tagz = 1"\ndry_run = true',
            "where is 'tagz = 1', which Spark's SQL does not take: .*tagz",
        ),
        (
            'archive = "{archive}"\ntopics = ["orders"]\nwhere = "max(flag) = 1"\ndry_run = true',
            "where is 'max.flag. = 1', which Spark's SQL does not take: .*max",
        ),
        (
            'archive = "{archive}"\ntopics = ["orders", "odres"]\nto = "copy"\ndry_run = true',
            "topics: the archive .* has no topic odres; it has orders",
        ),
        (
            (
                'archive = "{archive}"\ntopics = ["orders"]\nqueues = ["orders@broker-a:99"]\n'
                "dry_run = true"
            ),
            "queues: the archive .* has no queue orders@broker-a:99; it has orders@broker-a:0",
        ),
        (
            'archive = "{archive}"\ntopics = ["orders"]\nqueues = ["o@b:0"]\ndry_run = true',
            "queues: 'o@b:0' is a queue of o, which topics does not name",
        ),
        ('archive = "/x"\ntopics = ["orders"]\ndry_run = true', "/x holds no archive"),
        (
            'archive = "{archive}"\ntopics = ["orders"]\nto = "nowhere"\ndry_run = true',
            "to: no broker has a topic nowhere that may be written to",
        ),
    ],
)
def test_what_cannot_be_is_said_before_a_job_starts(
    spark: Any,
    cluster: Cluster,
    archive_path: Path,
    tmp_path: Path,
    settings: str,
    message: str,
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text("[replay]\n" + settings.replace("{archive}", str(archive_path)))
    with pytest.raises(ConfigError, match=message):
        replay.run(
            ConfigFile(file).table("replay", replay.Config), context_of(spark, cluster.namesrv)
        )

"""Replay and redrive messages that Java's client sent as batches: each record has UNIQ_KEY twice.

A Java broker of 4.8 to 5.3.3 appends the batch's id to the properties of each of its messages
(docs/internals/message-ids.md). The tests send such records as they lie in its store.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import RawClient, send_ext
from tests.spark.archives import context_of, sent_rows
from tests.spark.archives import run as run_archive
from tests.spark.dead_letters import redriven, stored_count
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import (
    AdminClient,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
)
from cometmq.pipelines import redrive, replay
from cometmq.pipelines.resending.lanes import Errand
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.cluster(
    properties={"defaultTopicQueueNums": "2", "mappedFileSizeCommitLog": str(1024 * 1024)}
)

TOPIC = "orders"
GROUP = "clerks"
BATCHES = ("B" * 32, "C" * 32, "D" * 32)
OF_BATCH = 20
OWN_IDS = [f"{number:032X}" for number in range(OF_BATCH * len(BATCHES))]
# Of this batch there are only the dead letters that a Java broker wrote.
DEAD_BATCH = "E" * 32
DEAD_COUNT = 12
Row = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    """Have the messages of the batches in a topic, and all of them as dead letters of a group."""
    with Producer("maker", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for topic in ("copy-store", "copy-archive"):
            producer.send(Message(topic, b"makes the topic"))
    with AdminClient(cluster.namesrv) as admin:
        [at] = admin.brokers.addresses()
        admin.topics.create(TOPIC, read_queues=2, write_queues=2)
    with RawClient(at.address) as client:
        for number, one in enumerate(OWN_IDS):
            batch = BATCHES[number // OF_BATCH]
            wait = "WAIT\x01true\x02"
            text = f"KEYS\x01all\x02UNIQ_KEY\x01{one}\x02{wait}UNIQ_KEY\x01{batch}\x02{wait}"
            put(client, TOPIC, one, text, queue_id=number % 2)
        bury(cluster.namesrv)
        for number in range(DEAD_COUNT):
            # A Java broker writes the last UNIQ_KEY alone.
            text = f"RETRY_TOPIC\x01{TOPIC}\x02UNIQ_KEY\x01{DEAD_BATCH}\x02"
            put(client, f"%DLQ%{GROUP}", f"dead {number}", text)
    return cluster


@pytest.fixture(scope="module")
def store(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the broker's store, since a broker's own is read only when it has stopped."""
    path = tmp_path_factory.mktemp("stores") / "broker-a"
    ignored = shutil.ignore_patterns("lock", "abort", "index", "timerwheel")
    return Path(shutil.copytree(cluster.directory / "broker-a", path, ignore=ignored))


def put(client: RawClient, topic: str, body: str, text: str, queue_id: int = 0) -> None:
    answer = client.ask(10, send_ext(topic, properties=text, queueId=queue_id), body.encode())
    assert answer.code == 0, answer.remark


def bury(namesrv: str) -> None:
    consumer = PushConsumer(
        GROUP,
        lambda _: ConsumeResult.RECONSUME_LATER,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=0,
    )
    consumer.subscribe(TOPIC)
    with consumer:
        eventually(
            lambda: stored_count(namesrv, f"%DLQ%{GROUP}") == len(OWN_IDS), wait_s=JVM_WAIT_S
        )


def die_behind(offset: int, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run die when its tasks have sent what lies before this offset of each queue: its ledger
    knows nothing of what was sent.
    """
    whole = Errand.run

    def half(errand: Errand, frame: Any) -> Any:
        whole(errand, frame.where(f"queue_offset < {offset}"))
        raise RuntimeError("the driver has died")

    with monkeypatch.context() as patch:
        patch.setattr(Errand, "run", half)
        with pytest.raises(RuntimeError, match="driver has died"):
            run()


def properties(row: Row) -> dict[str, str]:
    return dict(row["properties"])


def replayed(cluster: Cluster, topic: str) -> list[Row]:
    return [row for row in sent_rows(cluster.namesrv, [topic]) if "REPLAY_ID" in properties(row)]


def bodies(rows: Sequence[Row]) -> list[str]:
    return sorted(row["body"].decode() for row in rows)


@pytest.mark.parametrize("source", ["archive", "store"])
def test_each_message_of_a_batch_is_replayed_once_and_named_by_its_own_id(
    spark: Any,
    cluster: Cluster,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    to = f"copy-{source}"
    where: dict[str, Any] = {"store": str(store), "broker": "broker-a"}
    if source == "archive":
        run_archive(spark, cluster.namesrv, tmp_path / "archive", topics=[TOPIC])
        where = {"archive": str(tmp_path / "archive")}
    # Copies that a redrive has sent into the topic have a REDRIVE_ID.
    config = replay.Config(
        **where, topics=[TOPIC], to=to, id=source, state=str(tmp_path / "state"),
        where="properties['REDRIVE_ID'] is null",
    )  # fmt: skip
    context = context_of(spark, cluster.namesrv)
    die_behind(13, lambda: replay.run(config, context), monkeypatch)
    assert len(replayed(cluster, to)) == 2 * 13
    report = replay.run(config, context)
    assert report.holds, report.summary
    assert (report.sent, report.already_there) == (len(OWN_IDS) - 2 * 13, 2 * 13)
    again = replay.run(config, context)
    assert (again.holds, again.sent) == (True, report.sent)
    rows = replayed(cluster, to)
    assert bodies(rows) == OWN_IDS
    assert [properties(row)["ORIGIN_MSG_ID"] for row in rows] == [
        row["body"].decode() for row in rows
    ]
    # A copy is a message of its own.
    new_ids = {row["msg_id"] for row in rows}
    assert len(new_ids) == len(rows)
    assert new_ids.isdisjoint({*OWN_IDS, *BATCHES})
    assert {row["batch_msg_id"] for row in rows} == {None}
    by_queue: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        by_queue[row["queue_id"]].append(row["body"].decode())
    assert sorted(by_queue.values()) == [OWN_IDS[::2], OWN_IDS[1::2]], "in the order of each queue"


def test_each_dead_letter_of_a_batch_is_redriven_once_under_the_id_that_it_has(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"group": GROUP, "send": True, "id": "again"}
    context = context_of(spark, cluster.namesrv)

    def run(state: str) -> redrive.Report:
        return redrive.run(redrive.Config(**settings, state=str(tmp_path / state)), context)

    # Among those that are left are some of the letters with one id.
    first_count = len(OWN_IDS) + DEAD_COUNT // 2
    die_behind(first_count, lambda: run("one"), monkeypatch)
    assert len(redriven(cluster.namesrv, [TOPIC], "again")) == first_count
    report = run("one")
    assert report.holds, report.summary
    assert (report.sent, report.already_there) == (DEAD_COUNT - DEAD_COUNT // 2, first_count)
    elsewhere = run("two")
    assert (elsewhere.sent, elsewhere.already_there) == (0, len(OWN_IDS) + DEAD_COUNT)
    rows = redriven(cluster.namesrv, [TOPIC], "again")
    dead = [f"dead {number}" for number in range(DEAD_COUNT)]
    assert bodies(rows) == sorted([*OWN_IDS, *dead])
    for row in rows:
        body, found = row["body"].decode(), properties(row)
        own_id = DEAD_BATCH if body in dead else body
        assert (row["msg_id"], found["UNIQ_KEY"], found["ORIGIN_MSG_ID"]) == (own_id,) * 3
        assert row["batch_msg_id"] is None

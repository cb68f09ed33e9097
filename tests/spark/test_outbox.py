"""Exactly-once without Spark around it: a batch that is cut short anywhere is sent once in the end.

The points are those of the table in docs/internals/spark-sink.md.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.outbox_query import OutboxQuery
from tests.spark.sink_rows import make_topic, messages_of, wait_for
from tests.waits import CLOCK, JVM_WAIT_S, eventually

from cometmq.bulk.producer import BlockingBulkProducer
from cometmq.errors import CometMQError, ConfigError, DataLossError, IllegalArgumentError
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Decision, Mark, Outbox, batch_unit, job_unit
from cometmq.spark.sink.outbox_sending import commit_unit
from cometmq.spark.sink.tasks import Place, keep_rows
from cometmq.testing.cluster import Cluster

PROGRAM = Path(__file__).with_name("outbox_program.py")


pytestmark = pytest.mark.cluster(brokers=2)


def test_a_batch_is_sent_when_it_is_committed_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    query = OutboxQuery(cluster.namesrv, tmp_path, "plain", quiet_s=0)
    parts = query.tasks(0, 100)
    query.check()
    query.commit(0, parts)
    query.check((0, 100))
    assert list(tmp_path.rglob("part-*")) == []
    query.commit(1, query.tasks(1, 30))
    query.outbox.forget_before(1)
    query.check((0, 100), (1, 30))
    left = {path.name for path in (tmp_path / "checkpoint" / "rocketmq-sink").iterdir()}
    assert left == {"lock", "batch-1"}


def test_what_is_not_decided_is_never_sent(cluster: Cluster, tmp_path: Path) -> None:
    """The driver dies while tasks run or before it decides; an attempt fails, or loses its race."""
    query = OutboxQuery(cluster.namesrv, tmp_path, "undecided", quiet_s=0)
    lost = query.tasks(0, 100)
    torn = tmp_path / "checkpoint" / "rocketmq-sink" / "batch-0" / "part-0-torn.arrow"
    torn.write_bytes(b"\xff\xff\xff\xff")
    (torn.parent / ".decided.json-torn").write_text('{"owner"')
    losers = query.tasks(0, 100)
    winners = query.tasks(0, 100)
    assert len({part.name for part in lost + losers + winners}) == 6
    query.commit(0, winners)
    query.check((0, 100))
    query.outbox.unit(batch_unit(1)).abandon()
    aborted = query.tasks(1, 10)
    assert any(part.name for part in aborted)
    query.outbox.unit(batch_unit(1)).abandon()
    assert not (tmp_path / "checkpoint" / "rocketmq-sink" / "batch-1").exists()
    query.check((0, 100))


@pytest.mark.parametrize("parcels", [0, 1, 7, 10_000])
def test_a_driver_that_dies_in_the_middle_of_a_commit(
    cluster: Cluster, tmp_path: Path, parcels: int
) -> None:
    query = OutboxQuery(cluster.namesrv, tmp_path, f"middle-{parcels}", quiet_s=0)
    query.die_behind(0, query.tasks(0, 100), parcels)
    sent = len(messages_of(cluster.namesrv, query.topic))
    assert (sent == 100) == (parcels == 10_000)
    query.outbox.unit(batch_unit(0)).abandon()  # as Spark does; it is decided, and stays
    # Run again, its tasks write nothing.
    again = query.tasks(0, 100)
    assert [part.name for part in again] == [None, None]
    query.commit(0, again)
    query.check((0, 100))
    # Run again because Spark did not note it.
    query.commit(0, query.tasks(0, 100))
    query.commit(1, query.tasks(1, 20))
    query.check((0, 100), (1, 20))


def test_two_senders_of_one_batch(cluster: Cluster, tmp_path: Path) -> None:
    """A process of the last driver is not gone yet."""
    query = OutboxQuery(cluster.namesrv, tmp_path, "two", quiet_s=0)
    parts = query.tasks(0, 300)
    query.die_behind(0, parts, 3)
    both = [threading.Thread(target=query.commit, args=(0, [])) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    query.check((0, 300))


def test_brokers_restart_while_a_batch_is_sent(cluster: Cluster, tmp_path: Path) -> None:
    query = OutboxQuery(cluster.namesrv, tmp_path, "restart", batchBytes=120, sendsInFlight=4)
    parts = query.tasks(0, 3000)
    sender = threading.Thread(target=query.commit, args=(0, parts))
    sender.start()
    for broker in (0, 1):
        wait_for(cluster.namesrv, query.topic, (broker + 1) * 700)
        cluster.call("restart_broker", broker)
    sender.join()
    assert query.outbox.unit(batch_unit(0)).is_done
    query.check((0, 3000))


def test_keys_wait_for_a_broker_that_is_away(cluster: Cluster, tmp_path: Path) -> None:
    query = OutboxQuery(cluster.namesrv, tmp_path, "away", timeoutMs=600_000)
    query.commit(0, query.tasks(0, 50))
    cluster.call("stop_broker", 0)
    parts = query.tasks(1, 50)
    sender = threading.Thread(target=query.commit, args=(1, parts))
    sender.start()
    try:
        with BlockingBulkProducer("looker", namesrv=cluster.namesrv) as producer:
            eventually(
                lambda: {queue.broker_name for queue in producer.write_queues("away")},
                lambda brokers: brokers == {"broker-b"},
                wait_s=JVM_WAIT_S,
                passing=(CometMQError,),
            )
    finally:
        cluster.call("start_broker", 0)
        sender.join()
    query.check((0, 50), (1, 50))
    # One that stays away is done without, when timeoutMs is over.
    hasty = OutboxQuery(cluster.namesrv, tmp_path / "hasty", "hasty", timeoutMs=3000)
    hasty.commit(0, hasty.tasks(0, 50))
    cluster.call("stop_broker", 0)
    try:
        hasty.commit(1, hasty.tasks(1, 50))
    finally:
        cluster.call("start_broker", 0)
    found = eventually(
        lambda: messages_of(cluster.namesrv, "hasty"),
        lambda found: len(found) >= 100,
        wait_s=JVM_WAIT_S,
        passing=(CometMQError,),
    )
    assert Counter(m.body.decode() for m in found) == Counter(
        f"{batch}-{at}" for batch in (0, 1) for at in range(50)
    )


def ended_of(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    return lambda: process.poll() is not None


def test_a_sender_is_killed_at_random(cluster: Cluster, tmp_path: Path) -> None:
    rng = random.Random(11)
    query = OutboxQuery(cluster.namesrv, tmp_path, "killed", batchBytes=120, sendsInFlight=3)
    parts = query.tasks(0, 2000)
    query.die_behind(0, parts, 5)
    there = 0
    for _ in range(2):
        command = [sys.executable, str(PROGRAM), json.dumps(query.given), batch_unit(0)]
        with subprocess.Popen(command) as sender:
            wanted = there + rng.randrange(1, 900)
            wait_for(cluster.namesrv, query.topic, wanted, ended_of(sender))
            sender.kill()
        there = len(messages_of(cluster.namesrv, query.topic))
    query.commit(0, [])
    query.check((0, 2000))


def test_an_outbox_belongs_to_one_query(cluster: Cluster, tmp_path: Path) -> None:
    query = OutboxQuery(cluster.namesrv, tmp_path, "foreign", quiet_s=0)
    query.commit(4, query.tasks(4, 10))
    for batch_id, owner in ((0, "other"), (4, "other"), (5, "other"), (3, "query")):
        with pytest.raises(IllegalArgumentError, match="holds batch 4 of query query, and this is"):
            query.tasks(batch_id, 10, owner)
    query.die_behind(5, query.tasks(5, 10), 0)
    with pytest.raises(IllegalArgumentError, match="batch 5, which is decided and not sent"):
        query.tasks(6, 10)
    query.commit(5, [])
    query.check((4, 10), (5, 10))


def test_a_query_that_was_away_too_long_is_told(tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(64 * 1024)}
    with Cluster(directory=tmp_path / "stores", properties=properties) as own:
        make_topic(own.namesrv, "late")
        given = {
            "namesrv": own.namesrv,
            "topic": "late",
            "delivery": "exactly-once",
            "outbox": str(tmp_path / "outbox"),
            "batchBytes": "4096",
        }
        options = SinkOptions(given, streaming=True)
        outbox = Outbox(str(tmp_path / "outbox"))
        batch = pa.record_batch({"body": pa.array(["x" * 1000] * 200)})
        place = Place("query", batch_unit(0), 0, 0)
        part = keep_rows(options, outbox, None, place, iter([batch]))
        commit_unit(options, outbox, batch_unit(0), [part])
        unit = outbox.unit(batch_unit(1))
        unit.decide(Decision("query", unit.name, [], 1, [Mark("late", "broker-a", 0, 0)]))
        own.call("stop_broker", 0)
        for name in (f"{at * 64 * 1024:020d}" for at in range(2)):
            (tmp_path / "stores" / "broker-a" / "commitlog" / name).unlink()
        own.call("start_broker", 0)
        with pytest.raises(DataLossError, match="cannot be known any more"):
            commit_unit(options, outbox, unit.name, [], 0)


def test_an_outbox_that_cannot_be_used_is_said(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for uri in (f"{tmp_path}/file/below", "nosuch://bucket/outbox"):
        with pytest.raises(ConfigError, match=r"the outbox .* cannot be used"):
            Outbox(uri).latest()
    query = OutboxQuery(cluster.namesrv, tmp_path, "gone", quiet_s=0)
    parts = query.tasks(0, 10)
    query.die_behind(0, parts, 0)
    for path in tmp_path.rglob("part-*"):
        path.unlink()
    with pytest.raises(DataLossError, match="is gone from the outbox"):
        query.commit(0, [])
    again = query.tasks(0, 10)
    shutil.rmtree(tmp_path / "checkpoint" / "rocketmq-sink" / "batch-0")
    with pytest.raises(DataLossError, match="was decided when its tasks ran"):
        query.commit(0, again)


def test_jobs_that_were_done_long_ago_are_forgotten_and_no_others(tmp_path: Path) -> None:
    outbox = Outbox(str(tmp_path))
    for name in ("old", "mine", "recent", "undone"):
        unit = outbox.unit(job_unit(name))
        unit.decide(Decision("query", unit.name, [], 0, []))
        if name != "undone":
            unit.finish()
    now_s = CLOCK.now_ms() / 1000
    for name in ("old", "mine", "undone"):
        for file in (tmp_path / job_unit(name)).iterdir():
            os.utime(file, (now_s - 1000, now_s - 1000))
    outbox.forget_jobs(int((now_s - 500) * 1000), but=job_unit("mine"))
    assert {path.name for path in tmp_path.iterdir()} == {
        job_unit("mine"),
        job_unit("recent"),
        job_unit("undone"),
    }
    assert outbox.job("old") is None
    assert outbox.job("mine") == ("query", None, True)
    assert outbox.job("undone") == ("query", None, False)
    # One that died between decision and directory is finished by the next.
    (tmp_path / job_unit("mine") / "decided.json").unlink()
    outbox.forget_jobs(int((now_s - 500) * 1000), but="")
    assert outbox.job("mine") is None
    assert {path.name for path in tmp_path.iterdir()} == {job_unit("recent"), job_unit("undone")}

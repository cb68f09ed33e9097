"""`replay` into a Java broker, and `redrive` of the dead letters that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.spark.archives import archived_rows, context_of
from tests.spark.archives import run as run_archive
from tests.spark.dead_letters import bury, numbers, redriven, stored_count
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.pipelines import redrive, replay
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.interop

GROUP = "mailers"
COUNT = 90


def test_a_java_broker_gets_each_once(spark: Any, tmp_path: Path) -> None:
    need("java", "mvn")
    with Cluster(brokers=0) as cluster, JavaBroker(cluster.namesrv) as broker:
        context = context_of(spark, cluster.namesrv)
        bury(cluster.namesrv, GROUP, ["bills", "reminders"], COUNT)
        with Producer("writer", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            producer.send(Message("bills", b"large " * 2000, tags="large", keys="L-1"))
            producer.send(Message("again", b"makes the topic"))
        # A Java broker puts messages into their queues behind the answers.
        eventually(lambda: stored_count(cluster.namesrv, "bills") == COUNT // 2 + 1)
        run_archive(spark, cluster.namesrv, tmp_path / "bills", topics=["bills"])
        report = replay.run(
            replay.Config(
                archive=str(tmp_path / "bills"),
                topics=["bills"],
                to="again",
                id="java",
                state=str(tmp_path / "state"),
            ),
            context,
        )
        assert report.holds, report.summary
        assert report.sent == COUNT // 2 + 1
        run_archive(spark, cluster.namesrv, tmp_path / "again", topics=["again"])
        first = {
            (row["broker"], row["queue_id"], row["queue_offset"]): row
            for row in archived_rows(spark, tmp_path / "bills")
        }
        seen = set()
        for row in archived_rows(spark, tmp_path / "again"):
            found = dict(row["properties"])
            if "REPLAY_ID" not in found:
                continue
            queue, offset = int(found["ORIGIN_QUEUE_ID"]), int(found["ORIGIN_QUEUE_OFFSET"])
            place = (found["ORIGIN_BROKER"], queue, offset)
            seen.add(place)
            assert (row["body"], row["tags"], row["keys"]) == (
                first[place]["body"],
                first[place]["tags"],
                first[place]["keys"],
            )
            assert (row["broker"], row["queue_id"]) == place[:2]
        assert seen == set(first)

        def send(state: str, to: Any, redrive_id: str) -> redrive.Report:
            config = redrive.Config(
                group=GROUP, reason_property="error", reasons=["timeout"], to=to,
                id=redrive_id, state=str(tmp_path / state), send=True,
            )  # fmt: skip
            return redrive.run(config, context)

        wanted = [at for at in range(COUNT) if at % 3 == 0]
        report_of_one = send("one", "topic", "r1")
        assert report_of_one.holds, report_of_one.summary
        assert (report_of_one.letters, report_of_one.sent) == (COUNT, len(wanted))
        # What the brokers have is all that a second run knows.
        report_of_two = send("two", "topic", "r1")
        assert (report_of_two.sent, report_of_two.already_there) == (0, len(wanted))
        rows = redriven(cluster.namesrv, ["bills", "reminders"], "r1")
        assert numbers(rows) == wanted
        assert send("one", "group", "r2").holds
        rows = redriven(cluster.namesrv, [f"%RETRY%{GROUP}"], "r2")
        assert numbers(rows) == wanted
        assert {dict(row["properties"])["RETRY_TOPIC"] for row in rows} == {"bills", "reminders"}
        broker.kill()  # a clean stop takes ten seconds, and nothing is read from its store

"""The pipeline `redrive`: dead letters counted, and chosen ones sent again, each once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.spark.archives import context_of
from tests.spark.dead_letters import REASONS, bury, numbers, redriven, stored_count
from tests.spark.processes import QUICK_JAVA, below
from tests.spark.standalone import HOST
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import ConsumeResult, Message, Producer, PushConsumer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import ConfigError
from cometmq.pipelines import redrive
from cometmq.pipelines.page import write_page
from cometmq.testing.cluster import Cluster

COUNT = 240
TOPICS = ("bills", "reminders")
GROUP = "mailers"
BROKEN = [at for at in range(COUNT) if at % 3 == 0]


pytestmark = pytest.mark.cluster(brokers=2)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    bury(cluster.namesrv, GROUP, TOPICS, COUNT)
    return cluster


def run(spark: Any, cluster: Cluster, **settings: Any) -> redrive.Report:
    config = redrive.Config(**{"group": GROUP, **settings})
    return redrive.run(config, context_of(spark, cluster.namesrv))


def total(cluster: Cluster) -> int:
    return sum(stored_count(cluster.namesrv, topic) for topic in TOPICS)


def topics_of(namesrv: str) -> list[str]:
    with BlockingRangeReader(namesrv=namesrv) as reader:
        return reader.topics()


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_unless_it_is_told_to_it_only_looks(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    before = total(cluster)
    report = run(spark, cluster, reason_property="error", reasons=["timeout"], topics=["bills"])
    assert total(cluster) == before
    assert report.holds
    assert report.letters == COUNT
    wanted = [at for at in range(COUNT) if at % 3 == 0 and at % 2 == 0]
    assert report.chosen == len(wanted)
    counted: Counter[tuple[str, str]] = Counter()
    for count in report.counts:
        counted[count.topic, count.reason] += count.count
    given_up = "given up after 1 attempt"
    assert counted == Counter((TOPICS[at % 2], REASONS[at % 3] or given_up) for at in range(COUNT))
    assert {count.reason for count in run(spark, cluster).counts} == {given_up}
    write_page(report, tmp_path / "redrive.html")
    page = (tmp_path / "redrive.html").read_text()
    assert "no such customer" in page
    assert "<svg" in page


def test_killed_in_the_middle_and_run_again_each_is_sent_once(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "id": "after-a-kill", "state": str(tmp_path / "state"),
        "send": True, "reason_property": "error", "reasons": ["timeout"],
    }  # fmt: skip
    file = tmp_path / "pipeline.toml"
    # So slow that it is not done before it is killed, on the slowest machine.
    file.write_text(
        f"""
        [cluster]
        namesrv = "{cluster.namesrv}"
        [spark]
        master = "local[2]"
        config = {{ "spark.ui.enabled" = "false", "spark.driver.memory" = "512m" }}
        [redrive]
        group = "{GROUP}"
        id = "after-a-kill"
        state = "{tmp_path / "state"}"
        send = true
        reason_property = "error"
        reasons = ["timeout"]
        rate = 0.5
        """
    )
    before = total(cluster)
    command = [sys.executable, "-m", "cometmq", "pipeline", "redrive", "-c", str(file)]
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    with (tmp_path / "driver.log").open("wb") as output:
        driver = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
    try:
        eventually(
            lambda: total(cluster) >= before + 3 or driver.poll() is not None, wait_s=JVM_WAIT_S
        )
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()
        with pytest.raises(ConfigError, match="is being run by process"):
            run(spark, cluster, **settings)
    finally:
        workers = [process.pid for process in below([driver.pid])]
        driver.kill()
        driver.wait()
        # Its Java sees that it is gone, and the Python workers that Java is.
        eventually(lambda: not any(map(lives, workers)), wait_s=JVM_WAIT_S)
    # Locks of whoever was killed expire after a minute. A broker that restarts has none.
    for index in range(2):
        cluster.call("restart_broker", index)
    report = run(spark, cluster, **settings)
    assert report.holds, report.summary
    assert report.chosen == len(BROKEN)
    assert report.already_there >= 3
    rows = redriven(cluster.namesrv, TOPICS, "after-a-kill")
    assert numbers(rows) == BROKEN
    again = run(spark, cluster, **settings)
    assert (again.holds, again.sent) == (True, report.sent)
    # Nothing of it is left on this machine: the topics tell.
    elsewhere = run(spark, cluster, **{**settings, "state": str(tmp_path / "elsewhere")})
    assert (elsewhere.sent, elsewhere.already_there) == (0, len(BROKEN))
    assert numbers(redriven(cluster.namesrv, TOPICS, "after-a-kill")) == BROKEN
    for row in rows:
        properties = dict(row["properties"])
        at = int(properties["n"])
        assert row["topic"] == TOPICS[at % 2]
        assert row["body"] == b"letter %d" % at
        assert row["keys"] == [f"K-{at}", "all"]
        assert row["reconsume_times"] == 0
        assert properties["ORIGIN_TOPIC"] == f"%DLQ%{GROUP}"
        # The producer's id stays, so that whoever tells messages by it knows this one.
        assert properties["UNIQ_KEY"] == properties["ORIGIN_MSG_ID"] == row["msg_id"]
        assert "RETRY_TOPIC" not in properties


def test_two_runs_at_once_from_two_machines(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    reports: list[redrive.Report] = []

    def attempt(state: str) -> None:
        session = spark.newSession()
        reports.append(
            run(
                session,
                cluster,
                id="at-once",
                state=str(tmp_path / state),
                send=True,
                where="tags = 'reminder'",
            )
        )

    threads = [threading.Thread(target=attempt, args=(state,)) for state in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [at for at in range(COUNT) if at % 5 == 0]
    assert len(reports) == 2
    assert sum(report.sent for report in reports) == len(wanted)
    assert sum(report.already_there for report in reports) == len(wanted)
    assert numbers(redriven(cluster.namesrv, TOPICS, "at-once")) == wanted


def test_only_the_group_gets_them_from_its_retry_topic(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    before = total(cluster)
    with Producer("stranger", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        # Not by a broker: nobody knows where it came from.
        producer.send(Message(f"%DLQ%{GROUP}", b"put there by hand", keys="K-1"))
    settings: dict[str, Any] = {
        "id": "to-group", "state": str(tmp_path / "state"), "send": True, "to": "group",
        "keys": ["K-1", "K-2", "K-3"], "since": datetime(2020, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    report = run(spark, cluster, **settings)
    assert not report.holds
    assert report.stranded == ["(unknown)"]
    assert (report.chosen, report.sent) == (4, 3)
    assert "1 come from topics that are not there" in report.summary
    assert total(cluster) == before
    rows = redriven(cluster.namesrv, [f"%RETRY%{GROUP}"], "to-group")
    assert numbers(rows) == [1, 2, 3]
    assert {dict(row["properties"])["RETRY_TOPIC"] for row in rows} == set(TOPICS)


def test_a_group_without_dead_letters(spark: Any, cluster: Cluster) -> None:
    consumer = PushConsumer("healthy", lambda _: ConsumeResult.SUCCESS, namesrv=cluster.namesrv)
    consumer.subscribe(TOPICS[0])
    with consumer:
        eventually(lambda: "%RETRY%healthy" in topics_of(cluster.namesrv), wait_s=JVM_WAIT_S)
    report = run(spark, cluster, group="healthy")
    assert (report.holds, report.letters) == (True, 0)
    assert report.sections()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": "a b"}, "group: "),
        ({"send": True}, "id is ''"),
        ({"send": True, "id": "x"}, "state is not given"),
        ({"rate": -1.0}, "rate is -1"),
        ({"where": "nothing = 1"}, "where is 'nothing = 1', which Spark's SQL does not take"),
    ],
)
def test_what_cannot_be_is_said_before_a_job_starts(
    spark: Any, cluster: Cluster, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(spark, cluster, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": "mailer"}, r"group: no broker .* mailer; there are .*; did you mean mailers\?"),
        ({"topics": ["bils"]}, r"topics: .* bils, .*; there are bills, .*; did you mean bills\?"),
        (
            {"reason_property": "error", "reasons": ["timeuot"]},
            r"reasons: .* 'timeuot'; there are .*; did you mean timeout\?",
        ),
    ],
)
def test_a_misspelt_name_chose_no_letter_and_said_nothing(
    spark: Any, cluster: Cluster, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(spark, cluster, **settings)


def test_a_topic_without_dead_letters_is_no_mistake(spark: Any, cluster: Cluster) -> None:
    with Producer("quiet", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        producer.send(Message("quiet", b"hush"))
    report = run(spark, cluster, topics=["quiet"])
    assert report.letters >= COUNT
    assert (report.holds, report.chosen) == (True, 0)

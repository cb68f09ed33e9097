"""`audit` as a stream: its rounds together say what an audit of the whole says, and say it in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.spark import archives
from tests.spark.audited import Sender, audited, balance, context_of, kinds
from tests.spark.changing_cluster import ChangingCluster
from tests.spark.processes import QUICK_DRIVER, QUICK_JAVA, inline_table
from tests.spark.standalone import HOST
from tests.spark.test_pipeline_audit import NOT_CONSUMED, send_explained, send_unexplained
from tests.spark.test_topics_made_again import TOPIC, fill, make_again
from tests.waits import JVM_WAIT_S, eventually

from cometmq.errors import ConfigError, DataLossError
from cometmq.pipelines import audit
from cometmq.pipelines.audit.report import Report
from cometmq.pipelines.audit.streaming.stream_state import State
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Progress
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.testing import Cluster

# A machine that is ten times slower is to come to an end, too.
pytestmark = pytest.mark.timeout(2 * JVM_WAIT_S)

HOLD_S = 300.0
DAY_S = 86_400.0


class Later:
    """The machine's clock, ahead by so many seconds."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_ms = round(ahead_s * 1000)

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()


class Rounds:
    """Runs a stream round by round. Each is a run of its own, so each one begins from the state."""

    def __init__(self, context: Context, state: Path, **settings: Any) -> None:
        self._context = context
        self._settings = {"settle_s": 0.0, **settings}
        self._state = state

    def run(self, ahead_s: float = 0.0, **more: Any) -> Report:
        stopped = threading.Event()
        stopped.set()
        context = replace(self._context, clock=Later(ahead_s))
        return audit.run(self._config(**more), context, stopped)

    def whole(self, ahead_s: float = 0.0) -> Report:
        """The audit that runs once, over everything."""
        return audited(replace(self._context, clock=Later(ahead_s)), **self._settings)

    def _config(self, **more: Any) -> audit.Config:
        reported = {**self._settings, "mode": "stream", "state": str(self._state), **more}
        return msgspec.convert(reported, audit.Config)


def state_of(path: Path) -> State:
    return msgspec.json.decode((path / "_state.json").read_bytes(), type=State)


def waiting(report: Report, topic: str) -> dict[tuple[str, str], int]:
    return {
        (one.difference if one.group is None else f"{one.difference}/{one.group}", one.cause): (
            one.count
        )
        for one in report.waiting
        if one.topic == topic
    }


def summed(report: Report) -> tuple[Any, ...]:
    """Return the results of an audit: numbers by place and hour, and differences by cause."""
    cells = {
        (cell.topic, cell.broker, cell.queue_id, cell.hour): (
            *(cell.sent, cell.stored, cell.archived, tuple(sorted(cell.consumed.items()))),
            cell.explained + cell.unexplained + cell.waiting,
        )
        for cell in report.cells
    }
    differences: Counter[tuple[Any, ...]] = Counter()
    for one in (*report.differences, *report.waiting):
        differences[one.topic, one.difference, one.group, one.cause, one.explained] += one.count
    cut = [(one.topic, one.broker, one.queue_id, one.first, one.end) for one in report.cut]
    return cells, differences, cut


def check_sum(rounds: Rounds, report: Report, ahead_s: float = 0.0) -> None:
    whole = rounds.whole(ahead_s)
    for ours, theirs in zip(summed(report), summed(whole), strict=True):
        assert ours == theirs


def test_what_is_late_is_judged_again_and_nothing_is_missed_or_counted_twice(
    spark: Any, tmp_path: Path
) -> None:
    topic = "orders"
    archive, state = tmp_path / "archive", tmp_path / "state"
    with Cluster() as cluster:
        sender = Sender(cluster)
        sent = [sender.send(topic, f"N{at}") for at in range(10)]
        sender.meet_group("billing")

        def archive_once() -> None:
            archives.run(spark, cluster.namesrv, archive, topics=[topic], compact_files=0)

        archive_once()
        rounds = Rounds(
            context_of(spark, cluster),
            state,
            topics=[topic],
            groups=["billing"],
            archive=str(archive),
        )
        report = rounds.run()
        # Nobody has consumed anything, and nothing of that counts before it is late.
        assert (report.holds, report.differences) == (True, [])
        assert waiting(report, topic) == {(NOT_CONSUMED, "not consumed yet"): 10}
        sent += [sender.send(topic, f"N{at}") for at in range(10, 20)]
        report = rounds.run(2 * HOLD_S)
        assert report.differences == []
        assert waiting(report, topic) == {
            (NOT_CONSUMED, "not consumed yet"): 20,
            ("stored, not archived", "not archived yet"): 10,
        }
        archive_once()
        sender.send_back("billing", sent[1], topic, -1)
        sender.send_back("billing", sent[2], topic, 18)
        sender.wait_for("%DLQ%billing", 1)
        sender.commit("billing", topic, 0, 15)
        report = rounds.run(2 * HOLD_S)
        assert kinds(report, topic) == {(NOT_CONSUMED, "dead-lettered"): 1}
        assert waiting(report, topic) == {
            (NOT_CONSUMED, "not consumed yet"): 5,
            (NOT_CONSUMED, "waits to be consumed again"): 1,
        }
        assert balance(report, topic) == (20, 20, 20, {"billing": 13})
        assert report.holds
        # Only what waits is looked at again.
        (place,) = [one for one in state_of(state).queues if one.to]
        assert (place.first, place.to) == (0, 20)
        # After its patience it is said as it is; an audit may ask to fail then.
        report = rounds.run(DAY_S + 3 * HOLD_S)
        assert kinds(report, topic) == {
            (NOT_CONSUMED, "dead-lettered"): 1,
            (NOT_CONSUMED, "not consumed yet"): 5,
            (NOT_CONSUMED, "waits to be consumed again"): 1,
        }
        assert report.waiting == []
        check_sum(rounds, report, DAY_S + 3 * HOLD_S)
        with pytest.raises(ConfigError, match=r"groups: the audit in .* was begun with"):
            Rounds(context_of(spark, cluster), state, topics=[topic], archive=str(archive)).run()


def test_the_rounds_of_a_stream_sum_up_to_an_audit_of_the_whole(spark: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "sent.jsonl"
    archive = tmp_path / "archive"
    # No transaction is checked, and given up, between the rounds and the audit of the whole.
    properties = {"recallMessageEnable": "true", "transactionTimeOut": "3600000"}
    with Cluster(properties=properties) as cluster:
        sender = Sender(cluster)
        sender.meet_group("billing")
        sender.send("broken", "FIRST")
        sender.send("orders", "FIRST", 3)

        def archive_once() -> None:
            archives.run(
                spark, cluster.namesrv, archive, topics=["orders", "broken"], compact_files=2
            )

        archive_once()
        sender.write_ledger(ledger)
        rounds = Rounds(
            context_of(spark, cluster),
            tmp_path / "state",
            topics=["orders", "broken"],
            groups=["billing"],
            sent=str(ledger),
            archive=str(archive),
            business_key="keys[0]",
            subscriptions={"billing": "paid || late"},
            rules=[
                {
                    "difference": "business key twice",
                    "cause": "the order changed",
                    "when": "tags = 'changed'",
                }
            ],
        )
        send_explained(sender)
        sender.write_ledger(ledger)
        archive_once()
        # Copies and their first ones, messages and their records are read by different rounds.
        rounds.run(max_messages=12)
        send_unexplained(sender)
        sender.write_ledger(ledger)
        archive_once()
        report = rounds.run(2 * HOLD_S)
        assert report.holds, "what was not explained now is looked at once more"
        report = rounds.run(4 * HOLD_S)
        check_sum(rounds, report, 4 * HOLD_S)
        assert not report.holds
        assert kinds(report, "broken", explained=False) == {
            ("sent, not stored", "unexplained"): 1,
            ("stored, not sent", "unexplained"): 1,
            ("stored twice", "unexplained"): 1,
            ("business key twice", "unexplained"): 1,
        }
        assert waiting(report, "orders")["sent, not stored", "delayed, not due yet"] == 2


def test_a_stream_that_is_killed_goes_on_where_it_was_and_keeps_no_more_each_round(
    spark: Any, tmp_path: Path
) -> None:
    state, reports = tmp_path / "state", tmp_path / "reports"
    most = 20
    with Cluster() as cluster:
        sent = archives.send(cluster.namesrv, "killed", 60)
        file = tmp_path / "pipeline.toml"
        file.write_text(
            f'[cluster]\nnamesrv = "{cluster.namesrv}"\n'
            '[spark]\nmaster = "local[1]"\n'
            f"config = {inline_table(QUICK_DRIVER)}\n"
            f'[audit]\ntopics = ["killed"]\nmode = "stream"\nstate = "{state}"\n'
            f"max_messages = {most}\ninterval_s = 0\nhold_s = 0\nsettle_s = 0\nresend_window_s = 0\n"
        )
        command = [sys.executable, "-m", "cometmq", "pipeline", "audit", "-c", str(file)]
        command += ["--reports", str(reports)]
        environment = {**os.environ, "SPARK_LOCAL_IP": HOST, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            eventually(
                lambda: (reports / "audit.json").exists() or process.poll() is not None,
                wait_s=JVM_WAIT_S,
            )
            assert process.poll() is None, (tmp_path / "log").read_text()
        finally:
            # With Java, in the middle of a round.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # The report of a round is there as long as the stream goes on.
        shown = json.loads((reports / "audit.json").read_text())
        assert (shown["mode"], shown["holds"]) == ("stream", True)
        before = state_of(state)
        assert 0 < sum(place.to for place in before.queues) < sent
        stopped = threading.Event()
        found: list[Report] = []

        def frames() -> int:
            return int(spark.sparkContext._jsc.getPersistentRDDs().size())

        frames_before = frames()

        def until_all(report: Any) -> None:
            found.append(report)
            # What is kept does not grow with the rounds: of messages only those that the
            # last one judged, and those that wait (of which a round that is behind has some).
            files = list(state.rglob("*.parquet"))
            assert sum(pq.read_metadata(file).num_rows for file in files) <= 2 * most
            kept = {path.name for path in state.iterdir() if path.is_dir()}
            assert kept == state_of(state).tables
            assert frames() == frames_before
            if sum(cell.stored for cell in report.topics) == sent:
                stopped.set()

        context = Context(
            spark, ClusterConfig(namesrv=cluster.namesrv), Progress(), publish=until_all
        )
        config = audit.Config(
            topics=["killed"],
            mode="stream",
            state=str(state),
            max_messages=most,
            interval_s=0.0,
            hold_s=0.0,
            settle_s=0.0,
            resend_window_s=0.0,
        )
        report = audit.run(config, context, stopped)
        assert report.rounds == before.rounds + len(found)
        assert balance(report, "killed") == (sent, sent, None, {})
        rounds = Rounds(context_of(spark, cluster), state, topics=["killed"], resend_window_s=0.0)
        check_sum(rounds, report)


def test_a_topic_made_again_behind_an_audit_is_data_loss_by_name(
    spark: Any, tmp_path: Path
) -> None:
    with ChangingCluster() as cluster:
        fill(cluster, 49)
        rounds = Rounds(context_of(spark, cluster), tmp_path / "state", topics=[TOPIC])
        assert rounds.run().holds
        # Shorter, equally long and longer than what is audited.
        for count in (12, 49, 60):
            make_again(cluster)
            fill(cluster, count)
            with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
                rounds.run()
        make_again(cluster)
        with pytest.raises(
            DataLossError, match=f"{TOPIC}@broker-a:0 was audited up to 49 and ends at 0"
        ):
            rounds.run()
    assert state_of(tmp_path / "state").rounds == 1

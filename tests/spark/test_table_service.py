"""The table service: whatever of it and of the broker is killed, its tables have each message once.

COMETMQ_TABLE_KILLS says how many kills there are (default 10), COMETMQ_TABLE_SEED when they come
(`tests.seeds`). Five kills meet each kind of process.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.seeds import seed_of
from tests.spark.archives import context_of
from tests.spark.killing import CONFIG, BrokerProcess, Load, Place, stored
from tests.spark.processes import QUICK_QUERIES, below, inline_table, kill
from tests.spark.standalone import HOST, ROOT
from tests.spark.table_archives import tables_of
from tests.waits import JVM_WAIT_S, PROCESS_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.pipelines import archive
from cometmq.pipelines.archive import pipeline as archive_pipeline
from cometmq.pipelines.archive.layout import Layout
from cometmq.testing.cluster import Cluster

KILLS = int(os.environ.get("COMETMQ_TABLE_KILLS", "10"))
FIXED_SEED = 40
SEED = seed_of("COMETMQ_TABLE_SEED", FIXED_SEED)
REPEATED_BY = f"COMETMQ_TABLE_SEED={SEED} COMETMQ_TABLE_KILLS={KILLS}"
# Of ten.
SHARES = {"driver": 4, "java": 3, "broker": 3}
GROUP = "tables"
QUICK_SPARK = {**CONFIG, **QUICK_QUERIES}


class Service:
    """`cometmq pipeline table`, with its files below `directory`."""

    def __init__(
        self,
        directory: Path,
        namesrv: str,
        *,
        master: str = "local[2]",
        config: Mapping[str, str] = QUICK_SPARK,
        **keys: Any,
    ) -> None:
        self.path = directory / "archive"
        self.reports = directory / "reports"
        self.log = directory / "service.log"
        self._file = directory / "pipeline.toml"
        given = {"path": str(self.path), "freshness": "2s", "metrics": f"{HOST}:0", **keys}
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        self._file.write_text(
            f'[cluster]\nnamesrv = "{namesrv}"\n'
            f'[spark]\nmaster = "{master}"\nconfig = {inline_table(config)}\n'
            "[table]\n" + "\n".join(lines) + "\n"
        )
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "cometmq", "pipeline", "table", "-c", str(self._file)]
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--reports", str(self.reports)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable},
                cwd=ROOT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def commits(self) -> int:
        return Layout(self.path).load_state().commits

    def archived(self) -> int:
        return sum(queue.to - queue.first for queue in Layout(self.path).load_state().queues)

    def kill(self, kind: str) -> bool:
        """Kill the driver's Python or its Java; whether there was one."""
        wanted = "SparkSubmit" if kind == "java" else "-m cometmq pipeline table"
        found = [one.pid for one in below({self.process.pid}) if wanted in one.line]
        return bool(found) and kill(found[0])

    def metrics(self) -> dict[str, float]:
        ports = re.findall(rf"metrics are served at {HOST}:(\d+)", self.text)
        if not ports:
            return {}
        with urllib.request.urlopen(f"http://{HOST}:{ports[-1]}/metrics") as answer:
            text = answer.read().decode()
        pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def wait_for(self, condition: Any, note: str) -> None:
        """Wait for a condition, as long as the service runs."""
        eventually(
            lambda: condition() or self.process.poll() is not None, note=note, wait_s=JVM_WAIT_S
        )
        assert self.process.poll() is None, self.text[-4000:]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(JVM_WAIT_S)

    def close(self) -> None:
        """Kill all of it."""
        if self.process.poll() is None:
            processes = below({self.process.pid})
            self.process.kill()
            for one in processes:
                kill(one.pid)
            self.process.wait(PROCESS_WAIT_S)


@contextmanager
def service(directory: Path, namesrv: str, **keys: Any) -> Iterator[Service]:
    one = Service(directory, namesrv, **keys)
    try:
        yield one
    finally:
        one.close()


def make(namesrv: str, topic: str, count: int = 1) -> None:
    with Producer("maker", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(count):
            producer.send(Message(topic, b"made %d" % at))


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cometmq", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        cwd=ROOT,
    )
    return done.stdout


def make_group(namesrv: str) -> None:
    command("admin", "updateSubGroup", "-n", namesrv, "-c", "DefaultCluster", "-g", GROUP)


def waiting_of_group(namesrv: str) -> int:
    """The lag of the group as the command shows it, summed over the queues."""
    text = command("admin", "consumerProgress", "-n", namesrv, "-g", GROUP, "-o", "json")
    return int(json.loads(text)["total"]["diffTotal"])


def rows_of_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of the newest snapshot, as PyIceberg and deltalake read them."""
    from deltalake import DeltaTable
    from pyiceberg.table import StaticTable

    columns = ("topic", "broker", "queue_id", "queue_offset", "body")
    metadata = path / "_tables" / "iceberg" / "metadata"
    hint = (metadata / "version-hint.text").read_text()
    iceberg = StaticTable.from_metadata(f"{metadata}/{hint}.metadata.json")
    delta = DeltaTable(str(path / "_tables" / "files"))
    return {
        "iceberg": iceberg.scan(selected_fields=columns).to_arrow().to_pylist(),
        "delta": delta.to_pyarrow_table(columns=list(columns)).to_pylist(),
    }


def check_tables(path: Path, wanted: dict[Place, bytes], topic: str) -> None:
    for name, rows in rows_of_tables(path).items():
        own = [row for row in rows if row["topic"] == topic]
        found = {(row["broker"], row["queue_id"], row["queue_offset"]): row["body"] for row in own}
        assert len(own) == len(found), (
            f"{len(own) - len(found)} rows twice in {name} ({REPEATED_BY})"
        )
        assert found == wanted, f"{len(wanted) - len(found)} rows missing in {name} ({REPEATED_BY})"
    # Each snapshot has more messages than the one before, or the same.
    snapshots = tables_of(path)
    assert snapshots["iceberg"] == snapshots["delta"]
    counts = [count for _, count, _ in snapshots["iceberg"]]
    assert counts == sorted(counts)


def wanted_of(namesrv: str, topic: str) -> dict[Place, bytes]:
    return {message.place: message.body for message in stored(namesrv, topic)}


def kinds_of(rng: random.Random, count: int) -> list[str]:
    kinds = [kind for kind, share in SHARES.items() for _ in range(-(-share * count // 10))]
    rng.shuffle(kinds)
    return kinds[:count]


def run_kills(
    one: Service, broker: BrokerProcess, load: Load, rng: random.Random
) -> dict[str, int]:
    counts = dict.fromkeys(SHARES, 0)
    for kind in kinds_of(rng, KILLS):
        before = one.commits()
        one.wait_for(
            lambda before=before: one.commits() > before, f"a commit before {kind} ({REPEATED_BY})"
        )
        time.sleep(rng.uniform(0, 1.5))
        if kind == "broker":
            broker.kill()
            time.sleep(rng.uniform(0, 1))
            broker.start()
        else:
            one.wait_for(lambda kind=kind: one.kill(kind), f"a {kind} ({REPEATED_BY})")
        counts[kind] += 1
    assert load.acknowledged
    return counts


def test_five_kills_reach_each_kind_of_process() -> None:
    assert set(kinds_of(random.Random(FIXED_SEED), 5)) == SHARES.keys()


@pytest.mark.crash
@pytest.mark.timeout(0)
def test_kills_of_driver_java_and_broker_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with Cluster(brokers=0) as name_server:
        namesrv = name_server.namesrv
        broker = BrokerProcess(tmp_path, namesrv)
        try:
            make(namesrv, "orders")
            make_group(namesrv)
            keys = {"topics": ["orders"], "max_restarts": 10 * KILLS, "commit_group": GROUP}
            with service(tmp_path, namesrv, **keys) as one:
                with Load(namesrv, "orders", SEED, most=100 * KILLS) as load:
                    counts = run_kills(one, broker, load, rng)
                wanted = wanted_of(namesrv, "orders")
                assert load.acknowledged.items() <= wanted.items(), REPEATED_BY
                one.wait_for(lambda: one.archived() == len(wanted), f"all messages ({REPEATED_BY})")
                series = '{topic="orders"}'
                one.wait_for(
                    lambda: one.metrics()[f"cometmq_table_rows{series}"] == len(wanted), "figures"
                )
                found = one.metrics()
                restarts = sum(value for name, value in found.items() if "_restarts_total" in name)
                # The broker may take a driver with it.
                assert counts["driver"] + counts["java"] <= restarts
                assert found[f"cometmq_table_lag_messages{series}"] == 0
                assert found[f"cometmq_table_freshness_seconds{series}"] < JVM_WAIT_S
                assert one.stop() == 0, one.text[-4000:]
            restarted = [
                line for line in one.text.splitlines() if "the service starts it again in" in line
            ]
            assert len(restarted) == restarts
            killed = [line for line in restarted if "SIGKILL killed it" in line]
            assert bool(killed) == bool(counts["driver"])
            assert waiting_of_group(namesrv) == 0
            check_tables(one.path, wanted, "orders")
            (day, *_) = sorted(one.reports.glob("table-*.json"))
            assert json.loads(day.read_bytes())["restart_count"] >= 1
            assert day.with_suffix(".html").exists()
        finally:
            broker.close()
    print(f"{REPEATED_BY}: {counts}, {restarts:g} restarts, {len(wanted)} messages")  # noqa: T201 - shown when the test fails


def test_a_stop_finishes_the_batch_and_the_next_run_goes_on_with_new_topics(tmp_path: Path) -> None:
    with Cluster(brokers=0) as name_server:
        namesrv = name_server.namesrv
        broker = BrokerProcess(tmp_path, namesrv)
        try:
            make(namesrv, "orders-a", 30)
            keys = {"topic_pattern": "orders-.*", "compact_files": 2}
            with service(tmp_path, namesrv, **keys) as one:
                one.wait_for(lambda: one.archived() == 30, "the first messages")
                # A topic that appears later is followed.
                make(namesrv, "orders-b", 20)
                one.wait_for(lambda: one.archived() == 50, "a new topic")
                make(namesrv, "orders-a", 25)
                assert one.stop() == 0, one.text[-4000:]
                assert "the service starts it again" not in one.text
                first = one.archived()
                one.start()
                one.wait_for(lambda: one.archived() == 75, "what came after the stop")
                # It begins with the proof that the stop has left out, and compacts.
                one.wait_for(
                    lambda: all(
                        q.proved_to > 0 for q in Layout(one.path).load_state().queues if q.to
                    ),
                    "a proof",
                )
                assert one.stop() == 0, one.text[-4000:]
            assert first in (50, 75)
            for topic in ("orders-a", "orders-b"):
                check_tables(one.path, wanted_of(namesrv, topic), topic)
            report = json.loads((one.reports / "table.json").read_bytes())
            assert (report["pipeline"], report["holds"]) == ("table", True)
            assert {line["topic"] for line in report["topics"]} == {"orders-a", "orders-b"}
        finally:
            broker.close()


def test_what_does_not_fit_ends_the_service_at_once(tmp_path: Path) -> None:
    with Cluster(brokers=1) as cluster:
        make(cluster.namesrv, "orders")
        with service(tmp_path, cluster.namesrv, topics=["ordres"]) as one:
            assert one.process.wait(JVM_WAIT_S) == 2, one.text[-4000:]
            assert "did you mean orders?" in one.text
            assert "started again" not in one.text


def test_an_outage_of_all_brokers_is_waited_for_in_place(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A look gives up after a minute else.
    monkeypatch.setattr("cometmq.spark.live.options.PATIENCE_MS", 300)
    path = tmp_path / "archive"
    config = archive.Config(path=str(path), topics=["orders"], mode="stream", interval_s=0.1)
    stopped = threading.Event()
    looks: list[int] = []
    reports: list[archive.Report] = []

    def observe(standing: archive_pipeline.Standing) -> None:
        looks.append(standing.looked_ms)

    def archived() -> int:
        return sum(queue.to - queue.first for queue in Layout(path).load_state().queues)

    with Cluster(brokers=0) as name_server:
        namesrv = name_server.namesrv
        broker = BrokerProcess(tmp_path, namesrv)
        try:
            make(namesrv, "orders", 10)

            def work() -> None:
                context = context_of(spark, namesrv)
                reports.append(archive.run(config, context, stopped, observe=observe))

            thread = threading.Thread(target=work)
            thread.start()
            try:
                eventually(lambda: archived() == 10 or not thread.is_alive(), wait_s=JVM_WAIT_S)
                broker.kill()
                # Looks that fail show the time of the last one that did not.
                eventually(
                    lambda: len(looks) - len(set(looks)) > 10 or not thread.is_alive(),
                    wait_s=JVM_WAIT_S,
                )
                assert thread.is_alive()
                broker.start()
                make(namesrv, "orders", 5)
                eventually(lambda: archived() == 15 or not thread.is_alive(), wait_s=JVM_WAIT_S)
            finally:
                stopped.set()
                thread.join(JVM_WAIT_S)
        finally:
            broker.close()
    assert [report.archived for report in reports] == [15]

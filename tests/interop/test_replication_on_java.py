"""Our slave on Java masters, and Java slaves on our master: one run of a pair each, over the real link.

COMETMQ_PAIRS names other pairs of master and slave, such as `java5-java5` to see what Java alone does.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import RawClient
from tests.interop.at_once import at_once, made
from tests.interop.clients import CometClient, Event, JavaClient, RunningClient
from tests.interop.conftest import need
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.replicas import KINDS, Pair, copy_of_store, log_bytes
from tests.waits import JVM_WAIT_S, eventually

from cometmq.store.config import StoreConfig
from cometmq.store.offline.repair import check
from cometmq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

PAIRS = os.environ.get("COMETMQ_PAIRS", "java4-comet,java5-comet,comet-java4,comet-java5").split(
    ","
)
CONF = {
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "150",
    "transactionCheckMax": "15",
    "slaveReadEnable": "true",
    "haSendHeartbeatInterval": "1000",
}
# A Java 5 master waits for a slave only when it is told so.
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "20000"}
# One of ours is an ASYNC_MASTER.
ASYNC_PAIR = "comet-java4"
TOPICS = ("tagged", "batched", "compressed", "from-comet", "transacted")
COUNT = 20
UPDATE_BROKER_CONFIG = 25
# `mqadmin` runs one command after the other.
LOCK = threading.Lock()
GROUP = "readers"


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The runs of all pairs at once: most of each is waiting for what takes 5, 10 or 60 s in Java."""
    need("java", "mvn", "cc")
    directory = tmp_path_factory.mktemp("pairs")
    with MqAdmin(5) as mqadmin:

        def run(kinds: str) -> None:
            Run(kinds, made(directory / kinds), mqadmin).from_begin_to_end()

        with at_once(request, run, places=len(PAIRS)) as runs:
            yield runs


@pytest.mark.parametrize("case", PAIRS)
def test_a_slave_has_what_its_master_has(runs: dict[str, Future[None]], case: str) -> None:
    runs[case].result()


class Client:
    """The clients of one pair, whose topics and groups have a prefix."""

    def __init__(self, java: JavaClient, namesrv: str, prefix: str) -> None:
        self.java = java
        self.prefix = prefix
        self.base: dict[str, Any] = {"namesrv": namesrv}
        self.topics = [f"{prefix}-{topic}" for topic in TOPICS]

    def produce(self, stage: int) -> None:
        """Messages of every sort; those of a stage have indexes of their own."""
        tagged, batched, compressed, from_comet, transacted = self.topics
        base: dict[str, Any] = {**self.base, "count": COUNT, "first": COUNT * stage}
        delays = ",level:1,,level:2"
        sent = self.java.produce(
            **base, topic=tagged, mode="sync", size=400, tags="TagA,TagB,标签", delays=delays
        )
        assert {event["status"] for event in sent} == {"SEND_OK"}
        self.java.produce(**base, topic=batched, mode="batch", size=300)
        self.java.produce(**base, topic=compressed, mode="async", size=5000)
        CometClient().produce(**base, topic=from_comet, mode="sync", size=500, tags="x,y")
        verdicts = "commit,rollback,unknown,commit"
        half = {**base, "group": f"{self.prefix}-producers", "verdicts": verdicts}
        with self.java.start("transact", **half, topic=transacted, check="commit") as producer:
            producer.wait_for(lambda events: any(e["event"] == "all-sent" for e in events))
            wanted = {COUNT * stage + number for number in range(COUNT) if number % 4 == 2}
            eventually(lambda: _indexes(producer.named("checked")) >= wanted, wait_s=JVM_WAIT_S)
            producer.finish()

    def read(self, stage: int, group: str = GROUP) -> set[int]:
        """Return the indexes that the group receives from the tagged topic: this stage's messages,
        no others.
        """
        events = self.java.run("consume", **self.consumer(group), expected=COUNT)
        found = _indexes([event for event in events if event["event"] == "message"])
        return {index - COUNT * stage for index in found}

    def reading(self, group: str) -> RunningClient:
        return self.java.start("consume", **self.consumer(group), until_stdin=True)

    def consumer(self, group: str) -> dict[str, Any]:
        return {**self.base, "topic": self.topics[0], "group": f"{self.prefix}-{group}"}

    def pull_all(self) -> dict[tuple[str, int, int], tuple[int, str]]:
        """Every message by its place."""
        events = self.java.pull(**self.base, topic=",".join(self.topics))
        return {
            (event["topic"], event["queueId"], event["queueOffset"]): (
                int(event["properties"]["index"]),
                event["msgId"],
            )
            for event in events
        }


def _indexes(events: list[Event]) -> set[int]:
    return {int(event["properties"]["index"]) for event in events}


class Run:
    """The life of a pair, from its start to its end."""

    def __init__(self, kinds: str, directory: Path, mqadmin: MqAdmin) -> None:
        self.kinds = kinds
        self.directory = directory
        self.mqadmin = mqadmin
        self.master, self.slave = kinds.split("-")
        self.is_sync = kinds != ASYNC_PAIR

    def from_begin_to_end(self) -> None:
        conf = {**CONF, **(SYNC if self.is_sync else {})}
        with (
            Cluster(brokers=0) as names,
            Pair(
                self.master, self.slave, names.namesrv, self.directory, self.kinds, conf, CONF
            ) as pair,
        ):
            self.namesrv = names.namesrv
            self.pair = pair
            java = JavaClient(4 if "4" in self.kinds else 5)
            at = self.clients = Client(java, self.namesrv, self.kinds)
            pair.start_slave()
            pair.caught_up()
            at.produce(0)
            assert at.read(0) == set(range(COUNT))
            pair.caught_up()
            self.cut_in_a_record()
            with LOCK:
                self.look_by_mqadmin()
            self.check_tables()
            again = pair.restart_slave()
            at.produce(2)
            pair.caught_up()
            assert again.frames()[0].offset > 0, "the slave began anew"
            self.read_without_master()
            if self.master == "comet" and self.is_sync:
                self.lose_the_slave_of_a_sync_master()
            self.compare_logs()

    def cut_in_a_record(self) -> None:
        """Break the link within a frame; the slave goes on where its log ends."""
        pair, at = self.pair, self.clients
        count = len(pair.tap.connections)
        pair.tap.cut_after(1234)
        base = {**at.base, "topic": at.topics[3], "mode": "async"}
        CometClient().produce(**base, size=4000, count=3, first=1_000_000)
        eventually(lambda: len(pair.tap.connections) > count, wait_s=JVM_WAIT_S)
        at.produce(1)
        assert at.read(1) == set(range(COUNT))
        pair.caught_up()

    def look_by_mqadmin(self) -> None:
        pair, mqadmin, namesrv = self.pair, self.mqadmin, self.namesrv
        rows = mqadmin.run(namesrv, "clusterList").rows
        assert {(row[1], row[2], row[3]) for row in rows if row[1] == pair.name} == {
            (pair.name, "0", pair.master.address),
            (pair.name, "1", pair.slave.address),
        }
        status = mqadmin.run(namesrv, "brokerStatus", "-b", pair.slave.address).out
        assert re.search(r"commitLogMaxOffset\s*:\s*[1-9]", status), status
        config = mqadmin.run(namesrv, "getBrokerConfig", "-b", pair.slave.address).out
        assert re.search(r"brokerRole\s*=\s*SLAVE", config), config
        assert re.search(r"brokerId\s*=\s*1\b", config), config
        if self.master != "java4":  # which does not know the request
            self._look_at_the_master()
        if self.slave != "java4":
            of_slave = mqadmin.run(namesrv, "haStatus", "-b", pair.slave.address).out
            assert re.search(rf"#MasterAddr\s+{re.escape(pair.tap.address)}\s", of_slave), of_slave
            assert re.search(r"#CommitLogMaxOffset\s+[1-9]", of_slave), of_slave

    def _look_at_the_master(self) -> None:
        shown = self.mqadmin.run(self.namesrv, "haStatus", "-b", self.pair.master.address).out
        assert re.search(r"#MasterCommitLogMaxOffset\s+[1-9]", shown), shown
        assert re.search(r"#InSyncSlaveNum\s+1\b", shown), shown
        row = r"^127\.0\.0\.1:\d+\s+(\d+)\s+(\d+)\s+\S+\s+(\w+)\s+\d+"
        ((acknowledged, gap, state),) = re.findall(row, shown, re.MULTILINE)
        assert (int(acknowledged) > 0, int(gap) < 1 << 20, state) == (True, True, "OK"), shown

    def check_tables(self) -> None:
        """The slave has topics, groups and the offsets of consumers as its master has them, in its
        files, too.
        """
        pair, at = self.pair, self.clients
        key = f"{at.topics[0]}@{self.kinds}-{GROUP}"

        def tables() -> tuple[dict[str, Any], dict[str, Any]]:
            return pair.tables(pair.master), pair.tables(pair.slave)

        def are_copied(found: tuple[dict[str, Any], dict[str, Any]]) -> bool:
            # What a consumer commits as it leaves arrives a moment later.
            offsets = found[0]["consumer offsets"].get(key, {})
            return sum(offsets.values()) == 2 * COUNT and found[0] == found[1]

        # A Java 5 slave copies tables once a minute.
        eventually(tables, are_copied, wait_s=JVM_WAIT_S, pause_s=0.2)
        offsets = pair.tables(pair.master)["consumer offsets"][key]
        eventually(lambda: pair.offsets_in_file().get(key), lambda found: found == offsets)

    def read_without_master(self) -> None:
        """A group that reads goes on at the slave, one that had read goes on where it was, a new one
        reads all; when the master is back, they read from it.

        It does not know what was committed to the slave, so that may come again, as with Java.
        """
        pair, at = self.pair, self.clients
        with at.reading("always") as reader:
            reader.wait_messages(3 * COUNT)
            pair.master.kill()
            assert at.read(2) == set(range(COUNT))
            events = at.java.run("consume", **at.consumer("new"), expected=3 * COUNT)
            assert _received(events) == set(range(3 * COUNT))
            count = len(pair.tap.connections)
            pair.master.start()
            eventually(lambda: pair.tap.connections[count:], wait_s=JVM_WAIT_S)
            pair.caught_up()
            at.produce(3)
            eventually(lambda: _received(reader.events) == set(range(4 * COUNT)), wait_s=JVM_WAIT_S)
            reader.finish()
        with at.reading(GROUP) as reader:
            late = set(range(3 * COUNT, 4 * COUNT))
            eventually(lambda: _received(reader.events) >= late, wait_s=JVM_WAIT_S)
            assert _received(reader.events) <= set(range(2 * COUNT, 4 * COUNT))
            reader.finish()
        pair.caught_up()

    def lose_the_slave_of_a_sync_master(self) -> None:
        """Check a Java client's answers when the slave is silent, and when it is gone."""
        pair, at = self.pair, self.clients
        with RawClient(pair.master.address) as client:
            answer = client.ask(UPDATE_BROKER_CONFIG, body=b"slaveTimeout=500\n")
        one = {**at.base, "topic": at.topics[0], "mode": "sync", "count": 1, "first": 2_000_000}
        assert answer.code == 0
        pair.tap.lets_reports_through.clear()
        (sent,) = at.java.produce(**one)
        pair.tap.lets_reports_through.set()
        assert sent["status"] == "FLUSH_SLAVE_TIMEOUT"
        pair.caught_up()
        pair.slave.kill()
        eventually(
            lambda: at.java.produce(**one)[0]["status"],
            lambda status: status == "SLAVE_NOT_AVAILABLE",
        )
        pair.restart_slave()
        pair.caught_up()
        assert at.java.produce(**one)[0]["status"] == "SEND_OK"

    def compare_logs(self) -> None:
        """The logs are equal in every byte; the copy is sound, and the other side serves it as its own."""
        pair, at = self.pair, self.clients
        served = at.pull_all()
        end = pair.caught_up()
        pair.master.kill()
        # What Java's brokers keep in memory only is in their files after a stop.
        if self.slave == "comet":
            pair.slave.stop()
        else:
            # Whenever it copies the topics, Java 5's slave deletes them one by one, and writes its file
            # each time (SlaveSynchronize.syncTopicConfig), before it has them all again.
            eventually(lambda: pair.topics_in_file() >= set(at.topics))
            pair.slave.kill()
        assert log_bytes(pair.slave.store, end) == log_bytes(pair.master.store, end)
        copy = copy_of_store(pair.slave, self.directory / "copy")
        if self.slave == "comet":
            config = StoreConfig(store_path_root_dir=copy, mapped_file_size_commit_log=1 << 20)
            _, report = check(config)
            assert report.findings == [], report.findings
        other = KINDS[self.master](
            self.namesrv,
            broker_name=self.kinds,
            store=copy,
            commit_log_file_bytes=1 << 20,
            heap_mib=256,
            conf=CONF,
        )
        with other:
            found = eventually(at.pull_all, lambda found: len(found) >= len(served), pause_s=0.5)
            other.kill()
        assert served.items() <= found.items()
        # How far delayed messages are delivered is copied every 10 s: what came since comes again.
        again = {index for index, _ in (found[place] for place in found.keys() - served.keys())}
        assert all(index % 4 in (1, 3) for index in again), again


def _received(events: list[Event]) -> set[int]:
    return _indexes([event for event in events if event["event"] == "message"])

"""Our slave on Java masters, and Java slaves on our master: one run of a pair each, over the real link.

COMETMQ_PAIRS names other pairs of master and slave, such as `java5-java5` to see what Java alone does.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.clients import CometClient, Event, JavaClient, RunningClient
from tests.interop.comet_servers import CometNamesrv
from tests.interop.conftest import need
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import JavaBroker
from tests.interop.replicas import KINDS, Pair, copy_of_store, log_bytes, log_end
from tests.waits import JVM_WAIT_S, eventually

from cometmq.store.config import StoreConfig
from cometmq.store.offline.repair import check

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

PAIRS = os.environ.get("COMETMQ_PAIRS", "java4-comet,java5-comet,comet-java4,comet-java5").split(",")
CONF = {
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "150",
    "transactionCheckMax": "15",
    "slaveReadEnable": "true",
    "haSendHeartbeatInterval": "1000",
}
# A Java 5.3 master waits for a slave only when it is told so.
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "20000"}
TOPICS = ("tagged", "batched", "compressed", "from-comet", "transacted")
COUNT = 20
GROUP = "readers"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need("java", "mvn", "cc")
    with CometNamesrv() as server:
        yield server.address


@pytest.fixture(scope="module")
def mqadmin() -> Iterator[MqAdmin]:
    need("java", "mvn")
    with MqAdmin(5) as runner:
        yield runner


@pytest.mark.parametrize("kinds", PAIRS)
def test_a_slave_has_what_its_master_has(
    namesrv: str, mqadmin: MqAdmin, tmp_path: Path, kinds: str
) -> None:
    master, slave = kinds.split("-")
    java = JavaClient(4 if "4" in kinds else 5)
    # Messages that a Java master of this line acknowledges when its slave has them.
    conf = {**CONF, **({} if master == "comet" else SYNC)}
    with Pair(master, slave, namesrv, tmp_path, kinds, conf, CONF) as pair:
        at = Client(java, namesrv, prefix=kinds)
        pair.start_slave()
        at.produce(0)
        assert at.read(0) == set(range(COUNT))
        pair.caught_up()
        cut_in_a_record(pair, at)
        look_by_mqadmin(mqadmin, namesrv, pair)
        again = pair.restart_slave()
        at.produce(2)
        end = pair.caught_up()
        assert again.frames()[0].offset > 0, "the slave began anew"
        check_tables(pair)
        pair.caught_up()
        read_without_master(pair, at)
        come_back(pair, at)
        end = pair.caught_up()
        pair.master.kill()
        pair.slave.kill() if slave != "comet" else pair.slave.stop()
        assert log_bytes(pair.slave.store, end) == log_bytes(pair.master.store, end)
        check_copy(pair, at, tmp_path)


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
            eventually(lambda: _indexes(producer.named("checked")) >= wanted, wait_s=180)
            producer.finish()

    def read(self, stage: int, group: str = GROUP) -> set[int]:
        """What the group receives of the tagged topic: this stage's messages, no others."""
        events = self.java.run("consume", **self._consumer(group), expected=COUNT)
        found = _indexes([event for event in events if event["event"] == "message"])
        return {index - COUNT * stage for index in found}

    def reading(self, group: str) -> RunningClient:
        return self.java.start("consume", **self._consumer(group), until_stdin=True)

    def _consumer(self, group: str) -> dict[str, Any]:
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


def cut_in_a_record(pair: Pair, at: Client) -> None:
    """Break the link within a frame, and within its header; the slave goes on where its log ends."""
    count = len(pair.tap.connections)
    for after in (1234, 7):
        pair.tap.cut_after(after)
        CometClient().produce(
            **at.base, topic=at.topics[3], mode="async", size=4000, count=3, first=-3
        )
        eventually(lambda: len(pair.tap.connections) > count, wait_s=JVM_WAIT_S)
        count = len(pair.tap.connections)
    at.produce(1)
    assert at.read(1) == set(range(COUNT))
    pair.caught_up()


def look_by_mqadmin(mqadmin: MqAdmin, namesrv: str, pair: Pair) -> None:
    rows = mqadmin.run(namesrv, "clusterList").rows
    assert {(row[1], row[2], row[3]) for row in rows if row[1] == pair.name} == {
        (pair.name, "0", pair.master.address),
        (pair.name, "1", pair.slave.address),
    }
    status = mqadmin.run(namesrv, "brokerStatus", "-b", pair.slave.address).out
    assert re.search(r"commitLogMaxOffset\s*:\s*[1-9]", status), status
    config = mqadmin.run(namesrv, "getBrokerConfig", "-b", pair.slave.address).out
    assert re.search(r"brokerRole\s*=\s*SLAVE", config)
    assert re.search(r"brokerId\s*=\s*1\b", config)
    if "java4" in (pair.kind, pair.slave_kind):
        return  # 4.9 does not know the request
    of_master = mqadmin.run(namesrv, "haStatus", "-b", pair.master.address).out
    assert re.search(r"#MasterCommitLogMaxOffset\s+[1-9]", of_master), of_master
    assert re.search(r"#InSyncSlaveNum\s+1\b", of_master), of_master
    acknowledged, gap, _, state, _ = re.findall(
        r"^127\.0\.0\.1:\d+\s+(\d+)\s+(\d+)\s+(\S+)\s+(\w+)\s+(\d+)", of_master, re.M
    )[0]
    assert (int(acknowledged) > 0, int(gap) < 1 << 20, state) == (True, True, "OK"), of_master
    of_slave = mqadmin.run(namesrv, "haStatus", "-b", pair.slave.address).out
    assert re.search(rf"#MasterAddr\s+{re.escape(pair.tap.address)}\s", of_slave), of_slave
    assert re.search(r"#CommitLogMaxOffset\s+[1-9]", of_slave), of_slave


def check_tables(pair: Pair) -> None:
    """The slave has topics, groups and the offsets of consumers as its master has them."""
    of_master = pair.tables(pair.master)
    eventually(lambda: pair.tables(pair.slave), lambda tables: tables == of_master, wait_s=180)


def read_without_master(pair: Pair, at: Client) -> None:
    """A new group reads all from the slave, and one that had read goes on where it was."""
    reader = at.reading("late")
    with reader:
        reader.wait_messages(3 * COUNT)
        pair.master.kill()
        assert at.read(2) == set(range(COUNT))
        events = at.java.run("consume", **at._consumer("new"), expected=3 * COUNT)
        assert _indexes([e for e in events if e["event"] == "message"]) == set(range(3 * COUNT))
        pair.master.start()
        at.produce(3)
        reader.wait_messages(4 * COUNT)
        assert _indexes(reader.named("message")) == set(range(4 * COUNT))
        reader.finish()


def come_back(pair: Pair, at: Client) -> None:
    """The master does not know what a group committed to the slave, so that comes again, as with Java."""
    with at.reading(GROUP) as reader:
        wanted = set(range(3 * COUNT, 4 * COUNT))
        eventually(lambda: _indexes(reader.named("message")) >= wanted, wait_s=JVM_WAIT_S)
        assert _indexes(reader.named("message")) <= set(range(2 * COUNT, 4 * COUNT))
        reader.finish()


def check_copy(pair: Pair, at: Client, tmp_path: Path) -> None:
    """The copy is sound by our own check, and a broker of Java serves it as its own."""
    copy = copy_of_store(pair.slave, tmp_path / "copy")
    _, report = check(StoreConfig(store_path_root_dir=copy, mapped_file_size_commit_log=1 << 20))
    assert report.findings == [], report.findings

"""A master and its slave, each a process of ours or of Java's, with a link between them that can be cut."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.integration.raw_client import RawClient
from tests.interop.comet_servers import CometBroker
from tests.interop.ha_tap import Connection, Tap
from tests.interop.java4 import Java4Broker
from tests.interop.peers import Java53Broker, JavaBroker
from tests.waits import JVM_WAIT_S, eventually

KINDS: dict[str, type[JavaBroker]] = {
    "java4": Java4Broker,
    "java53": Java53Broker,
    "java5": JavaBroker,
    "comet": CometBroker,
}
EXCHANGE_HA_INFO = 906
RUNTIME_INFO = 28
# What a slave copies from its master, as each answers for itself.
TABLES = {"topics": 21, "consumer offsets": 43, "groups": 201}
LOG_FILE_BYTES = 1 << 20


@dataclass
class Pair:
    """A context manager that starts the master; `start_slave` starts the slave. See `ha_tap.Tap`."""

    kind: str
    slave_kind: str
    namesrv: str
    directory: Path
    name: str
    conf: dict[str, str] = field(default_factory=dict)
    slave_conf: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tap = Tap()
        self.master = self._broker(self.kind, "master", self.conf)
        self.tap.target = f"127.0.0.1:{self.master.port + 1}"
        slave = {"brokerId": "1", "brokerRole": "SLAVE", "haMasterAddress": self.tap.address}
        self.slave = self._broker(self.slave_kind, "slave", {**slave, **self.slave_conf})

    def _broker(self, kind: str, word: str, conf: dict[str, str]) -> JavaBroker:
        directory = self.directory / word
        directory.mkdir()
        return KINDS[kind](
            self.namesrv,
            broker_name=self.name,
            directory=directory,
            commit_log_file_bytes=LOG_FILE_BYTES,
            heap_mib=256,
            conf={**conf},
        )

    def start_slave(self) -> None:
        """Start it and have it follow. A slave of Java 5 loses its `haMasterAddress` while it starts,
        so the address is set once more.
        """
        self.slave.start()
        if self.slave_kind in {"java53", "java5"}:
            addresses = {"masterHaAddress": self.tap.address, "masterAddress": self.master.address}
            with RawClient(self.slave.address) as client:
                assert client.ask(EXCHANGE_HA_INFO, addresses).code == 0

    def restart_slave(self) -> Connection:
        """Stop it (Java's, which takes ten seconds for it, is killed) and start it again; return the
        connection that it then makes.
        """
        if self.slave_kind == "comet":
            self.slave.stop()
        else:
            self.slave.kill()
        count = len(self.tap.connections)
        self.start_slave()
        return eventually(lambda: self.tap.connections[count:])[-1]

    def caught_up(self) -> int:
        """Wait until the slave has said that it has all of its master; return how much that is."""

        def look() -> tuple[int | None, int]:
            reports = self.tap.connections[-1].reports() if self.tap.connections else []
            return log_end(self.master), reports[-1].offset if reports else -1

        return eventually(look, lambda ends: ends[0] == ends[1], wait_s=JVM_WAIT_S, pause_s=0.05)[1]

    def tables(self, broker: JavaBroker) -> dict[str, Any]:
        """The broker's tables that slaves copy, in a form that can be compared."""
        with RawClient(broker.address) as client:
            return {name: _compared(name, client.ask(code).body) for name, code in TABLES.items()}

    def offsets_in_file(self) -> dict[str, Any]:
        """The consumer offsets that the slave finds when it starts again."""
        file = self.slave.store / "config" / "consumerOffset.json"
        return _compared("consumer offsets", file.read_bytes()) if file.exists() else {}

    def topics_in_file(self) -> set[str]:
        """The topics that the slave finds when it starts again; none while it writes them."""
        file = self.slave.store / "config" / "topics.json"
        with suppress(FileNotFoundError, ValueError):
            return set(_compared("topics", file.read_bytes()))
        return set()

    def close(self) -> None:
        for broker in (self.slave, self.master):
            if broker.process is not None:
                broker.kill()
        self.tap.close()

    def __enter__(self) -> Self:
        try:
            self.master.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def log_end(broker: JavaBroker) -> int | None:
    """Where the broker's log ends; None if it does not say, as Java's may not for a moment while it
    starts.
    """
    with RawClient(broker.address) as client:
        answer = client.ask(RUNTIME_INFO)
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"]) if answer.body else None


def log_bytes(store: Path, end: int) -> bytes:
    """The whole log, which begins at offset 0, up to `end`."""
    files = sorted((store / "commitlog").iterdir())
    assert files[0].name == "0" * 20
    for before, file in itertools.pairwise(files):
        assert int(before.name) + before.stat().st_size == int(file.name)
    return b"".join(file.read_bytes() for file in files)[:end]


def copy_of_store(broker: JavaBroker, directory: Path) -> Path:
    """Copy the store of a broker that is down, without the lock of its process."""
    assert broker.process is None
    shutil.copytree(broker.store, directory, ignore=shutil.ignore_patterns("lock", "timerwheel"))
    return directory


def _compared(name: str, body: bytes) -> dict[str, Any]:
    # Java writes the numbers of queues as they are, though JSON wants strings for keys.
    value = json.loads(re.sub(r"([{,]\s*)(-?\d+):", r'\1"\2":', body.decode()))
    if name == "consumer offsets":
        # A master alone goes on with its own groups, all the time.
        return {
            key: queues
            for key, queues in value["offsetTable"].items()
            if queues and "RMQ_SYS" not in key
        }
    rows = value["topicConfigTable" if name == "topics" else "subscriptionGroupTable"]
    if name == "topics":
        return {
            topic: (row["readQueueNums"], row["writeQueueNums"], row["perm"])
            for topic, row in rows.items()
            # Each broker has these of its own, with its name in some of them.
            if not topic.startswith(("rmq_", "RMQ_", "SCHEDULE_", "%", "broker-", "DefaultCluster"))
        }
    return {
        group: (row["consumeEnable"], row["retryMaxTimes"])
        for group, row in rows.items()
        # A broker's own, of which each version makes others.
        if "RMQ_SYS" not in group
    }

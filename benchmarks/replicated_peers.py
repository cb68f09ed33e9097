"""Start a master with a slave to load it: Java's pair and ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.interop.comet_servers import CometBroker
from tests.interop.peers import HOST, JavaBroker, broker_registered

from benchmarks.frames import BROKER_NAME, BenchmarkError
from benchmarks.peers import (
    COMMIT_LOG_FILE_BYTES,
    START_LIMIT_SECONDS,
    STOCK_GC_FLAGS,
    STOCK_JAVA_CONF,
    CometPeer,
    JavaPeer,
    Peer,
)

if TYPE_CHECKING:
    from pathlib import Path

# A Java 5 master waits for a slave only when a setting says for how many; ours waits for one at least. Nobody
# waits in vain: what takes longer than this is an error of the run.
SYNC_CONF = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "10000"}
SLAVE_CONF = {"brokerId": "1", "brokerRole": "SLAVE"}


class ReplicatedPeer(Peer):
    """Keeps a master, which is loaded, and its slave, which ends with it."""

    _slave: JavaBroker
    _starts_slave: bool

    @property
    def slave(self) -> JavaBroker:
        return self._slave

    @property
    def slave_address(self) -> tuple[str, int]:
        return HOST, self._slave.port

    def start_slave(self) -> None:
        """Start it once its master is registered: it learns from the name server where that is."""
        deadline = time.monotonic() + START_LIMIT_SECONDS
        host, port = self.address
        while not broker_registered(self._slave.namesrv, BROKER_NAME, address=f"{host}:{port}"):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the master of {self.label} does not register")
            time.sleep(0.05)
        self._slave.start()

    def _spawn_slave(self) -> None:
        if self._starts_slave:
            self.start_slave()

    def _stop_slave(self) -> None:
        self._slave.kill()


class JavaPair(ReplicatedPeer, JavaPeer):
    """Runs Java's master, slave and name server."""

    def __init__(self, directory: Path, *, heap_mib: int, sync: bool, slave: bool = True) -> None:
        super().__init__(directory, heap_mib=heap_mib, conf=_role(sync=sync))
        self._starts_slave = slave
        (directory / "slave").mkdir()
        self._slave = JavaBroker(
            self._namesrv.address,
            broker_name=BROKER_NAME,
            directory=directory / "slave",
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            heap_mib=heap_mib,
            conf={**STOCK_JAVA_CONF, **SLAVE_CONF},
            jvm_flags=[f"-Xms{heap_mib}m", *STOCK_GC_FLAGS],
        )

    def _spawn(self) -> None:
        super()._spawn()
        self._spawn_slave()

    def stop(self) -> None:
        self._stop_slave()
        super().stop()


class CometPair(ReplicatedPeer, CometPeer):
    """Runs our master, slave and name server."""

    def __init__(self, directory: Path, *, heap_mib: int, sync: bool, slave: bool = True) -> None:
        del heap_mib  # Java's alone
        super().__init__(directory, conf=_role(sync=sync))
        self._starts_slave = slave
        (directory / "slave").mkdir()
        host, port = self.name_server
        self._slave = CometBroker(
            f"{host}:{port}",
            broker_name=BROKER_NAME,
            directory=directory / "slave",
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            conf={**STOCK_JAVA_CONF, **SLAVE_CONF},
        )

    def _spawn(self) -> None:
        super()._spawn()
        self._spawn_slave()

    def stop(self) -> None:
        self._stop_slave()
        super().stop()


def _role(*, sync: bool) -> dict[str, str]:
    return {"flushDiskType": "ASYNC_FLUSH", **(SYNC_CONF if sync else {})}

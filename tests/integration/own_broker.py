"""Run a broker on a thread of the test, without a name server, with a disk and clock of its own."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.integration.raw_client import RawClient
from tests.waits import WAIT_S

from cometmq.broker.config import BrokerConfig
from cometmq.broker.server import Broker
from cometmq.errors import StoreError
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.portal import LoopThread
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk, DiskUsage

HOST = "127.0.0.1"
_PATIENT_MS = 60_000


class SetClock(SystemClock):
    """Shows the machine's clock, ahead or behind by what a test says."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class SetDisk(Disk):
    """Acts as a disk of which `used` percent are full.

    It counts syncs of the commit log as they begin, holds them up while `may_sync` is clear, and
    fails them while it is `broken`.
    """

    def __init__(self) -> None:
        self.used = 50
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.begun = 0
        self.broken = False

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, (100 - self.used) << 30)

    def sync(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            self.begun += 1
            assert self.may_sync.wait(WAIT_S)
            if self.broken:
                raise StoreError(f"{path}: Input/output error")
        super().sync(path)


class OwnBroker:
    """Runs the broker of `config` and `store`, started in `with`; `options` are for `Broker`.

    Unless `store` says otherwise, no send is refused because a flush takes a second: other
    processes may keep the disk busy, and tests hold syncs up.
    """

    def __init__(self, config: BrokerConfig, store: StoreConfig, **options: Any) -> None:
        if store.os_page_cache_busy_time_out_mills == StoreConfig.os_page_cache_busy_time_out_mills:
            store = replace(store, os_page_cache_busy_time_out_mills=_PATIENT_MS)
        self.disk = SetDisk()
        self.clock = SetClock()
        self.root = store.store_path_root_dir
        self.broker = Broker(config, store, disk=self.disk, clock=self.clock, **options)
        self.thread = LoopThread("broker")

    @property
    def address(self) -> str:
        return f"{HOST}:{self.broker.port}"

    def client(self) -> RawClient:
        return RawClient(self.address)

    def __enter__(self) -> Self:
        self.thread.start()
        self.thread.call(self.broker.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.disk.may_sync.set()
        try:
            self.thread.call(self.broker.close())
        finally:
            self.thread.stop()


def nameless(**settings: Any) -> BrokerConfig:
    """Return the configuration of a broker of this machine that no name server knows."""
    return BrokerConfig(
        broker_name="b", broker_ip1=HOST, bind_address=HOST, listen_port=0, **settings
    )

"""A whole broker on a temporary directory, and clients of it on connections without a socket.

The one place in which tests of what the broker's handlers answer build a broker: they say what comes
in, by the bytes of the wire, and what goes out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.integration.raw_client import json_request
from tests.unit.remoting.line import Line
from tests.waits import until

from cometmq.access.config import AccessConfig
from cometmq.broker.config import BrokerConfig
from cometmq.broker.server import Broker
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.runtime.clock import BlockingClock
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk, DiskUsage

HOST = "127.0.0.1"
# A broker refuses messages while a sync takes longer, which it may on a busy machine.
SYNC_LIMIT_MS = 60_000
ADDRESS: dict[str, Any] = {
    "broker_name": "b",
    "broker_ip1": HOST,
    "bind_address": HOST,
    "listen_port": 0,
}
# Topics that are there from the beginning, with their read and write queues and permission.
TOPICS = {"orders": (4, 4, 6), "narrow": (4, 1, 6), "closed": (4, 0, 6), "secret": (4, 4, 2)}
# And groups: one as they are made, and one that may not consume.
GROUP, SILENT_GROUP = "g", "silent"


class RoomyDisk(Disk):
    """A disk that is half full, whatever else this machine keeps: above 75 % files go at any hour,
    and above 90 % nothing is taken.
    """

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, 50 << 30)


class Client:
    """One connection to the broker; `port` tells it from others, and from the broker's own `host` it
    is an administrator's.
    """

    def __init__(self, broker: Broker, port: int = 4711, *, host: str = "10.0.0.9") -> None:
        self.line = Line(broker.handlers, peer=(host, port))
        self._opaque = 100

    def frame(self, code: int, ext: Mapping[str, Any], body: bytes = b"", flag: int = 0) -> bytes:
        self._opaque += 1
        return json_request(code, ext, body, opaque=self._opaque, flag=flag)

    def send(self, code: int, ext: Mapping[str, Any], body: bytes = b"", *, flag: int = 0) -> int:
        """Have the broker read one request; its opaque."""
        self.line.feed(self.frame(code, ext, body, flag))
        return self._opaque

    async def answer(self, opaque: int) -> RemotingCommand:
        found: RemotingCommand = await until(lambda: self.answers().get(opaque))
        return found

    async def ask(self, code: int, ext: Mapping[str, Any], body: bytes = b"") -> RemotingCommand:
        return await self.answer(self.send(code, ext, body))

    async def ask_all(self, *frames: bytes) -> list[RemotingCommand]:
        """Feed frames in one read; return their answers in the order in which they come."""
        before = len(self.line.received())
        self.line.feed(b"".join(frames))
        await until(lambda: len(self.line.received()) - before == len(frames))
        return self.line.received()[before:]

    def answers(self) -> dict[int, RemotingCommand]:
        return {command.opaque: command for command in self.line.received() if command.is_response}


class Unanswered:
    """The connection of a client that answers no call; each call ends when `over` says so."""

    def __init__(self, client: Client) -> None:
        self._connection = client.line.connection
        self.limit_hits = self._connection.limit_hits
        self.closed = False
        self.over = asyncio.Event()

    async def call(self, command: RemotingCommand, _timeout_s: float) -> RemotingCommand:
        try:
            return await self._connection.call(command, 0.01)
        finally:
            await self.over.wait()

    def send_oneway(self, command: RemotingCommand) -> None:
        self._connection.send_oneway(command)

    @property
    def congested(self) -> bool:
        return self._connection.congested

    def call_nowait(
        self, command: RemotingCommand, _timeout_s: float
    ) -> asyncio.Future[RemotingCommand]:
        return self._connection.call_nowait(command, 0.01)


@asynccontextmanager
async def running(
    directory: Path,
    *,
    store: Mapping[str, Any] | None = None,
    disk: Disk | None = None,
    access: AccessConfig | None = None,
    clock: BlockingClock | None = None,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """Run a broker that has these topics and groups, until the end of the block."""
    broker = new_broker(directory, store=store, disk=disk, access=access, clock=clock, **settings)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def new_broker(
    directory: Path,
    *,
    store: Mapping[str, Any] | None = None,
    disk: Disk | None = None,
    access: AccessConfig | None = None,
    clock: BlockingClock | None = None,
    **settings: Any,
) -> Broker:
    config = directory / "config"
    if not config.exists():
        config.mkdir(parents=True)
        _write_tables(config)
    return Broker(
        BrokerConfig(**{**ADDRESS, **settings}),
        StoreConfig(
            store_path_root_dir=directory,
            mapped_file_size_commit_log=4 << 20,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=1_000,
            max_index_num=4_000,
            **{"os_page_cache_busy_time_out_mills": SYNC_LIMIT_MS, **(store or {})},
        ),
        access=access,
        clock=clock,
        disk=disk or RoomyDisk(),
    )


def _write_tables(config: Path) -> None:
    version = {"counter": 0, "timestamp": 0}
    topics = {
        name: {"topicName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm}
        for name, (read, write, perm) in TOPICS.items()
    }
    groups = {
        name: {"groupName": name, "consumeEnable": name != SILENT_GROUP}
        for name in (GROUP, SILENT_GROUP)
    }
    for file, table in (
        ("topics.json", {"topicConfigTable": topics}),
        ("subscriptionGroup.json", {"subscriptionGroupTable": groups}),
    ):
        (config / file).write_text(json.dumps({**table, "dataVersion": version}))


def records(answer: RemotingCommand) -> list[StoredRecord]:
    assert answer.code == 0, answer.remark
    return list(decode_records(answer.body))


async def turns(count: int = 3) -> None:
    """Let the loop do what was made ready for its next turns."""
    for _ in range(count):
        await asyncio.sleep(0)

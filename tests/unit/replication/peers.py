"""Both ends of the replication on transports that are only lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cometmq.protocol.replication import FrameReader, ReportReader
from cometmq.replication.config import ReplicationConfig
from cometmq.replication.divergence import Divergence
from cometmq.replication.master import ReplicationMaster
from cometmq.replication.master_connection import MasterConnection
from cometmq.replication.slave import ReplicationSlave
from cometmq.replication.slave_connection import SlaveConnection
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.sockets.network import TCP_NETWORK
from cometmq.runtime.workers import THREADS, Workers
from cometmq.store.files.disk import Disk
from cometmq.store.store import MessageStore
from cometmq.tls.server import ServerTls


class Wire(asyncio.Transport):
    """Keeps what is written. With `room`, the peer takes only so many bytes."""

    def __init__(self, port: int = 4711) -> None:
        super().__init__({"peername": ("10.0.0.9", port)})
        self.written = bytearray()
        self.room: int | None = None
        self.unsent = self.high = 0
        self.reading = True
        self.closed = False
        self.protocol: asyncio.Protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: Any) -> None:
        assert not self.closed, "nothing is written behind the end"
        self.written += data
        if self.room is not None:
            self.unsent += len(data)
            if self.unsent > self.high:
                self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


class Slave:
    """A peer of a master that does what the test says."""

    def __init__(self, master: ReplicationMaster, port: int = 4711) -> None:
        self.wire = Wire(port)
        self.connection = self.wire.protocol = SlaveConnection(master)
        self.connection.connection_made(self.wire)

    def says(self, data: bytes) -> None:
        if not self.wire.closed:
            self.connection.data_received(data)

    @property
    def frames(self) -> list[tuple[int, int]]:
        """Offset and size of the parts of bodies that came."""
        return [(at, len(data)) for at, data in FrameReader().feed(bytes(self.wire.written))]

    @property
    def body(self) -> bytes:
        return b"".join(bytes(data) for _, data in FrameReader().feed(bytes(self.wire.written)))


class Master:
    """A peer of a slave that does what the test says."""

    def __init__(self, slave: ReplicationSlave) -> None:
        self.wire = Wire()
        self.slave = slave
        self.connection = self.wire.protocol = MasterConnection(slave)
        slave._connection = self.connection
        self.connection.connection_made(self.wire)
        self.connection.begin()

    @property
    def reports(self) -> int | None:
        return ReportReader().feed(bytes(self.wire.written))


def new_master(
    store: MessageStore,
    *,
    tls: ServerTls | None = None,
    workers: Workers = THREADS,
    **settings: Any,
) -> ReplicationMaster:
    return ReplicationMaster(
        store,
        ReplicationConfig(**settings),
        host="127.0.0.1",
        network=TCP_NETWORK,
        workers=workers,
        disk=Disk(),
        tls=tls,
    )


def new_slave(
    store: MessageStore,
    *,
    compare: Callable[[str], Awaitable[Divergence | None]] | None = None,
    **settings: Any,
) -> ReplicationSlave:
    return ReplicationSlave(
        store,
        ReplicationConfig(**settings),
        clock=SYSTEM_CLOCK,
        network=TCP_NETWORK,
        compare=compare,
    )

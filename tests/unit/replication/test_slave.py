"""The bytes that a slave takes from a master, and those that it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.replication.peers import Master, Wire, new_slave
from tests.unit.store.store_box import Box, bodies, put
from tests.waits import WAIT_S, until

from cometmq.errors import ConnectError, StoreFullError
from cometmq.protocol.replication import MAX_BODY_SIZE, encode_head
from cometmq.replication.config import ReplicationConfig
from cometmq.replication.divergence import Bounds, Cause, Divergence
from cometmq.replication.slave import ReplicationSlave
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.sockets.network import TcpNetwork
from cometmq.store.store import MessageStore
from cometmq.testing import virtual

Play = Callable[[Master, MessageStore], Coroutine[Any, Any, None]]


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """The log of a master with ten messages."""
    box = Box(tmp_path / "master")
    store = box.open()
    for number in range(10):
        put(store, b"%04d" % number)
    data = bytes(store.commit_log.files.files[0].view[: store.commit_log.end])
    box.close()
    return data


def scene(
    path: Path,
    play: Play,
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    **settings: Any,
) -> None:
    box = Box(path / "slave")
    store = box.open()

    async def run() -> None:
        slave = new_slave(store, **settings)
        master = Master(slave)
        await play(master, store)
        master.connection.close("the test ends")
        await slave.close()

    run_loop(run())
    box.close()


def frame(offset: int, body: bytes) -> bytes:
    return encode_head(offset, len(body)) + body


def test_it_reports_at_once_and_after_what_it_has_appended(tmp_path: Path, log: bytes) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        assert master.reports == 0
        master.connection.data_received(frame(0, log))
        await until(lambda: master.reports == len(log), pause_s=0.001)
        assert bodies(store) == [b"%04d" % number for number in range(10)]

    scene(tmp_path, play)


def test_byte_by_byte_gives_the_same_and_never_reports_half_a_record(
    tmp_path: Path, log: bytes
) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        stream = frame(0, log[:300]) + frame(300, b"") + frame(300, log[300:])
        for byte in stream:
            master.connection.data_received(bytes([byte]))
            assert master.reports == store.commit_log.end
        assert store.commit_log.end == len(log)
        assert bodies(store) == [b"%04d" % number for number in range(10)]

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (encode_head(500, 4) + b"gap!", "sends its log from 500 on, and this one ends at"),
        (encode_head(500, 0), "sends its log from 500 on, and this one ends at"),
        (encode_head(0, 4) + b"back", "sends its log from 0 on, and this one ends at"),
        (encode_head(1, MAX_BODY_SIZE + 1), "haTransferBatchSize"),
        (encode_head(1, -4), "negative size -4"),
        (b"HTTP/1.1 400 Bad Request", "no frame of the HA protocol"),
    ],
)
def test_what_does_not_continue_the_log_is_refused_and_nothing_is_touched(
    tmp_path: Path, log: bytes, sent: bytes, reason: str
) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        master.connection.data_received(frame(0, log))
        await until(lambda: store.commit_log.end == len(log), pause_s=0.001)
        before = bytes(store.commit_log.files.files[0].view)
        master.connection.data_received(sent)
        assert reason in await master.connection.ended
        assert master.wire.closed
        assert bytes(store.commit_log.files.files[0].view) == before
        assert store.commit_log.end == len(log)

    scene(tmp_path, play)


def test_bytes_that_are_no_records_are_refused(tmp_path: Path, log: bytes) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        master.connection.data_received(frame(0, b"\1" * 200))
        assert "no record begins at the commit-log offset 0" in await master.connection.ended
        assert store.commit_log.end == 0

    scene(tmp_path, play)


def test_an_empty_slave_takes_the_empty_frame_of_javas_master_as_a_beginning(
    tmp_path: Path, log: bytes
) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        master.connection.data_received(encode_head(0x80000, 0))
        await asyncio.sleep(0.01)
        assert not master.connection.closed

    scene(tmp_path, play)


def test_a_full_disk_makes_it_wait_and_then_go_on(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        full = [True]
        append = MessageStore.append_replicated

        def refuse(store: MessageStore, *args: Any, **kwargs: Any) -> bool:
            if full:
                raise StoreFullError("no room on the disk")
            return append(store, *args, **kwargs)

        monkeypatch.setattr(MessageStore, "append_replicated", refuse)
        monkeypatch.setattr("cometmq.replication.master_connection._PAUSE_S", 0.02)
        master.connection.data_received(frame(0, log[:500]))
        assert "no room on the disk" in str(master.slave.reason)
        assert not master.wire.is_reading()
        # The kernel may have given more before reading stopped.
        master.connection.data_received(frame(500, log[500:]))
        # It stays alive for its master, and does not blame it for the silence.
        await until(lambda: len(master.wire.written) > 3 * 8, pause_s=0.001)
        assert not master.connection.closed
        full.clear()
        await until(lambda: master.reports == len(log), pause_s=0.001)
        assert master.wire.is_reading()
        assert master.slave.reason is None
        assert bodies(store) == [b"%04d" % number for number in range(10)]

    settings = {"ha_housekeeping_interval": 60, "ha_send_heartbeat_interval": 20}
    scene(tmp_path, play, virtual.run, **settings)


def test_a_master_that_falls_silent_is_left(tmp_path: Path, log: bytes) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        assert "nothing came from the master" in await master.connection.ended

    settings = {"ha_housekeeping_interval": 50, "ha_send_heartbeat_interval": 20}
    scene(tmp_path, play, virtual.run, **settings)


def test_a_frame_behind_the_end_of_a_step_does_not_wait_for_more_bytes(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.replication.master_connection._STEP_BYTES", 300)

    async def play(master: Master, store: MessageStore) -> None:
        master.connection.data_received(frame(0, log[:300]) + frame(300, log[300:]))
        await until(lambda: master.reports == len(log), pause_s=0.001, wait_s=WAIT_S)

    scene(tmp_path, play)


def test_heartbeats_without_end_leave_others_their_turn(tmp_path: Path, log: bytes) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        turns = 0
        beats = 20_000
        master.connection.data_received(frame(0, log) + encode_head(len(log), 0) * beats)
        while master.connection.has_unread:
            await asyncio.sleep(0)
            turns += 1
        assert turns > beats / 2000
        assert not master.connection.closed

    scene(tmp_path, play)


def test_an_error_of_ours_ends_the_connection_and_does_not_leave_it_deaf(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_store: MessageStore, _limit: int) -> bool:
        raise IndexError("a mistake")

    async def play(master: Master, store: MessageStore) -> None:
        monkeypatch.setattr(MessageStore, "publish", fail)
        master.connection.data_received(frame(0, log))
        assert "a mistake" in await master.connection.ended
        assert master.wire.closed
        monkeypatch.undo()

    scene(tmp_path, play)


class Twice(TcpNetwork):
    """Connects twice, as to a name of two addresses, and drops the first connection."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []

    async def connect(self, new_protocol: Any, host: str, port: int, **_: Any) -> Any:
        for number in range(2):
            wire = Wire(number)
            wire.protocol = new_protocol()
            wire.protocol.connection_made(wire)
            self.wires.append(wire)
        self.wires[0].abort()
        await asyncio.sleep(0.01)
        return self.wires[1].protocol


def test_a_second_connection_that_is_not_taken_does_not_end_the_first(tmp_path: Path) -> None:
    box = Box(tmp_path / "slave")
    store = box.open()

    async def run() -> None:
        network = Twice()
        slave = ReplicationSlave(store, ReplicationConfig(), clock=SYSTEM_CLOCK, network=network)
        slave.follow("master:10912")
        slave.start()
        await until(lambda: slave.is_connected, pause_s=0.001)
        dropped, taken = network.wires
        await until(lambda: bool(taken.written), pause_s=0.001)
        assert not dropped.written
        assert not taken.closed
        await slave.close()

    asyncio.run(run())
    box.close()


def test_an_unforeseen_error_does_not_end_the_replication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.replication.slave._RETRY_S", 0.01)
    box = Box(tmp_path / "slave")
    store = box.open()

    async def run() -> None:
        calls = 0

        async def compare(_address: str) -> None:
            nonlocal calls
            calls += 1
            raise IndexError("a mistake")

        slave = new_slave(store, compare=compare)
        slave.follow("127.0.0.1:1")
        slave.start()
        await until(lambda: calls > 2, pause_s=0.001)
        assert "a mistake" in str(slave.reason)
        await slave.close()

    asyncio.run(run())
    box.close()


def test_what_was_found_of_a_former_master_is_not_said_of_the_next(tmp_path: Path) -> None:
    box = Box(tmp_path / "slave")
    store = box.open()

    async def run() -> None:
        asked: list[str] = []
        answer: asyncio.Future[Divergence | None] = asyncio.get_running_loop().create_future()

        async def compare(address: str) -> Divergence | None:
            asked.append(address)
            if len(asked) == 1:
                return await answer
            raise ConnectError("nobody is there")

        slave = new_slave(store, compare=compare)
        slave.follow("127.0.0.1:1")
        slave.start()
        await until(lambda: bool(asked), pause_s=0.001)
        slave.follow("127.0.0.1:2")
        answer.set_result(Divergence(Cause.LONGER, 0, 9, Bounds(0, 5), "127.0.0.1:0"))
        await until(lambda: slave.reason is not None, pause_s=0.001)
        assert asked == ["127.0.0.1:1", "127.0.0.1:2"]
        assert slave.divergence is None
        await slave.close()

    asyncio.run(run())
    box.close()

"""What a slave takes from a master, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.replication.peers import Master, new_slave
from tests.unit.store.store_box import Box, bodies, put
from tests.waits import until

from cometmq.errors import StoreFullError
from cometmq.protocol.replication import MAX_BODY_SIZE, encode_head
from cometmq.store.store import MessageStore

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


def scene(path: Path, play: Play, **settings: Any) -> None:
    box = Box(path / "slave")
    store = box.open()

    async def run() -> None:
        slave = new_slave(store, **settings)
        master = Master(slave)
        await play(master, store)
        master.connection.close("the test ends")
        await slave.close()

    asyncio.run(run())
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
        assert not master.wire.reading
        # The kernel may have given more before reading stopped.
        master.connection.data_received(frame(500, log[500:]))
        # It stays alive for its master, and does not blame it for the silence.
        await asyncio.sleep(0.15)
        assert not master.connection.closed
        assert len(master.wire.written) > 3 * 8
        full.clear()
        await until(lambda: master.reports == len(log), pause_s=0.001)
        assert master.wire.reading
        assert str(master.slave.reason) == "None"
        assert bodies(store) == [b"%04d" % number for number in range(10)]

    scene(tmp_path, play, ha_housekeeping_interval=60, ha_send_heartbeat_interval=20)


def test_a_master_that_falls_silent_is_left(tmp_path: Path, log: bytes) -> None:
    async def play(master: Master, store: MessageStore) -> None:
        assert "nothing came from the master" in await master.connection.ended

    scene(tmp_path, play, ha_housekeeping_interval=50, ha_send_heartbeat_interval=20)

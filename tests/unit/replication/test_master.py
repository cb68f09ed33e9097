"""A master's sends to its slaves, and its treatment of peers that are no slaves."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.certificates import Authority, client_hello
from tests.cleaning import remove_first
from tests.simulated import SimulatedWorkers
from tests.unit.replication.peers import Slave, new_master
from tests.unit.store.store_box import Box, put
from tests.waits import WAIT_S, until

from cometmq.protocol.replication import encode_report
from cometmq.replication.admission import MOST_UNKNOWN, SlaveAdmission
from cometmq.replication.master import ReplicationMaster
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.store import MessageStore
from cometmq.testing import virtual
from cometmq.tls.config import TlsConfig
from cometmq.tls.server import ServerTls

Play = Callable[[ReplicationMaster, MessageStore], Coroutine[Any, Any, None]]


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def scene(
    path: Path,
    play: Play,
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    *,
    messages: int = 5,
    **settings: Any,
) -> None:
    box = Box(path, **settings.pop("store", {}))
    store = box.open()
    for number in range(messages):
        put(store, b"%04d" % number)

    async def run() -> None:
        master = new_master(store, **settings)
        await play(master, store)
        await master.close()
        master.release()

    run_loop(run())
    box.close()


def log_of(store: MessageStore, start: int = 0) -> bytes:
    data = bytearray()
    while start < store.commit_log.readable_end:
        base, end, view = store.commit_log.window(start)
        data += view[start - base : end - base]
        start = end
    return bytes(data)


def test_nothing_is_sent_before_the_first_report(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        put(store)
        slave.says(encode_report(0)[:7])
        await asyncio.sleep(0.02)
        assert not slave.wire.written
        assert not master.slaves
        slave.says(encode_report(0)[7:])
        await until(lambda: slave.body == log_of(store), pause_s=0.001)
        assert len(master.slaves) == 1

    scene(tmp_path, play)


def test_frames_are_no_larger_than_the_batch_and_lie_in_one_file(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        slave.says(encode_report(0))
        await until(lambda: slave.body == log_of(store), pause_s=0.001)
        file_size = store.commit_log.file_size
        assert len(store.commit_log.files.files) > 2
        for at, size in slave.frames:
            assert size <= 1024
            assert at // file_size == (at + size - 1) // file_size

    scene(tmp_path, play, messages=300, ha_transfer_batch_size=1024)


def test_a_slave_goes_on_exactly_where_its_log_ends(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        offset = put(store)[1]
        slave = Slave(master)
        slave.says(encode_report(offset))
        await until(lambda: slave.body == log_of(store, offset), pause_s=0.001)
        assert slave.frames[0][0] == offset
        end = store.commit_log.end
        put(store, b"later")
        await until(lambda: slave.body == log_of(store, offset), pause_s=0.001)
        slave.says(encode_report(end))
        assert master.acknowledged_by(1) == end
        assert master.acknowledged_by(2) == -1

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HT", "behind this master's"),
        (encode_report(-5), "negative commit-log offset"),
        (encode_report(7), "no record of this master's log begins at 7"),
        (encode_report(10_000_000), "behind this master's, which ends at"),
    ],
)
def test_who_is_no_slave_is_refused_with_the_reason(
    tmp_path: Path, said: bytes, reason: str, logged: list[Any]
) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        stranger = Slave(master)
        stranger.says(said)
        await until(lambda: stranger.wire.closed, pause_s=0.001)
        await asyncio.sleep(0)
        assert not stranger.body
        assert not master.slaves

    scene(tmp_path, play)
    assert reason in str(logged)


@pytest.mark.parametrize("again", [1, 2])
def test_nothing_is_acknowledged_before_the_logs_were_seen_to_fit(
    tmp_path: Path, again: int
) -> None:
    """A slave of Java's that has diverged reports the end of its log without having compared it."""

    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        reported: list[int] = []
        master.on_acknowledged.append(lambda: reported.append(master.acknowledged_by(1)))
        slave = Slave(master)
        for _ in range(again):
            slave.says(encode_report(7))
        await until(lambda: slave.wire.closed, pause_s=0.001)
        await asyncio.sleep(0)
        assert set(reported) <= {-1}

    scene(tmp_path, play)


def test_a_file_that_was_cut_ends_the_connection(tmp_path: Path, logged: list[Any]) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        slave.connection._start_checked = True
        path = store.commit_log.files.files[0].path
        path.rename(path.with_name("away"))
        path.write_bytes(b"")
        slave.connection.start = slave.connection.position = 0
        slave.connection._read_in_thread(store.commit_log.end)
        await until(lambda: slave.wire.closed, pause_s=0.001)
        path.with_name("away").rename(path)

    scene(tmp_path, play)
    assert "its file is cut" in str(logged)


@pytest.mark.parametrize("reports", [False, True])
def test_a_probe_of_the_port_is_no_slave_that_is_lost(
    tmp_path: Path, reports: bool, logged: list[Any]
) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        peer = Slave(master)
        if reports:
            peer.says(encode_report(0))
        peer.wire.close()
        await asyncio.sleep(0.01)

    scene(tmp_path, play)
    levels = [each["log_level"] for each in logged if each["event"] == "slave disconnected"]
    assert levels == (["warning"] if reports else ["debug"])


@pytest.mark.parametrize("lie", [1, -1])
def test_an_acknowledgement_that_cannot_be_true_ends_the_connection(
    tmp_path: Path, lie: int, logged: list[Any]
) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        end = store.commit_log.end
        slave = Slave(master)
        slave.says(encode_report(end))
        slave.says(encode_report(end + lie))
        await until(lambda: slave.wire.closed, pause_s=0.001)
        assert master.acknowledged_by(1) <= end

    scene(tmp_path, play)
    assert "it reports to have the log up to" in str(logged)


def test_a_slave_whose_bytes_were_removed_learns_of_it_by_the_log(
    tmp_path: Path, logged: list[Any]
) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        remove_first(store.commit_log.files)
        begin = store.commit_log.min_offset
        slave = Slave(master)
        slave.says(encode_report(100))
        await until(lambda: slave.wire.closed, pause_s=0.001)
        assert f"it lacks the log from 100 on, and this master's begins at {begin}" in str(logged)
        fresh = Slave(master)
        fresh.says(encode_report(0))
        await until(lambda: fresh.body == log_of(store, begin), pause_s=0.001)

    scene(tmp_path, play, messages=200)


def test_a_file_removed_while_its_bytes_are_under_way_harms_nobody(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        slave.wire.room = 0
        whole = log_of(store)
        slave.says(encode_report(0))
        await until(lambda: len(slave.body) > 0, pause_s=0.001)
        had = len(slave.body)
        remove_first(store.commit_log.files)
        slave.wire.unsent = 0
        slave.wire.room = None
        slave.connection.resume_writing()
        await until(lambda: slave.wire.closed or slave.body == whole, pause_s=0.001)
        assert slave.body == whole[: len(slave.body)]
        assert len(slave.body) >= had

    scene(tmp_path, play, messages=2000, store={"mapped_file_size_commit_log": 65536})


def test_a_peer_that_does_not_read_gets_a_few_batches_and_no_more(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        slave.wire.room = 0
        slave.says(encode_report(0))
        await until(lambda: slave.wire.unsent >= 256 * 1024, pause_s=0.001)
        for _ in range(100):
            put(store, b"x" * 900)
            await asyncio.sleep(0)
        assert 256 * 1024 <= slave.wire.unsent <= 2 * 256 * 1024 + 4096
        slave.wire.room, slave.wire.unsent = None, 0
        slave.connection.resume_writing()
        await until(lambda: slave.body == log_of(store), pause_s=0.001)

    scene(tmp_path, play, messages=5000, store={"mapped_file_size_commit_log": 131072})


def test_too_many_connections_are_refused_and_silent_ones_give_way(
    tmp_path: Path, logged: list[Any]
) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        real, silent = Slave(master, 1), Slave(master, 2)
        real.says(encode_report(0))
        refused = Slave(master, 3)
        assert refused.wire.closed
        silent.connection.made_s -= 2
        late = Slave(master, 4)
        assert silent.wire.closed
        assert not late.wire.closed
        assert not real.wire.closed
        await until(lambda: len(master.slaves) == 1, pause_s=0.001)

    scene(tmp_path, play, virtual.run, workers=SimulatedWorkers(), max_ha_connections=2)
    assert "maxHaConnections=2" in str(logged)


def test_appends_of_one_turn_wake_the_transfer_once(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        slave.says(encode_report(0))
        await until(lambda: slave.body == log_of(store), pause_s=0.001)
        for _ in range(3):
            before = len(slave.frames)
            for number in range(10):
                put(store, b"%d" % number)
            assert len(slave.frames) == before, "it waits for the turn's end"
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(slave.frames) == before + 1
            assert slave.body == log_of(store)

    scene(tmp_path, play, store={"mapped_file_size_commit_log": 131072})


def test_without_slaves_an_append_has_nothing_to_do_for_them(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        slave = Slave(master)
        slave.says(encode_report(0))
        await until(lambda: slave.body == log_of(store), pause_s=0.001)
        assert store.commit_log.limit == store.commit_log.end
        slave.wire.close()
        await asyncio.sleep(0)
        put(store)
        await asyncio.sleep(0)
        put(store)
        assert store.commit_log.limit > store.commit_log.end + 1000

    scene(tmp_path, play, store={"mapped_file_size_commit_log": 131072})


def test_a_silent_slave_is_given_up_and_one_that_only_reports_is_not(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, store: MessageStore) -> None:
        end = store.commit_log.end
        silent, lively = Slave(master, 1), Slave(master, 2)
        silent.says(encode_report(end))
        while not silent.wire.closed:
            lively.says(encode_report(end))
            await asyncio.sleep(0.02)
        assert not lively.wire.closed
        assert lively.frames
        assert set(lively.frames) == {(end, 0)}, "only heartbeats"

    settings = {"ha_housekeeping_interval": 700, "ha_send_heartbeat_interval": 30}
    scene(tmp_path, play, virtual.run, workers=SimulatedWorkers(), **settings)


class Guests:
    """A door with so many connections that have not proved to be slaves."""

    def __init__(self, count: int) -> None:
        self.guests = dict.fromkeys(range(count))

    def drop_silent(self, _before: float) -> bool:
        return False


class Arrived:
    local_ip = "10.0.0.1"

    def __init__(self, peer_ip: str) -> None:
        self.peer_ip = peer_ip
        self.peer = f"{peer_ip}:4711"


def admits(master: ReplicationMaster, peer_ip: str) -> bool:
    return master._admit_arrival(Arrived(peer_ip))  # type: ignore[arg-type]  # it has what is used


def test_who_is_no_slave_gets_no_handshake_and_no_place(tmp_path: Path, logged: list[Any]) -> None:
    async def play(master: ReplicationMaster, _store: MessageStore) -> None:
        master._door = Guests(2)  # type: ignore[assignment]  # it has what is used
        master.admission = SlaveAdmission("10.0.0.2", protected=True)
        assert not admits(master, "10.0.0.9")
        # Those at the door are no slaves, so the places of slaves are free.
        assert admits(master, "10.0.0.2")
        master.admission = SlaveAdmission(needs_proof=True)
        assert admits(master, "10.0.0.9")
        master._door = None

    scene(tmp_path, play, max_ha_connections=2)
    assert "connections for slaves refused" in str(logged)


def test_a_flood_of_reports_is_read_a_part_in_each_turn(tmp_path: Path) -> None:
    async def play(master: ReplicationMaster, _store: MessageStore) -> None:
        slave = Slave(master)
        slave.says(encode_report(0))
        assert slave.wire.is_reading()
        slave.says(encode_report(0) * 1000)
        assert not slave.wire.is_reading()
        await asyncio.sleep(0)
        assert slave.wire.is_reading()
        assert not slave.wire.closed

    scene(tmp_path, play)


def test_who_does_not_end_a_handshake_does_not_keep_slaves_out(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.sign("server", "IP:127.0.0.1")
    hello = client_hello()

    config = TlsConfig(
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
        tls_server_mode="enforcing",
    )
    tls = ServerTls(config, SYSTEM_CLOCK)

    async def play(master: ReplicationMaster, _store: MessageStore) -> None:
        await tls.load()
        master.admission = SlaveAdmission(needs_proof=True)
        await master.bind(0)
        await master.start()
        strangers = []
        for _ in range(MOST_UNKNOWN):
            strangers.append(stranger := socket.socket())
            stranger.setblocking(False)
            await asyncio.get_running_loop().sock_connect(stranger, ("127.0.0.1", master.port))
            stranger.send(hello)
        door = master.door
        assert door is not None
        await until(lambda: sum(bool(guest.began_at) for guest in door.guests) == MOST_UNKNOWN)
        async with asyncio.timeout(WAIT_S):
            _, writer = await asyncio.open_connection(
                "127.0.0.1",
                master.port,
                ssl=ssl.create_default_context(cafile=authority.certificate),
                local_addr=("127.0.0.2", 0),
            )
        writer.transport.abort()
        for stranger in strangers:
            stranger.close()

    scene(tmp_path / "store", play, tls=tls)

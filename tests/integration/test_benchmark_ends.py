"""Benchmarks do not begin on a disk without room, and end when a broker refuses everything."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from benchmarks import access
from benchmarks.frames import BenchmarkError
from benchmarks.load import Generator, LoadConfig
from benchmarks.room import check_room
from tests.waits import WAIT_S

GIB = 1 << 30


@pytest.mark.parametrize(
    ("used", "free", "needed", "reason"),
    [
        (10, 5, 6, "has 5 GiB free, the stores of this run may need 6 GiB"),
        (60, 40, 30, "would be 90% full with the 30 GiB"),
        (10, 90, 30, None),
    ],
)
def test_a_run_needs_room(
    monkeypatch: pytest.MonkeyPatch, used: int, free: int, needed: int, reason: str | None
) -> None:
    usage = shutil._ntuple_diskusage(200 * GIB, used * GIB, free * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if reason is None:
        check_room(Path("/stores"), needed * GIB)
        return
    with pytest.raises(BenchmarkError, match=reason):
        check_room(Path("/stores"), needed * GIB)


def test_a_run_without_room_starts_no_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 * GIB, 99 * GIB, GIB)
    )
    monkeypatch.setattr(access, "made_brokers", lambda *_: pytest.fail("a broker was made"))
    assert access.main(["--directory", str(tmp_path)]) == 1
    assert "GiB free" in " ".join(capsys.readouterr().out.split())


def test_a_broker_that_refuses_everything_ends_the_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=refuse_all, args=(listening,), daemon=True)
        thread.start()
        config = LoadConfig(
            host="127.0.0.1",
            port=listening.getsockname()[1],
            topic="t",
            connections=1,
            in_flight=1,
            body_bytes=16,
            ramp_seconds=0.05,
            seconds=600,
        )
        with pytest.raises(BenchmarkError, match="every request was refused: 14 the disk is full"):
            Generator(config).run()
        thread.join(WAIT_S)


def refuse_all(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    # The load closes its connection with an answer unread.
    with suppress(ConnectionResetError), connection, connection.makefile("rb") as frames:
        while len(prefix := frames.read(4)) == 4:
            frame = frames.read(*struct.unpack(">I", prefix))
            (length,) = struct.unpack_from(">I", frame)
            opaque = json.loads(frame[4 : 4 + (length & 0xFFFFFF)])["opaque"]
            answer = {"code": 14, "flag": 1, "opaque": opaque, "remark": "the disk is full"}
            header = json.dumps(answer, separators=(",", ":")).encode()
            connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)

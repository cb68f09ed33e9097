"""Servers whose log, or whose standard output, cannot be written: they serve, and they stop."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from tests.integration.raw_client import RawClient
from tests.integration.server_processes import server_process
from tests.waits import eventually

KINDS = ("broker", "namesrv", "dev")
# The requests that change and show a server's configuration; `dev` is asked as a broker.
UPDATE = {"broker": 25, "namesrv": 318, "dev": 25}
SHOW = {"broker": 26, "namesrv": 319, "dev": 26}


@contextmanager
def dev_full() -> Iterator[tuple[int, Callable[[], None]]]:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        yield fd, lambda: None
    finally:
        os.close(fd)


@contextmanager
def reader_gone() -> Iterator[tuple[int, Callable[[], None]]]:
    """Act as `2>&1 | tee` whose tee is killed, as Ctrl-C does, while the server goes on."""
    with subprocess.Popen(["tee"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as tee:
        assert tee.stdin is not None

        def kill() -> None:
            tee.kill()
            tee.wait()

        try:
            yield tee.stdin.fileno(), kill
        finally:
            kill()
            with suppress(BrokenPipeError):
                tee.stdin.close()


@contextmanager
def reader_asleep() -> Iterator[tuple[int, Callable[[], None]]]:
    """Act as a pipe that is full, and that nobody reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 65536)
    os.set_blocking(write, True)
    try:
        yield write, lambda: None
    finally:
        os.close(write)
        os.close(read)


TROUBLES = (dev_full, reader_gone, reader_asleep)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_log_that_cannot_be_written_stops_nobody(
    kind: str,
    trouble: Callable[[], AbstractContextManager[tuple[int, Callable[[], None]]]],
    tmp_path: Path,
) -> None:
    with (
        trouble() as (fd, begin),
        server_process(kind, tmp_path, stdout=fd, stderr=fd) as server,
    ):
        server.refuses()
        begin()
        server.process.send_signal(signal.SIGPIPE)
        server.refuses(20)
        if kind != "namesrv":
            assert server.send().code == 0
        assert server.stop() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_closed_standard_streams_stop_nobody(kind: str, tmp_path: Path) -> None:
    def close() -> None:
        for fd in (0, 1, 2):
            os.close(fd)

    with server_process(kind, tmp_path, before=close) as server:
        server.refuses(3)
        # What C libraries print goes nowhere: not into a file of the store, and not to a client.
        for fd in (0, 1, 2):
            assert Path(f"/proc/{server.process.pid}/fd/{fd}").readlink() == Path("/dev/null")
        assert server.stop() == 0


def test_a_log_whose_disk_was_full_tells_what_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))

    with (
        path.open("wb") as file,
        # A name server writes nothing but its log, so this limit acts as a full disk for the log.
        server_process("namesrv", tmp_path, stderr=file, before=little_room) as server,
    ):
        server.refuses(10)
        eventually(lambda: path.stat().st_size == 512)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        assert eventually(lambda: "log lines lost" in path.read_text())
        assert server.stop() == 0
    lost = [json.loads(line) for line in path.read_text().splitlines() if "lines lost" in line]
    assert lost[0]["lines"] >= 1
    assert lost[0]["why"] == "File too large"


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_file_is_rotated_and_its_level_changes_while_the_server_runs(
    kind: str, tmp_path: Path
) -> None:
    """Files change hands at a mebibyte; `logrotate` may take them away, too."""
    path = tmp_path / "server.log"
    options = ["--log-level", "error", "--log-file", str(path), "--log-file-mib", "1"]
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as stderr,
        server_process(kind, tmp_path, stderr=stderr, options=options) as server,
        RawClient(server.address) as client,
    ):
        server.refuses()
        answer = client.ask(UPDATE[kind], body=b"logLevel=loud")
        assert answer.remark is not None
        assert "logLevel" in answer.remark
        assert "loud is none of debug, info, warning, error" in answer.remark
        assert client.ask(UPDATE[kind], body=b"logLevel=info").code == 0
        assert "logLevel=info" in client.ask(SHOW[kind]).body.decode()
        server.refuses()
        refused = '"event": "request code not supported"'
        assert eventually(lambda: refused in path.read_text())
        path.rename(tmp_path / "taken")
        server.refuses()
        assert eventually(lambda: path.exists() and refused in path.read_text())
        os.truncate(path, 1 << 20)
        server.refuses()
        assert eventually(lambda: path.with_name("server.log.1").exists())
        # Between two system calls there is no file.
        assert eventually(lambda: refused in path.read_text(), passing=(FileNotFoundError,))
        assert server.stop() == 0
    assert errors.read_bytes() == b""
    first = [json.loads(line) for line in (tmp_path / "taken").read_text().splitlines()]
    # The refusal under the level `error` left no line.
    assert [line["event"] for line in first].count("request code not supported") == 1
    assert {line["logger"].partition(".")[0] for line in first} == {"cometmq"}


def test_a_log_file_on_a_full_disk_loses_lines_and_not_the_server(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))

    options = ["--log-file", str(path), "--log-format", "json"]
    with server_process("namesrv", tmp_path, before=little_room, options=options) as server:
        server.refuses(10)
        eventually(lambda: path.stat().st_size == 512)
        server.refuses()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        assert eventually(lambda: "log lines lost" in path.read_text())
        assert server.stop() == 0


def test_a_flood_of_refused_requests_leaves_few_lines_and_a_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    flood = 3000
    with path.open("wb") as file, server_process("broker", tmp_path, stderr=file) as server:
        server.refuses(flood)
        assert server.stop() == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    refused = [line for line in lines if line["event"] == "request code not supported"]
    reported = [line for line in lines if line["event"] == "left out lines of the same kind"]
    assert 10 <= len(refused) < flood / 10
    assert {line["kind"] for line in reported} == {"request code not supported"}
    assert {line["most_from"] for line in reported} == {"127.0.0.1"}
    assert sum(line["left_out"] for line in reported) + len(refused) == flood

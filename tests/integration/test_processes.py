"""`cometmq broker --processes`: brokers in processes of their own, as their users start them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import RawClient, send_ext
from tests.waits import WAIT_S, eventually

from cometmq.store.files.disk import Disk
from cometmq.testing.ports import HeldPort

SEND, MAX_OFFSET, TOPIC_CONFIG = 10, 30, 351
# The ports of two brokers: VIP, broker and replication.
NEIGHBOURS = (-2, 1, 8, 10, 11)


def configure(directory: Path, port: int, **keys: Any) -> Path:
    given = {
        "brokerName": "m",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": directory / "root",
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "osPageCacheBusyTimeOutMills": 60_000,
        "diskMaxUsedSpaceRatio": 95,
        "cleanFileForciblyEnable": "false",
        **keys,
    }
    file = directory / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return file


def command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "cometmq", "broker", "-c", str(file), *options]


def refused(file: Path, *options: str) -> str:
    """Return what is said by a command that ends with status 2."""
    done = subprocess.run(
        command(file, *options), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


@contextmanager
def brokers(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Run two brokers under a supervisor, from when all serve until the end of the block."""
    log = file.with_name("log")
    with subprocess.Popen(
        command(file, "--processes", "2", "--log-file", str(log)), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[2].startswith("All brokers boot success: 2 under supervisor"), lines
            assert [line.split(",")[0] for line in lines[:2]] == [
                "The broker[m-0",
                "The broker[m-1",
            ]
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def log_lines(file: Path, **wanted: Any) -> list[dict[str, Any]]:
    lines = map(json.loads, file.with_name("log").read_text().splitlines())
    return [line for line in lines if line.items() >= wanted.items()]


def pids(file: Path) -> dict[str, int]:
    started = log_lines(file, event="broker process started")
    return {line["broker"]: line["pid"] for line in started}


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def end_of(port: int, topic: str) -> int:
    with RawClient(f"127.0.0.1:{port}") as client:
        return int(client.ask(MAX_OFFSET, {"topic": topic, "queueId": 0}).ext["offset"])


def send(port: int, topic: str) -> int:
    ext = {**send_ext(topic), "defaultTopic": "TBW102", "defaultTopicQueueNums": 2}
    with RawClient(f"127.0.0.1:{port}") as client:
        return client.ask(SEND, ext, b"x").code


def knows(port: int, topic: str) -> bool:
    with RawClient(f"127.0.0.1:{port}") as client:
        return client.ask(TOPIC_CONFIG, {"topic": topic}).code == 0


def test_brokers_outlive_a_kill_and_stop_cleanly_with_their_supervisor(
    tmp_path: Path,
) -> None:
    with HeldPort(NEIGHBOURS) as held:
        first, second = held.port, held.port + 10
        file = configure(tmp_path, first)
        with brokers(file) as process:
            root = tmp_path / "root"
            assert {path.name for path in root.iterdir() if path.is_dir()} == {"m-0", "m-1"}
            assert send(first, "made-by-a-send") == 0
            # A topic is where it was made: `updateTopic -c` and producers make it on each.
            assert not knows(second, "made-by-a-send")
            before = pids(file)
            os.kill(before["m-0"], signal.SIGKILL)
            eventually(lambda: log_lines(file, event="broker serves again", broker="m-0"))
            assert end_of(first, "made-by-a-send") == 1
            assert pids(file)["m-1"] == before["m-1"]
            process.terminate()
            assert process.wait(WAIT_S) == 0
        assert not list(root.glob("*/abort"))
        assert {line.get("broker", "") for line in log_lines(file)} == {"", "m-0", "m-1"}
        with brokers(file) as process:
            assert end_of(first, "made-by-a-send") == 1
            process.kill()
            eventually(lambda: any(map(is_running, pids(file).values())), lambda any_: not any_)
        assert not list(root.glob("*/abort"))


def test_the_next_supervisor_waits_for_the_brokers_of_one_that_was_killed(tmp_path: Path) -> None:
    with HeldPort(NEIGHBOURS) as held:
        file = configure(tmp_path, held.port)
        lock = tmp_path / "root" / "m-1" / "lock"
        lock.parent.mkdir(parents=True)
        kept = Disk().lock(lock)  # as if that one still wrote what is in memory
        try:
            with subprocess.Popen(
                command(file, "--processes", "2"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                reported = json.loads(process.stderr.readline())
                assert reported["event"].endswith("waiting for them to stop")
                assert reported["brokers"] == ["m-1"]
                kept.release()
                lines = [process.stdout.readline() for _ in range(3)]
                assert lines[2].startswith("All brokers boot success: 2"), lines
                process.terminate()
                assert process.communicate(timeout=WAIT_S)[0] == ""
                assert process.returncode == 0
        finally:
            kept.release()


def test_what_cannot_be_is_refused_before_any_broker_runs(tmp_path: Path) -> None:
    with HeldPort(NEIGHBOURS) as held:
        file = configure(tmp_path, held.port)
        with socket.create_server(("127.0.0.1", held.port + 10)):
            reported = refused(file, "--processes", "2")
        assert f"the broker m-1 cannot have its port {held.port + 10}: another process" in reported
        file = configure(tmp_path, held.port, brokerNmae="x")
        assert "brokerNmae" in refused(file, "--processes", "2")
        assert not (tmp_path / "root").exists()
        file = configure(tmp_path, held.port)
        (tmp_path / "root").mkdir()
        checkpoint = tmp_path / "root" / "checkpoint"
        checkpoint.touch()
        assert "has the store of a single broker" in refused(file, "--processes", "2")
        checkpoint.unlink()
        # What only the broker itself finds.
        (tmp_path / "root" / "m-1" / "consumequeue").mkdir(parents=True)
        (tmp_path / "root" / "m-1" / "consumequeue" / "CURRENT").touch()
        reported = refused(file, "--processes", "2", "--log-file", str(tmp_path / "log"))
        assert reported.startswith("cometmq: m-1: ")
        assert "RocksDB" in reported
        # The other began, and was stopped cleanly, or had not begun.
        assert not (tmp_path / "root" / "m-0" / "abort").exists()
        (tmp_path / "root" / "m-0").mkdir(exist_ok=True)
        (tmp_path / "root" / "m-0" / "checkpoint").touch()
        assert "give --processes" in refused(file)


@pytest.mark.parametrize("option", ["-p", "-m"])
def test_the_settings_of_each_broker_are_printed(tmp_path: Path, option: str) -> None:
    file = configure(tmp_path, 20_911)
    done = subprocess.run(
        command(file, "--processes", "2", option),
        capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    heads = [line for line in done.stdout.splitlines() if line.startswith(("#", "listenPort="))]
    assert heads == ["# m-0", "listenPort=20911", "# m-1", "listenPort=20921"]
    assert f"storePathRootDir={tmp_path}/root/m-1\n" in done.stdout

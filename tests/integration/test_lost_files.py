"""Broker processes under which somebody removes, cuts or replaces files."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import RawClient, send_ext
from tests.integration.server_processes import SEND, ServerProcess, server_process
from tests.waits import eventually


@contextmanager
def broker(directory: Path, **settings: str) -> Iterator[tuple[ServerProcess, Path]]:
    """Run a broker on `directory/store`; yield it and the file of its log."""
    directory.mkdir(exist_ok=True)
    said = directory / f"log-{len(list(directory.glob('log-*')))}"
    with (
        said.open("wb") as stderr,
        server_process("broker", directory, stderr=stderr, settings=settings) as server,
    ):
        yield server, said


def lines(path: Path, text: str) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if text in line]


def sent(server: ServerProcess, count: int, size: int = 100) -> int:
    """Send messages; return how many were acknowledged."""
    with RawClient(server.address) as client:
        return sum(client.ask(SEND, send_ext("t"), b"x" * size).code == 0 for _ in range(count))


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "store" / "commitlog").iterdir())


def test_sends_are_refused_once_the_active_file_is_removed_and_none_is_lost(tmp_path: Path) -> None:
    """100 sends with SYNC_FLUSH were SEND_OK and gone after the restart, without a line."""
    with broker(tmp_path, flushDiskType="SYNC_FLUSH") as (server, said):
        assert sent(server, 10) == 10
        path = log_files(tmp_path)[0]
        path.unlink()
        assert sent(server, 100) == 0
        answer = server.send()
        assert str(path) in str(answer.remark)
        (line,) = lines(said, "a file was lost")
        command = line["error"].partition("cp --remove-destination ")[2].partition(",")[0]
        subprocess.run(["cp", "--remove-destination", *shlex.split(command)], check=True)
        server.stop()
    with broker(tmp_path) as (server, _):
        assert sent(server, 1) == 1
        with RawClient(server.address) as client:
            end = client.ask(30, {"topic": "t", "queueId": "0"})
        assert int(end.ext["offset"]) >= 11


def test_a_removed_older_file_ends_the_sends_within_seconds(tmp_path: Path) -> None:
    """883 of 2,000 acknowledged messages were gone, and nobody said so."""
    with broker(tmp_path, flushDiskType="SYNC_FLUSH") as (server, said):
        assert sent(server, 30, 100_000) == 30
        oldest = log_files(tmp_path)[0]
        oldest.unlink()
        eventually(lambda: lines(said, f"{oldest} was removed"))
        assert sent(server, 1) == 0
        server.stop()
    with broker(tmp_path) as (_, said):
        eventually(lambda: lines(said, "files of the commit log are missing"))


def test_a_cut_file_is_named_when_its_page_ends_the_process(tmp_path: Path) -> None:
    """The process ended by SIGBUS without a line."""
    with broker(tmp_path) as (server, said):
        assert sent(server, 1) == 1
        path = log_files(tmp_path)[0]
        os.truncate(path, 0)
        with pytest.raises((OSError, EOFError, AssertionError)):
            sent(server, 1)
        assert server.process.wait(60) == -signal.SIGBUS
        (line,) = lines(said, "SIGBUS")
        assert line["path"] == str(path)
        assert line["why"] == "somebody cut the file to 0 bytes while it was in use"


def test_the_state_files_are_there_again_after_their_directory_was_removed(tmp_path: Path) -> None:
    """A clean stop did not write them, so the next start had no topic and no offset."""
    config = tmp_path / "store" / "config"
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
    with broker(tmp_path) as (server, said):
        assert sent(server, 1) == 1
        removals = count()

        def is_named() -> bool:
            eventually(lambda: all((config / name).exists() for name in names))
            # At once: a broker that writes meanwhile would fill what is being emptied.
            config.rename(tmp_path / f"gone-{next(removals)}")
            eventually(lambda: all((config / name).exists() for name in names))
            return bool(lines(said, "state file is missing and is written again"))

        # The broker names only a file that it has seen there, and it may not have looked yet.
        eventually(is_named)
        config.rename(tmp_path / "last")
        assert server.stop() == 0
    assert all((config / name).exists() for name in names)
    assert "t" in json.loads((config / "topics.json").read_text())["topicConfigTable"]


def test_a_second_broker_is_kept_out_when_the_lock_is_removed(tmp_path: Path) -> None:
    with broker(tmp_path) as (server, said):
        lock = tmp_path / "store" / "lock"
        lock.unlink()
        eventually(lock.exists)
        eventually(lambda: lines(said, "the lock of the store was removed"))
        lock.unlink()
        second = subprocess.run(
            [sys.executable, "-m", "cometmq", "store", "check", str(tmp_path / "store")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode != 0
        assert "in use by a broker" in second.stderr + second.stdout
        assert sent(server, 1) == 1

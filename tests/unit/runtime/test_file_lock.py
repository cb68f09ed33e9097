"""The lock of a file: who waits, who is refused, and when it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waits import WAIT_S

from cometmq.runtime.state_files.file_lock import locked

HOLDER = """
import sys, pathlib
from cometmq.runtime.state_files.file_lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def test_a_second_holder_in_the_same_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path), pytest.raises(BlockingIOError), locked(path):
        raise AssertionError("two hold the lock")
    with locked(path) as file:
        assert Path(file.name) == path


def test_who_waits_gets_the_lock_when_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = threading.Event()

    def take() -> None:
        with locked(path, wait=True):
            held.set()

    waiting = threading.Thread(target=take)
    with locked(path):
        waiting.start()
        assert not held.is_set()
    assert held.wait(WAIT_S)
    waiting.join(WAIT_S)


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError), locked(path):
            raise AssertionError("two hold the lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait(WAIT_S)
    with locked(path):
        pass


def test_a_file_that_cannot_be_made_is_no_lock_that_is_held(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "missing" / "lock"):
        raise AssertionError("there is no such directory")

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S

from cometmq.logs.line_writer import LineWriter

LONG_S = 60.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        os.close(fd)


def test_lines_come_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        writer = LineWriter(file.fileno())
        for number in range(10_000):
            writer.write(f"{number} \ud800\n")
        assert writer.drain(LONG_S)
    assert path.read_text().splitlines() == [f"{number} \\ud800" for number in range(10_000)]


def test_lines_that_nobody_reads_wait_up_to_a_bound_and_are_counted(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = LineWriter(
        write, describe_lost=lambda count, why: f"lost {count}: {why}\n", max_waiting_bytes=500_000
    )
    for _ in range(10_000):
        writer.write("x" * 99 + "\n")
    assert not writer.drain(0.01)
    with os.fdopen(read, closefd=False) as lines:
        kept = lost = 0
        # What was lost is told between what waited, as soon as the thread writes again: also while
        # lines still come, when the thread was late.
        while kept + lost < 10_000:
            line = lines.readline()
            if line.startswith("x"):
                kept += 1
                continue
            assert line.endswith(": nobody reads them\n")
            lost += int(line.split()[1].rstrip(":"))
        assert kept + lost == 10_000
        assert lost
    # One batch was in the thread's hands, and one in the pipe.
    assert kept <= 5_000 + 2 * 65_536 // 100 + 2
    assert writer.drain(LONG_S)


def test_a_reader_that_is_gone_raises_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LineWriter(write)
    for _ in range(10):
        writer.write("x\n")
        assert writer.drain(LONG_S)
    os.close(write)


def test_a_writer_that_nothing_more_came_to_was_asked_for_more_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.logs.line_writer._RETRY_S", 0.001)
    resting, asked = 0, threading.Event()
    left = iter(range(50))

    def rests(_ending: bool) -> None:
        nonlocal resting
        resting += 1

    def goes_on(_ending: bool) -> list[str]:
        if next(left, None) is None:
            asked.set()
        return []

    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno(), more=rests)
        writer.write("x\n")
        assert writer.drain(LONG_S)
        before = resting
        LineWriter(file.fileno(), more=goes_on).write("x\n")
        assert asked.wait(LONG_S)
        assert resting == before
        writer.write("y\n")
        assert writer.drain(LONG_S)
    assert resting > before


def test_a_child_of_a_fork_writes_lines_of_its_own() -> None:
    script = """
import os, sys
from cometmq.logs.line_writer import LineWriter
writer = LineWriter(1)
writer.write("parent\\n")
writer.drain(60)
pid = os.fork()
if pid == 0:
    writer.write("child\\n")
    os._exit(0 if writer.drain(60) else 1)
_, status = os.waitpid(pid, 0)
writer.write(f"ended {os.waitstatus_to_exitcode(status)}\\n")
"""
    shown = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PROCESS_WAIT_S,
    )
    assert shown.stdout.splitlines() == ["parent", "child", "ended 0"]

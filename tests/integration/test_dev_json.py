"""`cometmq dev --json`: what a test in another language starts, reads and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waits import PROCESS_WAIT_S, SEND_WAIT_MS

from cometmq import Message, Producer

DEADLINE_S = PROCESS_WAIT_S
COMMAND = [sys.executable, "-m", "cometmq", "dev", "--json", "--port", "0", "--broker-port", "0"]


@contextmanager
def dev(*arguments: str, stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=stdin, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def reported(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def send_to(addresses: dict[str, Any]) -> None:
    with Producer("shop", namesrv=addresses["namesrv"]) as producer:
        result = producer.send(Message("orders", b"x"), timeout_ms=SEND_WAIT_MS)
        assert result.queue.broker_name == addresses["brokers"][0]["name"]


def test_one_line_names_the_servers_and_the_end_of_input_stops_them() -> None:
    with dev() as process:
        addresses = reported(process)
        assert addresses["pid"] == process.pid
        assert addresses["temporary"] is True
        [broker] = addresses["brokers"]
        assert broker["cluster"] == "DefaultCluster"
        assert broker["metrics"].startswith("http://127.0.0.1:")
        assert process.stdin is not None
        process.stdin.write("what is written there means nothing\n")
        process.stdin.flush()
        send_to(addresses)
        store = Path(addresses["store"])
        assert store.is_dir()
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0
        assert not store.exists()
        assert process.stdout is not None
        assert process.stdout.read() == ""


@pytest.mark.parametrize("stdin", ["/dev/null", "a pipe"])
def test_sigterm_stops_the_servers_and_their_store_is_kept(stdin: str, tmp_path: Path) -> None:
    given = subprocess.DEVNULL if stdin == "/dev/null" else subprocess.PIPE
    with dev("--store", str(tmp_path / "store"), stdin=given) as process:
        addresses = reported(process)
        assert (addresses["store"], addresses["temporary"]) == (str(tmp_path / "store"), False)
        send_to(addresses)  # the end of /dev/null stops nothing
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert (tmp_path / "store" / "commitlog").is_dir()


def test_servers_end_with_the_program_that_started_them() -> None:
    """That program is killed, so nothing of it can stop them."""
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code, *COMMAND], stdout=subprocess.PIPE, text=True
    ) as parent:
        addresses = reported(parent)
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        assert parent.stdout.read() == ""  # it ends when the servers have ended
    assert not Path(addresses["store"]).exists()

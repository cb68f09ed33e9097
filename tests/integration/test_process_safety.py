"""Test forks, interpreters ending with open clients, and producers that threads and tasks share."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S, WAIT_S

import cometmq
import cometmq.aio
from cometmq import Message

ROOT = Path(__file__).parents[2]
# Long enough to tell an interpreter that ends from one that its clients would hold up for ever.
END_S = WAIT_S


pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]


def run(script: str, namesrv: str) -> tuple[list[str], str]:
    """Return what a program prints to standard output and to standard error.

    The program must end soon after its last line.
    """
    process = subprocess.Popen(
        [
            *(sys.executable, "-W", "always::ResourceWarning"),
            *("-m", "tests.integration.process_scripts", script, namesrv),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    give_up = threading.Timer(200.0, process.kill)
    give_up.start()
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "end":
                break
        _, complaints = process.communicate(timeout=END_S)
    finally:
        give_up.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 0, complaints
    assert lines[-1:] == ["end"], complaints
    return lines[:-1], complaints


def test_a_fork_gets_a_named_error_from_old_clients_and_makes_new_ones(namesrv: str) -> None:
    lines, complaints = run("fork_blocking", namesrv)
    expected = {
        "send: ForkedClientError": 4,
        "send_async: ForkedClientError": 4,
        "subscribe: ForkedClientError": 4,
        "poll: ForkedClientError": 4,
        "start: ForkedClientError": 4,
        "fresh: SEND_OK": 4,
        "new id: True": 4,
        "child ended 0": 4,
    }
    assert Counter(lines) == expected, complaints
    assert "unclosed" not in complaints


def test_a_fork_of_a_coroutine_gets_a_named_error(namesrv: str) -> None:
    lines, complaints = run("fork_asyncio", namesrv)
    assert lines == ["fresh: SEND_OK", "send: ForkedClientError", "child ended 0"], complaints


def test_workers_of_multiprocessing_are_clients_of_their_own(namesrv: str) -> None:
    lines, complaints = run("fork_workers", namesrv)
    assert lines == ["ids: 5", "codes: {0}"], complaints


@pytest.mark.parametrize(
    ("script", "count"),
    [("unclosed_blocking", 3), ("unclosed_transaction", 1), ("unclosed_without_cluster", 1)],
)
def test_an_interpreter_ends_with_blocking_clients_open_and_warns(
    namesrv: str, script: str, count: int
) -> None:
    _, complaints = run(script, namesrv)
    assert re.search(rf"ResourceWarning: {count} blocking clients are unclosed", complaints)


def test_clients_can_be_closed_by_functions_of_atexit(namesrv: str) -> None:
    """Functions that a program registers before the import run after the loop thread has ended."""
    program = f"""
import atexit, sys

clients = []
atexit.register(lambda: [client.close() for client in clients])
import cometmq
for name in ("early", "late"):
    client = cometmq.Producer(name, namesrv={namesrv!r})
    client.start()
    clients.append(client)
atexit.register(clients[0].close)
"""
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "1 blocking clients are unclosed" in done.stderr


def test_an_interpreter_ends_with_asyncio_clients_open_and_warns(namesrv: str) -> None:
    _, complaints = run("unclosed_asyncio", namesrv)
    for client in ("Producer('unclosed')", "PushConsumer('unclosed-c')"):
        assert f"ResourceWarning: unclosed {client}" in complaints


def test_threads_share_a_producer(namesrv: str) -> None:
    ids: list[str] = []
    with cometmq.Producer("shared-threads", namesrv=namesrv) as producer:

        def send(number: int) -> None:
            for i in range(50):
                result = producer.send(Message("shared-threads", b"%d %d" % (number, i)))
                ids.append(result.msg_id)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(ids)) == 400


async def test_tasks_share_a_producer(namesrv: str) -> None:
    async with cometmq.aio.Producer("shared-tasks", namesrv=namesrv) as producer:

        async def send(number: int) -> list[str]:
            return [
                (await producer.send(Message("shared-tasks", b"%d %d" % (number, i)))).msg_id
                for i in range(50)
            ]

        ids = await asyncio.gather(*(send(number) for number in range(8)))
    assert len({each for some in ids for each in some}) == 400

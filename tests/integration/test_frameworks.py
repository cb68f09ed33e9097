"""The programs of docs/frameworks.md (frameworks.md): in FastAPI, in forked workers, with the commands of taskiq
and FastStream."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import types
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.integration.test_snippets import of
from tests.waits import PROCESS_WAIT_S, WAIT_S, eventually

from cometmq import Message
from cometmq.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def program(number: int, cluster: Cluster) -> str:
    """Return a program of the page for `cluster`; what it does in 30 s it does in one, for the test's time."""
    text = of("docs/frameworks.md")[number].replace("127.0.0.1:9876", cluster.namesrv)
    return text.replace("delay=30", "delay=1")


def module(number: int, cluster: Cluster) -> Any:
    # taskiq names tasks after their module.
    made = types.ModuleType(("app", "messaging", "tasks")[number])
    sys.modules[made.__name__] = made  # FastAPI looks for annotations there
    exec(compile(program(number, cluster), made.__name__, "exec"), made.__dict__)
    return made


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an app in a thread, with its lifespan; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_fastapi_sends_with_the_producer_of_its_lifespan(cluster: Cluster) -> None:
    with served(module(0, cluster).app) as address:
        request = urllib.request.Request(f"{address}/orders/O-1", method="POST")
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert answer.status == 202
            answered = json.load(answer)
    [message] = cluster.call("messages", "orders", 1)
    assert (message.body, message.keys, message.msg_id) == (b"O-1", ("O-1",), answered["message"])


def test_each_forked_worker_has_a_producer_of_its_own(cluster: Cluster) -> None:
    """The parent has imported the module, and has not used the producer."""
    messaging = module(1, cluster)

    def work(number: int) -> None:
        messaging.producer().send(Message("forked", b"%d" % number))
        assert messaging.producer() is messaging.producer()
        messaging.producer().close()

    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PROCESS_WAIT_S)
        assert worker.exitcode == 0
    bodies = sorted(message.body for message in cluster.call("messages", "forked", 3))
    assert bodies == [b"0", b"1", b"2"]


def test_taskiqs_own_worker_runs_the_tasks_and_ends_when_it_is_asked(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(program(2, cluster))
    tasks = module(2, cluster)
    asyncio.run(tasks.send())
    shown = tmp_path / "shown.txt"
    with shown.open("w") as out:
        worker = subprocess.Popen(
            [sys.executable, "-u", "-m", "taskiq", "worker", "tasks:broker", "--workers", "1"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: {"charged O-1", "charged O-2"} <= set(shown.read_text().splitlines()))
    finally:
        worker.terminate()
        worker.wait(PROCESS_WAIT_S)
    assert "Traceback" not in shown.read_text()
    assert shown.read_text().count("charged") == 2


def test_faststreams_command_runs_handlers_that_publish(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(program(3, cluster))
    shown = tmp_path / "shown.txt"
    with shown.open("w") as out:
        worker = subprocess.Popen(
            [sys.executable, "-u", "-m", "faststream", "run", "billing:app"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        [invoice] = cluster.call("messages", "invoices", 1)
    finally:
        worker.terminate()
        worker.wait(PROCESS_WAIT_S)
    assert json.loads(invoice.body) == {"order": "O-1", "total": 240}
    assert invoice.keys == ("O-1",)
    assert "Traceback" not in shown.read_text()
    assert worker.returncode == 0

"""`examples/service`: its own tests as a user runs them, and the service as processes with a broker's process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from examples.service.ledger import LIMIT_CENTS
from examples.service.orders import GROUP, TOPIC
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.integration.server_processes import server_process
from tests.waits import PROCESS_WAIT_S, WAIT_S, eventually

from cometmq import Message, MessageExt, Producer
from cometmq.aio import AdminClient
from cometmq.errors import RouteNotFoundError
from cometmq.testing.ports import HeldPort

ROOT = Path(__file__).parents[2]
CHARGED_IN_A_LIFE = 10


def test_the_tests_of_the_service_pass_in_virtual_time(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "service", tmp_path / "service", ignore=ignored)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # nothing of a directory above counts
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    count = (
        (tmp_path / "service" / "test_in_virtual_time.py").read_text().count("\nasync def test_")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" {count} passed in" in done.stdout


class Collector:
    """Takes spans as a collector of OpenTelemetry does, over HTTP."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []  # the service, and its span
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    (service,) = (
                        a.value.string_value
                        for a in each.resource.attributes
                        if a.key == "service.name"
                    )
                    spans = [span for scope in each.scope_spans for span in scope.spans]
                    collector.spans += [(service, span) for span in spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def traces(self) -> list[list[tuple[str, str]]]:
        """Return services and names of the spans of each trace, in the order of their beginnings."""
        found: defaultdict[bytes, list[tuple[int, str, str]]] = defaultdict(list)
        for service, span in list(self.spans):
            found[span.trace_id].append((span.start_time_unix_nano, service, span.name))
        return [[(service, name) for _, service, name in sorted(each)] for each in found.values()]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Running(NamedTuple):
    """Is the place in which the service's processes run."""

    namesrv: str
    place: Path
    collector: Collector
    stack: ExitStack

    @contextmanager
    def process(self, *arguments: str, metrics_port: int = 0) -> Iterator[subprocess.Popen[str]]:
        """Run `python -m ARGUMENTS` with the service's settings; a process that goes on is killed."""
        settings = {
            "NAMESRV_ADDR": self.namesrv,
            "LEDGER": str(self.place),
            "METRICS_PORT": str(metrics_port),
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.endpoint,
            "RETRIES": "2",
        }
        with subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, **settings},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def api(self, port: int, metrics_port: int = 0) -> Any:
        uvicorn = ("uvicorn", "--factory", "examples.service.api:create_app", "--port", str(port))
        return self.process(*uvicorn, metrics_port=metrics_port)

    def billing(self, metrics_port: int = 0) -> Any:
        return self.process("examples.service.billing", metrics_port=metrics_port)

    def charged(self) -> list[str]:
        """Return the ids of the orders, one for each charge, while other processes write."""
        with closing(sqlite3.connect(self.place / "ledger.db", timeout=WAIT_S)) as rows:
            made = rows.execute("SELECT count(*) FROM sqlite_master WHERE name = 'charges'")
            if made.fetchone() == (0,):
                return []
            return [number for (number,) in rows.execute("SELECT order_id FROM charges")]

    def dead_letters(self) -> list[MessageExt]:
        async def found() -> list[MessageExt]:
            async with AdminClient(self.namesrv) as admin:
                try:
                    return [each async for each in admin.messages.stored(f"%DLQ%{GROUP}")]
                except RouteNotFoundError:
                    return []

        return asyncio.run(found())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(server_process("namesrv", tmp_path))
        settings = {
            "namesrvAddr": namesrv.address,
            "messageDelayLevel": " ".join(["1s"] * 18),  # a retry comes soon
        }
        stack.enter_context(server_process("broker", tmp_path, settings=settings))
        collector = Collector()
        stack.callback(collector.close)
        yield Running(namesrv.address, tmp_path, collector, stack)


def post(port: int, order_id: str, cents: int = 240) -> int:
    """Send an order; return the status of the answer. Raises OSError if nobody answers."""
    body = json.dumps({"id": order_id, "customer": "C-1", "cents": cents}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/orders", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


def order(port: int, order_id: str, cents: int = 240) -> None:
    """Send an order until it is taken, as a shop does."""
    eventually(
        lambda: post(port, order_id, cents),
        lambda status: status == 202,
        passing=(OSError,),
        wait_s=PROCESS_WAIT_S,
        pause_s=0.1,
    )


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        text: str = answer.read().decode()
        return text


def has(text: str, name: str, **labels: str) -> bool:
    """Say whether a series of this name with these labels has a value other than 0."""
    lines = (line for line in text.splitlines() if line.startswith(name))
    return any(
        all(f'{label}="{value}"' in line for label, value in labels.items())
        and float(line.rsplit(" ", 1)[1]) > 0
        for line in lines
    )


def ends(process: subprocess.Popen[str]) -> str:
    """Stop a process by SIGTERM, and see it end as one that was asked to; return what it complained about."""
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=PROCESS_WAIT_S)
    # uvicorn ends by the signal when it is done; a process that had no handler yet ends by it, too.
    assert process.returncode in (0, -signal.SIGTERM), complaints
    return complaints


def test_orders_are_charged_once_and_what_fails_is_a_dead_letter_with_its_cause(
    running: Running,
) -> None:
    ports = [running.stack.enter_context(HeldPort()).port for _ in range(3)]
    with running.api(*ports[:2]) as api, running.billing(ports[2]) as billing:
        order(ports[0], "O-1")
        order(ports[0], "O-1")  # a shop that did not get the answer
        order(ports[0], "O-2", cents=LIMIT_CENTS + 1)
        assert post(ports[0], "O-3", cents=-1) == 422
        with Producer("another-shop", namesrv=running.namesrv) as producer:
            producer.send(Message(TOPIC, b"no order", keys="O-4"))
        eventually(lambda: len(running.dead_letters()) == 2, wait_s=PROCESS_WAIT_S, pause_s=0.5)
        assert running.charged() == ["O-1"]
        causes = {each.keys[0]: each.failure for each in running.dead_letters()}
        assert {key: cause.type for key, cause in causes.items() if cause} == {
            "O-2": "ChargeRefusedError",
            "O-4": "UndecodableError",
        }
        assert has(metrics(ports[1]), "rocketmq_send_cost_time_count", group="orders-api")
        taken = metrics(ports[2])
        name = "cometmq_client_consumed_messages_total"
        assert has(taken, name, group=GROUP, status="SUCCESS")
        assert has(taken, name, group=GROUP, status="EXCEPTION")
        assert ends(billing).count("Traceback") == 3  # the listener's deliveries of O-2
        assert billing.returncode == 0
        assert "Traceback" not in ends(api)
    # A process that is asked to end sends the spans that it still holds: all three deliveries belong to
    # the trace of the request.
    sent, delivered = ("orders-api", f"send {TOPIC}"), ("billing", f"process {TOPIC}")
    assert [sent, delivered, delivered, delivered] in running.collector.traces()


def test_sigterm_loses_no_order_and_charges_none_twice(running: Running) -> None:
    port = running.stack.enter_context(HeldPort()).port
    taken: list[str] = []
    enough = threading.Event()
    failures: list[BaseException] = []

    def send() -> None:
        while not enough.wait(0.03):  # charges take longer than sends
            number = f"O-{len(taken)}"
            order(port, number)
            taken.append(number)

    def more_are_charged() -> None:
        wanted = len(running.charged()) + CHARGED_IN_A_LIFE
        eventually(lambda: len(running.charged()) >= wanted, wait_s=PROCESS_WAIT_S, pause_s=0.1)

    def restarted(run: Callable[[], Any]) -> None:
        """Run a process twice, and end it each time while orders come."""
        for _ in range(2):
            with run() as process:
                more_are_charged()
                assert "Traceback" not in ends(process)

    def serve(last: ExitStack) -> None:
        restarted(lambda: running.api(port))
        last.enter_context(running.api(port))

    def beside(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with ExitStack() as last:
        last.callback(enough.set)
        sending, serving = beside(send), beside(lambda: serve(last))
        restarted(running.billing)
        with running.billing() as process:
            serving.join()
            more_are_charged()
            enough.set()
            sending.join()
            assert failures == []
            eventually(lambda: set(running.charged()) == set(taken), wait_s=PROCESS_WAIT_S)
            assert "Traceback" not in ends(process)
            assert process.returncode == 0
    assert sorted(running.charged()) == sorted(taken)
    assert running.dead_letters() == []

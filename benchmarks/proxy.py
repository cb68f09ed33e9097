"""Measure our gRPC proxy beside Java's: in a broker's process, and as a process in front of our broker and of Java's.

    python -m benchmarks.proxy               # the whole run; rewrites its tables in README.md
    python -m benchmarks.proxy --quick       # one short round, nothing written
    python -m benchmarks.proxy --only "CometMQ proxy"

Two brokers, ours with `--enable-proxy` and Java's of 5.5.0, run beside each other, and one proxy of each
kind in front of each of them. They are loaded in turn by `benchmarks.proxy_load`, never two at once. A
number in the tables is the median of the rounds. The exit status is 1 when a call failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from rich.console import Console
from tests.interop.java4 import loopback_library
from tests.interop.peers import HOST, JavaProxy, free_port

from benchmarks import report
from benchmarks.frames import (
    BATCHES,
    BROKER_NAME,
    MESSAGES,
    QUEUES_PER_TOPIC,
    SUCCESS,
    BenchmarkError,
    ControlConnection,
)
from benchmarks.measure import STORED_LIMIT_SECONDS, Row, run_load
from benchmarks.memory import read_memory
from benchmarks.peers import (
    PROBE_INTERVAL_SECONDS,
    ROOT,
    START_LIMIT_SECONDS,
    CometPeer,
    JavaPeer,
    Peer,
)
from benchmarks.proxy_load import CLIENT, RECEIVES, SENDS, SERVICE, ProxyLoad
from benchmarks.room import STORED_BYTES_PER_SECOND, check_room
from cometmq.proxy.wire import messaging_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report import Cells

CLIENTS: Final = (1, 16, 256)
TOPIC: Final = "bench_proxy"
FILLED_TOPIC: Final = "bench_proxy_filled"
FILLED: Final = 200_000
BODY_BYTES: Final = 1024
UPDATE_CONSUMER_OFFSET: Final = 15
GC_FLAGS: Final = ("-server", "-XX:+UseG1GC", "-Djava.net.preferIPv4Stack=true")
BEGIN = "<!-- proxy:begin (written by `python -m benchmarks.proxy`) -->"
END = "<!-- proxy:end -->"


class CometProxiedPeer(CometPeer):
    """Runs our broker with a proxy in its process. `endpoint` is that of the proxy."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, conf={"flushDiskType": "ASYNC_FLUSH"})
        self._proxy_port = free_port()
        self.endpoint = f"{HOST}:{self._proxy_port}"

    def _spawn(self) -> None:
        conf = str(self.directory / "broker.conf")
        self._run("broker", "-c", conf, "--enable-proxy", "--proxy-port", str(self._proxy_port))


class StockProxy(JavaProxy):
    """Java's proxy with the compilers and the collector of its own start script, and a heap of our choice."""

    def __init__(self, namesrv: str, library: str, directory: Path, heap_mib: int) -> None:
        super().__init__(namesrv, library, directory=directory, heap_mib=heap_mib)
        self.jvm_flags = [f"-Xms{heap_mib}m", *GC_FLAGS]


@dataclass(slots=True)
class Subject:
    """A way to a broker: an endpoint, and the processes behind it. Local mode has one process, others two."""

    label: str
    endpoint: str
    pids: list[int]
    broker: Peer
    startup_seconds: float
    is_java: bool
    idle_kib: int = 0
    peak_kib: int = 0


@dataclass(frozen=True, slots=True)
class ProxyRow:
    requests: str
    clients: int

    @property
    def title(self) -> str:
        return f"{self.requests}, {self.clients}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    settings = {**report.machine(), "rounds": str(options.rounds)}
    settings["measured seconds per round"] = f"{options.seconds:g}"
    settings["Java heap, MiB"] = str(options.java_heap_mib)
    found: dict[str, dict[str, list[ProxyLoad]]] = {}
    rows = [ProxyRow(kind, count) for kind in (SENDS, RECEIVES) for count in options.clients]
    try:
        with _subjects(options, settings) as subjects:
            for subject in subjects:
                subject.idle_kib = read_memory(subject.pids[0]).resident_kib
            for row in rows:
                for subject in subjects:
                    if subject.is_java:
                        _load(subject, row, 0.0, options.warmup_seconds)
            for number in range(options.rounds):
                for row in rows:
                    for subject in subjects:
                        load = _load(subject, row, options.ramp_seconds, options.seconds)
                        found.setdefault(row.title, {}).setdefault(subject.label, []).append(load)
                        console.print(
                            f"round {number + 1} {row.title} {subject.label}: "
                            f"{load.messages / load.seconds:,.0f}/s {load.errors or ''}"
                        )
            for subject in subjects:
                subject.peak_kib = read_memory(subject.pids[0]).peak_resident_kib
            settings["load average after"] = f"{os.getloadavg()[0]:.2f}"
            tables = [
                _cells(found, subjects),
                _costs(subjects),
                [["setting", "value"], *map(list, settings.items())],
            ]
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    report.show_tables(tables, console)
    if not (options.quick or options.no_write or options.only):
        report.write_rounds("proxy", (BEGIN, END), found, settings, tables)
    loads = [each for row in found.values() for loads in row.values() for each in loads]
    return 1 if any(each.errors for each in loads) else 0


@contextlib.contextmanager
def _subjects(options: argparse.Namespace, settings: dict[str, str]) -> Iterator[list[Subject]]:
    """Run all that is measured within the context."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-proxy-", dir=options.directory)
        )
        directory = Path(name)
        check_room(directory, int(options.seconds * STORED_BYTES_PER_SECOND))
        made: list[Subject] = []

        def wanted(*labels: str) -> bool:
            return any(options.only in label for label in labels)

        ours, theirs = "CometMQ broker", "Java broker"
        within = "CometMQ, in the broker"
        proxies = ("CometMQ proxy", "Java proxy")
        if wanted(within, *(f"{each}, {ours}" for each in proxies)):
            comet = CometProxiedPeer(directory / "comet")
            began_s = time.perf_counter()
            stack.enter_context(comet)
            startup_s = _first_answer(comet.endpoint) - began_s
            settings[ours] = comet.settings()["broker"]
            if wanted(within):
                made.append(
                    Subject(within, comet.endpoint, [comet.pid], comet, startup_s, is_java=False)
                )
            namesrv = ":".join(map(str, comet.name_server))
            made += _proxies(stack, comet, ours, namesrv, options, directory)
        if wanted(*(f"{each}, {theirs}" for each in proxies)):
            java = JavaPeer(
                directory / "java",
                heap_mib=options.java_heap_mib,
                conf={"flushDiskType": "ASYNC_FLUSH"},
            )
            stack.enter_context(java)
            settings[theirs] = java.settings()["broker"]
            made += _proxies(stack, java, theirs, java.name_server, options, directory)
        for broker in {id(each.broker): each.broker for each in made}.values():
            _fill(broker)
        for subject in made:
            for topic in (TOPIC, FILLED_TOPIC):
                _await_route(subject, topic)
        yield made


def _proxies(
    stack: contextlib.ExitStack,
    broker: Peer,
    broker_label: str,
    namesrv: str,
    options: argparse.Namespace,
    directory: Path,
) -> Iterator[Subject]:
    """Start the proxies in front of a broker that `--only` selects."""
    label = f"CometMQ proxy, {broker_label}"
    if options.only in label:
        port = free_port()
        command = [sys.executable, "-m", "cometmq", "proxy", "-n", namesrv, "--port", str(port)]
        log = stack.enter_context((directory / f"{label}.log").open("wb"))
        began_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        startup_s = _first_answer(f"{HOST}:{port}") - began_s
        pids = [process.pid, broker.pid]
        yield Subject(
            label, f"{HOST}:{port}", pids, broker, startup_s, is_java=isinstance(broker, JavaPeer)
        )
    label = f"Java proxy, {broker_label}"
    if options.only in label:
        place = directory / label.replace(" ", "-")
        place.mkdir()
        server = StockProxy(namesrv, loopback_library(place), place, options.java_heap_mib)
        stack.callback(server.kill)
        began_s = time.perf_counter()
        server.start()
        startup_s = _first_answer(server.endpoints) - began_s
        pids = [server.pid, broker.pid]
        yield Subject(label, server.endpoints, pids, broker, startup_s, is_java=True)


def _fill(broker: Peer) -> None:
    """Make both topics, and put FILLED messages into that which is received from."""
    with ControlConnection(broker.address) as connection:
        for topic in (TOPIC, FILLED_TOPIC):
            answer = connection.send(topic, 0, BODY_BYTES)
            if answer.code != SUCCESS:
                raise BenchmarkError(f"{broker.label}, {topic}: {answer.code} {answer.remark}")
    row = Row(1, 4, BODY_BYTES, requests=BATCHES)
    deadline = time.monotonic() + STORED_LIMIT_SECONDS
    with ControlConnection(broker.address) as connection:
        # A broker that is busy may refuse some, and Java's counts them later.
        while (missing := FILLED - connection.stored_messages(FILLED_TOPIC)) > 0:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{broker.label}: {FILLED_TOPIC} lacks {missing} messages")
            batches = -(-missing // MESSAGES)
            run_load(
                broker, row, ramp_seconds=0.0, seconds=600.0, sends=batches, topic=FILLED_TOPIC
            )
            time.sleep(1.0)


def _load(subject: Subject, row: ProxyRow, ramp_seconds: float, seconds: float) -> ProxyLoad:
    """Run the generator in its own process. Receives are of a new group, which begins at the start of the topic."""
    group = f"bench_{time.time_ns()}"
    topic = TOPIC if row.requests == SENDS else FILLED_TOPIC
    if row.requests == RECEIVES:
        with ControlConnection(subject.broker.address) as connection:
            for queue_id in range(QUEUES_PER_TOPIC):
                place = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
                connection.call(UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "0"})
    command = [sys.executable, "-m", "benchmarks.proxy_load", "--endpoint", subject.endpoint]
    command += ["--topic", topic, "--group", group, "--broker", BROKER_NAME]
    command += ["--requests", row.requests, "--clients", str(row.clients)]
    command += ["--body-bytes", str(BODY_BYTES), "--ramp-seconds", str(ramp_seconds)]
    command += ["--seconds", str(seconds)]
    for pid in subject.pids:
        command += ["--pid", str(pid)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{subject.label}, {row.title}: {done.stderr.strip()[-800:]}")
    return ProxyLoad(**json.loads(done.stdout))


def _first_answer(endpoint: str) -> float:
    """Ask for a route until one is answered; return the `perf_counter` moment of that answer."""
    host, _, port = endpoint.rpartition(":")
    deadline = time.perf_counter() + START_LIMIT_SECONDS
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=20).close()
            break
        except OSError as error:
            if time.perf_counter() > deadline:
                raise BenchmarkError(f"nothing listens at {endpoint}") from error
            time.sleep(PROBE_INTERVAL_SECONDS)
    _route(endpoint, "missing")
    return time.perf_counter()


def _await_route(subject: Subject, topic: str) -> None:
    deadline = time.monotonic() + STORED_LIMIT_SECONDS
    while (code := _route(subject.endpoint, topic)) != wire.OK:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{subject.label}: route of {topic}: {wire.Code.Name(code)}")
        time.sleep(0.1)


def _route(endpoint: str, topic: str) -> wire.Code:
    with grpc.insecure_channel(endpoint) as channel:
        call: Any = channel.unary_unary(f"{SERVICE}QueryRoute")
        request = wire.QueryRouteRequest(topic=wire.Resource(name=topic))
        host, _, port = endpoint.rpartition(":")
        request.endpoints.scheme = wire.IPv4
        request.endpoints.addresses.add(host=host, port=int(port))
        metadata = (("x-mq-client-id", "prober"), *CLIENT)
        raw = call(request.SerializeToString(), metadata=metadata, timeout=20, wait_for_ready=True)
    code: wire.Code = wire.QueryRouteResponse.FromString(raw).status.code
    return code


def _cells(found: dict[str, dict[str, list[ProxyLoad]]], subjects: Sequence[Subject]) -> Cells:
    table = [[
        "calls, clients", "proxy, broker", "messages/s", "lowest–highest round", "p50 / p99, ms",
        "proxy's CPU, µs/message", "broker's", "generator's CPU, cores",
    ]]  # fmt: skip
    for title, by_label in found.items():
        for subject in subjects:
            each = by_label[subject.label]
            rates = [one.messages / one.seconds for one in each]
            costs = [
                f"{statistics.median(one.cpu_seconds[n] / max(one.messages, 1) * 1e6 for one in each):.0f}"
                for n in range(len(subject.pids))
            ]
            generator = statistics.median(one.generator_cpu_seconds / one.seconds for one in each)
            doubtful = " (!)" if any(one.errors for one in each) else ""
            p50 = statistics.median(one.p50_ms for one in each)
            p99 = statistics.median(one.p99_ms for one in each)
            table.append(
                [
                    title,
                    subject.label,
                    f"{statistics.median(rates):,.0f}{doubtful}",
                    f"{min(rates):,.0f}–{max(rates):,.0f}",
                    f"{p50:.1f} / {p99:.1f}",
                    costs[0],
                    costs[1] if len(costs) > 1 else "(in the proxy's)",
                    f"{generator:.2f}",
                ]
            )
    return table


def _costs(subjects: Sequence[Subject]) -> Cells:
    head = ["proxy, broker", "start-up, s", "resident when idle", "peak resident in the run"]
    return [head] + [
        [
            each.label,
            f"{each.startup_seconds:.2f}",
            f"{each.idle_kib / 1024:,.0f} MiB",
            f"{each.peak_kib / 1024:,.0f} MiB",
        ]
        for each in subjects
    ]


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured part of a round")
    parser.add_argument("--ramp-seconds", type=float, default=1.0, help="unmeasured part before it")
    parser.add_argument("--warmup-seconds", type=float, default=8.0, help="per row, for Java")
    parser.add_argument("--java-heap-mib", type=int, default=1024, help="-Xms and -Xmx of each")
    parser.add_argument("--clients", type=_numbers, default=CLIENTS, help="for example 1,16")
    parser.add_argument("--only", default="", help="a part of the names of those to measure")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--quick", action="store_true", help="1 short round, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    if given.quick:
        given.rounds, given.seconds, given.warmup_seconds = 1, 1.5, 2.0
    return given


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    os.environ.pop("NAMESRV_ADDR", None)
    sys.exit(main())

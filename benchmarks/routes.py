"""Reads of routes at a name server, ours beside Java's, in one run.

    python -m benchmarks.routes [--rounds 3] [--seconds 4] [--pure]

Ten brokers register 100 topics of eight queues each with both name servers. Then clients ask for the
routes of all topics in turn, as `benchmarks.load` sends: so many connections, each with so many
requests under way. One table: routes a second (medians), and processor time of the server for one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from tests.interop.peers import HOST, JavaNamesrv, free_port

from benchmarks.door import OPEN
from benchmarks.frames import BenchmarkError, ControlConnection, repeated_requests
from benchmarks.load import LoadConfig, LoadResult, PreparedGenerator

BROKERS: Final = 10
TOPICS: Final = 100
QUEUES: Final = 8
REGISTER_BROKER: Final = 103
ROWS: Final = ((1, 1), (16, 1), (64, 1), (16, 16))


def topic(number: int) -> str:
    return f"orders-{number:03}"


def register(address: tuple[str, int], number: int) -> ControlConnection:
    """Register a broker with its topics; it is registered as long as the connection is open."""
    config = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6, "topicSysFlag": 0}
    table = {topic(n): {"topicName": topic(n), **config} for n in range(TOPICS)}
    version = {"timestamp": 1, "counter": 1, "stateVersion": 0}
    wrapper = {"topicConfigTable": table, "dataVersion": version}
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    connection = ControlConnection(address)
    ext = {
        "brokerName": f"broker-{number}",
        "brokerAddr": f"10.0.0.{number + 1}:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": f"10.0.0.{number + 1}:10912",
        "brokerId": "0",
        "bodyCrc32": "0",
        "compressed": "false",
    }
    answer = connection.call(REGISTER_BROKER, ext, json.dumps(body).encode())
    if answer.code:
        raise BenchmarkError(f"broker {number} is not registered: {answer.remark}")
    return connection


@contextlib.contextmanager
def ours(directory: Path, *, pure: bool) -> Iterator[tuple[tuple[str, int], int]]:
    """Run our name server; yield its address and process id."""
    port = free_port()
    conf = directory / "namesrv.conf"
    conf.write_text(f"listenPort={port}\nbindAddress={HOST}\nkvConfigPath={directory}/kv.json\n")
    command = [sys.executable, "-m", "cometmq", "namesrv", "-c", str(conf)]
    env = {**os.environ, **({"COMETMQ_PURE": "1"} if pure else {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as run:
        try:
            assert run.stdout is not None
            run.stdout.readline()
            yield (HOST, port), run.pid
        finally:
            run.terminate()


@contextlib.contextmanager
def java() -> Iterator[tuple[tuple[str, int], int]]:
    server = JavaNamesrv(heap_mib=1024, jvm_flags=("-server", "-XX:+UseG1GC"))
    server.start()
    try:
        yield (HOST, server.port), server.pid
    finally:
        server.stop()


def load(
    address: tuple[str, int], pid: int, connections: int, in_flight: int, seconds: float
) -> LoadResult:
    config = LoadConfig(
        host=address[0],
        port=address[1],
        topic="",
        connections=connections,
        in_flight=in_flight,
        body_bytes=0,
        ramp_seconds=1.0,
        seconds=seconds,
        server_pid=pid,
    )
    requests = repeated_requests(105, [{"topic": topic(n)} for n in range(TOPICS)], OPEN)
    return PreparedGenerator(config, requests).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--pure", action="store_true", help="ours without compiled modules")
    parser.add_argument("--only-ours", action="store_true")
    given = parser.parse_args()
    table = Table(title=f"routes of {TOPICS} topics at {BROKERS} brokers", title_justify="left")
    for column in (
        "connections x in flight",
        "server",
        "routes/s",
        "us of CPU",
        "p50 us",
        "p99 us",
    ):
        table.add_column(column, justify="right")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {"CometMQ": stack.enter_context(ours(directory, pure=given.pure))}
        if not given.only_ours:
            servers["Java"] = stack.enter_context(java())
        for address, _ in servers.values():
            for number in range(BROKERS):
                stack.enter_context(register(address, number))
        for connections, in_flight in ROWS:
            found: dict[str, list[LoadResult]] = {name: [] for name in servers}
            for _ in range(given.rounds):
                for name, (address, pid) in servers.items():
                    found[name].append(load(address, pid, connections, in_flight, given.seconds))
            for name, results in found.items():
                table.add_row(f"{connections} x {in_flight}", name, *figures(results))
    Console().print(table)
    return 0


def figures(results: list[LoadResult]) -> list[str]:
    rate = statistics.median(result.acked_per_second for result in results)
    cpu_us = statistics.median(
        (result.server_cpu_seconds or 0) / result.acked * 1e6 for result in results
    )
    p50 = statistics.median(result.latency_p50_us or 0 for result in results)
    p99 = statistics.median(result.latency_p99_us or 0 for result in results)
    return [f"{rate:,.0f}", f"{cpu_us:.1f}", f"{p50:,.0f}", f"{p99:,.0f}"]


if __name__ == "__main__":
    sys.exit(main())

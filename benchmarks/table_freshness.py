"""Measure how fresh the tables of `cometmq pipeline table` are under a steady load.

    python -m benchmarks.table_freshness                     # 5,000 messages/s for five minutes, target one minute
    python -m benchmarks.table_freshness --rate 1000 --seconds 120 --freshness 10s

Needs the extras `spark` and `tables`, and a Java for Spark. A broker, the service and the sender are processes of
their own on this machine. The sender sends batches of fifty messages of 1 KiB to eight queues in turn, at even
intervals. The service's metrics are read every second. The tables may lack messages that are younger than
the freshness. The lag is the number of messages that they lacked when the service last looked at the log.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.interop.peers import HOST, free_port

from benchmarks.counted_python import processor_seconds
from benchmarks.frames import BROKER_NAME
from benchmarks.peers import CometPeer
from cometmq import AdminClient, Message, Producer
from cometmq.model.queue import MessageQueue

TOPIC: Final = "bench-table"
QUEUES: Final = 8
BATCH: Final = 50
_START_WAIT_S: Final = 180
_END_WAIT_S: Final = 300
# The disk of this machine may be fuller than a broker allows by default, and that is not measured here.
_ON_A_FULL_DISK: Final = {"diskSpaceCleanForciblyRatio": "97", "diskSpaceWarningLevelRatio": "98"}


def send(namesrv: str, rate: int, seconds: float, body_bytes: int) -> None:
    """Send at this rate. Print the number of messages, and how far the latest batch was behind the even pace."""
    message = Message(TOPIC, os.urandom(body_bytes // 2).hex().encode(), tags="a")
    batches = int(rate * seconds) // BATCH
    latest_s = 0.0
    with Producer("bench-table-load", namesrv=namesrv) as producer:
        began = time.monotonic()
        for at in range(batches):
            due = began + at * BATCH / rate
            time.sleep(max(0.0, due - time.monotonic()))
            latest_s = max(latest_s, time.monotonic() - due)
            queue = MessageQueue(TOPIC, BROKER_NAME, at % QUEUES)
            producer.send_batch([message] * BATCH, queue=queue)
        took = time.monotonic() - began
    print(
        f"sent {batches * BATCH:,} messages in {took:.0f} s; the latest batch was {latest_s:.1f} s behind",
        flush=True,
    )


def metrics(port: int) -> dict[str, float]:
    """Return the service's figures, each summed over its labels. Return none while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return {}
    found: dict[str, float] = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith("cometmq_table_"):
            short = name.partition("{")[0].removeprefix("cometmq_table_")
            found[short] = found.get(short, 0.0) + float(value)
    return found


def start_service(
    directory: Path, namesrv: str, freshness: str, port: int
) -> subprocess.Popen[bytes]:
    file = directory / "pipeline.toml"
    file.write_text(
        f'[cluster]\nnamesrv = "{namesrv}"\n'
        '[spark]\nmaster = "local[2]"\nconfig = { "spark.ui.enabled" = "false", '
        '"spark.driver.memory" = "1g" }\n'
        f'[table]\ntopics = ["{TOPIC}"]\npath = "{directory / "archive"}"\n'
        f'freshness = "{freshness}"\nmetrics = "{HOST}:{port}"\n'
    )
    command = [sys.executable, "-m", "cometmq", "pipeline", "table", "-c", str(file)]
    with (directory / "service.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--reports", str(directory / "reports")], stdout=log,
            stderr=subprocess.STDOUT, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip


def wait_for(
    what: str, service: subprocess.Popen[bytes], seconds: float, done: Callable[[], bool]
) -> None:
    """Wait until `done` returns true. Raise RuntimeError if the service ends, or the time is over, before that."""
    until = time.monotonic() + seconds
    while not done():
        if service.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{what}: not within {seconds} s, or the service ended")
        time.sleep(0.5)


def show(name: str, values: Sequence[float], unit: str) -> None:
    ordered = sorted(values)
    print(
        f"{name}: median {statistics.median(ordered):,.0f}, p95 {ordered[len(ordered) * 95 // 100]:,.0f}, "
        f"most {ordered[-1]:,.0f} {unit}, of {len(ordered):,} looks",
        flush=True,
    )


def measure(directory: Path, given: argparse.Namespace) -> None:
    with CometPeer(directory / "broker", conf=_ON_A_FULL_DISK) as peer:
        namesrv = "{}:{}".format(*peer.name_server)
        with AdminClient(namesrv=namesrv) as admin:
            admin.topics.create(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
        port = free_port()
        service = start_service(directory, namesrv, given.freshness, port)
        try:
            follow(directory, service, namesrv, port, given)
        finally:
            service.send_signal(signal.SIGTERM)
            try:
                service.wait(_END_WAIT_S)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()


def follow(
    directory: Path,
    service: subprocess.Popen[bytes],
    namesrv: str,
    port: int,
    given: argparse.Namespace,
) -> None:
    wait_for("first figures", service, _START_WAIT_S, lambda: "freshness_seconds" in metrics(port))
    sender = multiprocessing.get_context("spawn").Process(
        target=send, args=(namesrv, given.rate, given.seconds, given.body_bytes)
    )
    used = processor_seconds(service.pid)
    began = time.monotonic()
    sender.start()
    fresh, lags = [], []
    while sender.is_alive():
        found = metrics(port)
        if "freshness_seconds" in found:
            fresh.append(found["freshness_seconds"])
            lags.append(found["lag_messages"])
        time.sleep(1)
    sender.join()
    if sender.exitcode or service.poll() is not None:
        log = (directory / "service.log").read_text(errors="replace")
        raise RuntimeError(f"the sender or the service failed:\n{log[-4000:]}")
    show("freshness", fresh, "s")
    show("lag at the service's looks", lags, "messages")
    total = given.rate * int(given.seconds) // BATCH * BATCH
    ended = time.monotonic()
    wait_for("the last messages", service, _END_WAIT_S, lambda: metrics(port).get("rows") == total)
    cpu = processor_seconds(service.pid) - used
    found = metrics(port)
    print(
        f"{found['rows']:,.0f} rows of {total:,} in the tables {time.monotonic() - ended:.0f} s after the last send; "
        f"{found['batches_total']:.0f} batches, {found.get('restarts_total', 0):.0f} restarts, "
        f"{found['problems']:.0f} problems; {cpu / total * 1e6:.1f} µs of processor time a message, "
        f"{cpu / (time.monotonic() - began):.2f} of a core",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, default=5000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--freshness", default="1m", help="the target of the service")
    parser.add_argument("--body-bytes", type=int, default=1024)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-table-") as directory:
        measure(Path(directory), given)


if __name__ == "__main__":
    main()

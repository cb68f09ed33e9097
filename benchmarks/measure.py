"""Measure once: a row of load against one peer, and the proof that it stored what it acked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmarks.door import OPEN, Door
from benchmarks.frames import (
    BATCHES,
    MESSAGES,
    PULL_MESSAGE,
    PULLS,
    QUEUES_PER_TOPIC,
    SENDS,
    SUCCESS,
    BenchmarkError,
    ControlConnection,
    pull_ext,
)
from benchmarks.load import FILLED, LoadResult
from benchmarks.peers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED_LIMIT_SECONDS = 60.0
"""Java builds its consume queues behind the commit log, so the offsets may trail the answers."""


@dataclass(frozen=True, slots=True)
class Row:
    """Describes one line of the table: the connections, and how many requests each has outstanding."""

    connections: int
    in_flight: int
    body_bytes: int
    one_core: bool = False
    """Generator and broker share one core, so that no wake-up crosses cores (see README.md)."""
    requests: str = SENDS

    @property
    def name(self) -> str:
        name = f"{self.connections}x{self.in_flight}" + ("-one-core" if self.one_core else "")
        return name if self.requests == SENDS else f"{self.requests}-{name}-{self.body_bytes}"

    @property
    def title(self) -> str:
        body = (
            f"{self.body_bytes // 1024} KiB" if self.body_bytes >= 1024 else f"{self.body_bytes} B"
        )
        if self.requests != SENDS:
            body = f"{self.requests} of {MESSAGES} × {body}"
        return f"{self.connections}×{self.in_flight}, {body}" + (
            ", on one core" if self.one_core else ""
        )

    @property
    def topic(self) -> str:
        return f"bench_{self.name}_{self.body_bytes}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Holds the figures of one row. `stored` is the growth of the topic's maximum offsets; None
    where nothing is stored (pulls, ack server).
    """

    load: LoadResult
    stored: int | None

    @property
    def trustworthy(self) -> bool:
        return not self.load.errors and self.stored in (None, self.load.acked_total)

    @property
    def generator_cpu_share(self) -> float:
        """Return the generator's share of one core. At 1.0 the row measures the generator."""
        return self.load.generator_cpu_seconds / self.load.seconds

    @property
    def server_cpu_us_per_send(self) -> float | None:
        if self.load.server_cpu_seconds is None or not self.load.acked:
            return None
        return self.load.server_cpu_seconds / self.load.acked * 1e6


class Target(Protocol):
    """A target of load: a peer, or one broker of several."""

    @property
    def label(self) -> str: ...

    @property
    def address(self) -> tuple[str, int]: ...

    @property
    def pid(self) -> int:
        """Return the process whose CPU time counts."""
        ...


def create_topic(peer: Target, row: Row, door: Door = OPEN) -> None:
    """Make the broker create the row's topic from TBW102, by a first send."""
    with ControlConnection(peer.address, door=door) as connection:
        response = connection.send(row.topic, 0, row.body_bytes)
    if response.code != SUCCESS:
        raise BenchmarkError(f"{peer.label}, {row.topic}: {response.code} {response.remark}")


def prepare(peer: Target, row: Row) -> None:
    """Make the row's topic, and fill it if the row pulls. Raises BenchmarkError if a pull does not bring
    MESSAGES messages.
    """
    create_topic(peer, row)
    if row.requests != PULLS:
        return
    batches = FILLED * QUEUES_PER_TOPIC // MESSAGES
    filler = replace(row, connections=1, in_flight=4, requests=BATCHES)
    run_load(peer, filler, ramp_seconds=0.0, seconds=600.0, sends=batches, topic=row.topic)
    with ControlConnection(peer.address) as connection:
        deadline = time.monotonic() + STORED_LIMIT_SECONDS
        while connection.stored_messages(row.topic) < FILLED * QUEUES_PER_TOPIC:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{peer.label}, {row.topic}: not filled up to {FILLED}")
            time.sleep(0.05)
        for offset in (0, FILLED - MESSAGES):
            answer = connection.call(PULL_MESSAGE, pull_ext(row.topic, 3, offset))
            end = int(answer.ext.get("nextBeginOffset", "-1"))
            if answer.code != SUCCESS or end != offset + MESSAGES:
                raise BenchmarkError(
                    f"{peer.label}, {row.topic}: a pull at {offset} ended at {end}, code {answer.code}"
                )


def measure(peer: Target, row: Row, *, ramp_seconds: float, seconds: float) -> Measurement:
    """Load a broker; count what it stored, but for pulls. The row must be prepared."""
    if row.requests == PULLS:
        load = run_load(peer, row, ramp_seconds=ramp_seconds, seconds=seconds)
        return Measurement(load, stored=None)
    return measure_stored(peer, row, ramp_seconds=ramp_seconds, seconds=seconds)


def measure_stored(
    peer: Target, row: Row, *, ramp_seconds: float, seconds: float, door: Door | None = None
) -> Measurement:
    """Load a broker and count what it stored. The row's topic must exist."""
    os.sync()  # the other broker's dirty pages are written now, not during this round
    with ControlConnection(peer.address, door=door or OPEN) as connection:
        before = _settled_count(connection, row.topic)
    load = run_load(peer, row, ramp_seconds=ramp_seconds, seconds=seconds, door=door)
    with ControlConnection(peer.address, door=door or OPEN) as connection:
        deadline = time.monotonic() + STORED_LIMIT_SECONDS
        stored = connection.stored_messages(row.topic) - before
        while stored < load.acked_total and time.monotonic() < deadline:
            time.sleep(0.05)
            stored = connection.stored_messages(row.topic) - before
    return Measurement(load, stored)


def send_exactly(peer: Target, row: Row, sends: int) -> LoadResult:
    """Send this many messages and no more, as fast as the row's shape allows."""
    return run_load(peer, row, ramp_seconds=0.0, seconds=600.0, sends=sends)


def run_load(
    peer: Target,
    row: Row,
    *,
    ramp_seconds: float,
    seconds: float,
    sends: int | None = None,
    door: Door | None = None,
    topic: str = "",
) -> LoadResult:
    """Run the generator in its own process; on the row's topic unless another is named. Raises BenchmarkError with the text that it printed.

    With a door, also an open one, it repeats messages whose signatures are made beforehand.
    """
    host, port = peer.address
    arguments = {
        "host": host,
        "port": port,
        "topic": topic or row.topic,
        "requests": row.requests,
        "connections": row.connections,
        "in-flight": row.in_flight,
        "body-bytes": row.body_bytes,
        "ramp-seconds": ramp_seconds,
        "seconds": seconds,
        "server-pid": peer.pid,
    }
    cpu = min(os.sched_getaffinity(0)) if row.one_core else None
    if cpu is not None:
        arguments["cpu"] = cpu
    if sends is not None:
        arguments["sends"] = sends
    command = [sys.executable, "-m", "benchmarks.load"]
    for name, value in arguments.items():
        command += [f"--{name}", str(value)]
    if door is not None:
        keys = ["--access-key", door.access_key, "--secret-key", door.secret_key]
        command += ["--repeat-ids", *keys, *(["--tls"] if door.tls else [])]
    with _confined(peer.pid, cpu):
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise BenchmarkError(f"{peer.label}, {row.title}: {done.stderr.strip()[-500:]}")
    return LoadResult(**json.loads(done.stdout))


@contextlib.contextmanager
def _confined(pid: int, cpu: int | None) -> Iterator[None]:
    """Keep all threads of a process on one core within the context; with None of none."""
    if cpu is None:
        yield
        return
    _set_affinity(pid, {cpu})
    try:
        yield
    finally:
        _set_affinity(pid, os.sched_getaffinity(0))


def _set_affinity(pid: int, cpus: set[int]) -> None:
    """Pin all threads. One pass over the present ones is enough: new ones inherit from them."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


def _settled_count(connection: ControlConnection, topic: str) -> int:
    """Return the count once it stands still: an earlier run's messages may still be indexed."""
    deadline = time.monotonic() + STORED_LIMIT_SECONDS
    count = connection.stored_messages(topic)
    while time.monotonic() < deadline:
        time.sleep(0.2)
        again = connection.stored_messages(topic)
        if again == count:
            return count
        count = again
    raise BenchmarkError(f"the offsets of {topic} still grow without load")

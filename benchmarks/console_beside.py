"""Measure the cost of a page of `dev`'s console for the broker beside it: processor time and holds of its loop.

    python -m benchmarks.console_beside               # some two minutes; prints a table
    python -m benchmarks.console_beside --pairs 5     # shorter, and less exact

`cometmq dev` serves 200 topics and groups and takes 400 messages a second. Seconds without a page and
seconds with one take turns, so what the machine does happens to both. The 99th percentile of sends
scatters by more than a page costs, so it is not taken. Inside of `dev` a callback that is due
each millisecond notes how late it comes. For how long the kernel let the loop's or the console's
thread wait for a processor is known of each thread (schedstat) and taken off: what is left is the time
in which the loop could not run because of this process, its own work among it. A line names
garbage collections, which hold all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.console.running import Served, Visitor

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.cli.servers import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGES: Final = ("/", "/topics", "/groups", "/messages?topic=beside", "/topic?name=beside", "/why")
SENDS_PER_SECOND: Final = 400
_NAMES: Final = 200
_TICK_S: Final = 0.001
_SLOT_S: Final = 1.0
_WARM_S: Final = 8.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=40, help="seconds of each kind")
    parser.add_argument("--serve", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        return serve(options.serve)
    with tempfile.TemporaryDirectory(prefix="beside-") as root:
        return asyncio.run(run(Path(root), options.pairs))


# In the process of `dev`


def serve(notes: Path) -> int:
    """Run `cometmq dev`, and write what its loop meets to a file, a line each second."""
    from cometmq.cli.main import main as command

    # The servers are ready, and this is their loop.
    hooks = vars(serving)
    ready = hooks["keep_passes_short"]

    def also_watch() -> None:
        ready()
        Watcher(notes).start()

    hooks["keep_passes_short"] = also_watch
    sys.argv = [
        "cometmq",
        "dev",
        "--json",
        "--port",
        "0",
        "--broker-port",
        "0",
        "--console-port",
        "0",
    ]
    command()
    return 0


class Watcher:
    """Notes how late the loop is and what its thread uses."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._stats = {"main": _schedstat(threading.main_thread())}
        self._late_ms: list[float] = []
        self._passes: list[tuple[str, int, float]] = []
        self._began_s = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        gc.callbacks.append(self._passed)
        self._cpu_s, self._slot_s = time.thread_time(), time.monotonic()
        self._waited = self._waits()
        self._due_s = self._loop.time() + _TICK_S
        self._loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        late_s = self._loop.time() - self._due_s
        waited = self._waits()
        # The kernel's pauses of either thread are not this process's doing.
        by_kernel = sum(waited[name] - self._waited.get(name, waited[name]) for name in waited)
        self._waited = waited
        self._late_ms.append(max(0.0, late_s - by_kernel) * 1000)
        now_s = time.monotonic()
        if now_s - self._slot_s >= _SLOT_S:
            self._write(now_s)
        self._due_s = self._loop.time() + _TICK_S
        self._loop.call_at(self._due_s, self._tick)

    def _write(self, now_s: float) -> None:
        cpu_s = time.thread_time()
        reported = {
            "from_s": self._slot_s,
            "to_s": now_s,
            "cpu_ms": (cpu_s - self._cpu_s) * 1000,
            "held_ms": max(self._late_ms),
            "late_ms": sum(self._late_ms),
            "passes": self._passes,
        }
        with self._notes.open("a") as file:
            file.write(json.dumps(reported) + "\n")
        self._late_ms, self._passes = [], []
        self._cpu_s, self._slot_s = time.thread_time(), now_s

    def _waits(self) -> dict[str, float]:
        if "console" not in self._stats:
            for thread in threading.enumerate():
                if "console" in thread.name:
                    self._stats["console"] = _schedstat(thread)
        return {
            name: int(os.pread(at, 100, 0).split()[1]) / 1e9 for name, at in self._stats.items()
        }

    def _passed(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            took_ms = (time.thread_time() - self._began_s) * 1000
            self._passes.append((threading.current_thread().name, info["generation"], took_ms))


def _schedstat(thread: threading.Thread) -> int:
    return os.open(f"/proc/self/task/{thread.native_id}/schedstat", os.O_RDONLY)


# Beside it


async def run(root: Path, pairs: int) -> int:
    notes = root / "notes"
    dev = started(notes)
    assert dev.stdin is not None
    assert dev.stdout is not None
    visits: list[tuple[float, float, str]] = []
    try:
        reported = json.loads(await asyncio.to_thread(dev.stdout.readline))
        console, namesrv = reported["console"], reported["namesrv"]
        async with AdminClient(namesrv) as admin, Producer("beside", namesrv=namesrv) as producer:
            for number in range(_NAMES):
                await admin.topics.create(f"topic-{number:03}")
                await admin.groups.create(f"group-{number:03}")
            await admin.topics.create("beside")
            port = int(console["url"].rpartition(":")[2])
            served = Served(console["url"], port, console["passwords"], root)
            visitor = await asyncio.to_thread(Visitor, served, "reader")
            sending = asyncio.create_task(send(producer))
            for path in PAGES:
                await asyncio.to_thread(visitor.send, "GET", path)
            await asyncio.sleep(_WARM_S)
            for number in range(pairs):
                await asyncio.sleep(2 * _SLOT_S)
                path = PAGES[number % len(PAGES)]
                began_s = time.monotonic()
                answer = await asyncio.to_thread(visitor.send, "GET", path)
                if answer.status != 200:
                    print(f"no result: {path} has the status {answer.status}")
                    return 1
                visits.append((began_s, time.monotonic(), path))
            sending.cancel()
    finally:
        dev.stdin.close()
        try:
            await asyncio.to_thread(dev.wait, 20)
        except subprocess.TimeoutExpired:
            dev.kill()
    show([json.loads(line) for line in notes.read_text().splitlines()], visits)
    return 0


def started(notes: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.console_beside", "--serve", str(notes)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)


async def send(producer: Producer) -> None:
    """Send at a steady rate, whatever an answer takes."""
    loop, pending = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
    began_s, count = loop.time(), 0
    while True:
        while count < (loop.time() - began_s) * SENDS_PER_SECOND:
            count += 1
            task = loop.create_task(producer.send(Message("beside", bytes(1024))))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.sleep(_TICK_S)


def show(slots: list[dict[str, Any]], visits: list[tuple[float, float, str]]) -> None:
    first_s, last_s = visits[0][0] - 2, visits[-1][1]
    kinds: dict[str, list[dict[str, Any]]] = {"no page": [], "a page": []}
    for slot in slots:
        if first_s <= slot["from_s"] and slot["to_s"] <= last_s:
            seen = any(slot["from_s"] < end and begun < slot["to_s"] for begun, end, _ in visits)
            kinds["a page" if seen else "no page"].append(slot)
    for name, some in kinds.items():
        held = sorted(slot["held_ms"] for slot in some)
        print(
            f"{name:8} {len(some):3} s  the loop's thread used {statistics.median(s['cpu_ms'] for s in some):6.1f} ms/s"
            f"  late in all {statistics.median(s['late_ms'] for s in some):6.1f} ms/s  longest hold of a second:"
            f" median {statistics.median(held):5.1f}, nine of ten {held[len(held) * 9 // 10]:5.1f}, longest {held[-1]:5.1f} ms"
        )
        full = [p for slot in some for p in slot["passes"] if p[2] >= 2]
        print(f"         passes of the garbage collector of 2 ms or more: {len(full)}", end="")
        print(
            "".join(
                f"; generation {g} in {t} {ms:.0f} ms"
                for t, g, ms in sorted(full, key=lambda p: -p[2])[:5]
            )
        )
    by_page: dict[str, list[float]] = {}
    for begun, end, path in visits:
        for slot in slots:
            if slot["from_s"] < end and begun < slot["to_s"]:
                by_page.setdefault(path, []).append(slot["held_ms"])
    for path, held in by_page.items():
        print(
            f"  {path:26} longest hold: median {statistics.median(held):5.1f}, longest {max(held):5.1f} ms"
        )


if __name__ == "__main__":
    sys.exit(main())

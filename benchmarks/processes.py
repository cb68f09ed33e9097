"""Brokers on one machine: sends per second and CPU per send of `--processes` 1, 2 and 4.

    python -m benchmarks.processes              # the whole run; rewrites its table in README.md
    python -m benchmarks.processes --quick      # a minute, nothing written

A single broker and the brokers of each `--processes` run beside each other and are loaded in turn,
never two of them at once. The connections of a row are shared out evenly among the brokers, and
each broker is loaded by a generator of its own. A number in the table is the median of the rounds.
The exit status is 1 when a send failed or an acknowledged message was not stored.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import report
from benchmarks.frames import BenchmarkError, ControlConnection
from benchmarks.load import process_cpu_seconds
from benchmarks.measure import Measurement, Row, create_topic, measure_stored
from benchmarks.peers import START_LIMIT_SECONDS, CometPeer
from benchmarks.room import STORED_BYTES_PER_SECOND, check_room
from cometmq.broker.processes import STRIDE
from cometmq.testing.ports import HeldPort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report import Cells

ROWS = (Row(64, 1, 1024), Row(4, 32, 1024))
SINGLE = "single"
COUNTS = (1, 2, 4)
HERE = Path(__file__).parent
BEGIN = "<!-- processes:begin (written by `python -m benchmarks.processes`) -->"
END = "<!-- processes:end -->"
# The ports of a broker beside its own: VIP and replication.
NEIGHBOURS = (-2, 0, 1)


@dataclass(frozen=True, slots=True)
class Member:
    """One broker process as `benchmarks.measure` loads it."""

    label: str
    address: tuple[str, int]
    pid: int


class ProcessesPeer(CometPeer):
    """Runs our brokers as `cometmq broker --processes` does; with no count, a single broker."""

    def __init__(self, directory: Path, count: int | None, held: contextlib.ExitStack) -> None:
        super().__init__(directory, conf={"flushDiskType": "ASYNC_FLUSH"})
        self.label = SINGLE if count is None else f"--processes {count}"
        self.count = count or 1
        self._options = [] if count is None else ["--processes", str(count)]
        neighbours = [STRIDE * index + near for index in range(self.count) for near in NEIGHBOURS]
        neighbours.remove(0)
        self._broker_port = held.enter_context(HeldPort(tuple(neighbours))).port
        self._conf["listenPort"] = str(self._broker_port)

    def _spawn(self) -> None:
        self._run("broker", "-c", str(self.directory / "broker.conf"), *self._options)

    def members(self) -> list[Member]:
        """Return the brokers once all serve."""
        pids = [self.pid] if not self._options else self._children()
        members = []
        for index, pid in enumerate(pids):
            address = (self.address[0], self._broker_port + STRIDE * index)
            deadline = time.monotonic() + START_LIMIT_SECONDS
            while True:
                try:
                    with ControlConnection(address):
                        break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            members.append(Member(self.label, address, pid))
        return members

    def _children(self) -> list[int]:
        # In the order in which the supervisor started them, which is that of their ports.
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        children = sorted(map(int, text.split()))
        assert len(children) == self.count, f"{len(children)} brokers of {self.count}"
        return children


@dataclass(slots=True)
class Round:
    """The figures of one row at all brokers of one peer. CPU is in microseconds for each send."""

    sends_per_second: float
    broker_cpu_us: float
    supervisor_cpu_us: float
    generator_cores: float
    p50_ms: float
    p99_ms: float
    faults: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    settings = {**report.machine(), "rounds": str(options.rounds)}
    settings["measured seconds per round"] = f"{options.seconds:g}"
    rounds: dict[str, dict[str, list[Round]]] = {}
    try:
        with peers(options) as running:
            settings["CometMQ hot modules"] = next(iter(running)).settings()["hot modules"]
            for number in range(options.rounds):
                for row in ROWS:
                    for peer, members in running.items():
                        found = measure(peer, members, row, options)
                        rounds.setdefault(row.title, {}).setdefault(peer.label, []).append(found)
                        console.print(
                            f"round {number + 1} {row.title} {peer.label}: "
                            f"{found.sends_per_second:,.0f}/s {' '.join(found.faults)}"
                        )
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    tables = [cells(rounds), [["setting", "value"], *map(list, settings.items())]]
    report.show_tables(tables, console)
    if not (options.quick or options.no_write):
        report.write_rounds("processes", (BEGIN, END), rounds, settings, tables)
    faults = [each.faults for row in rounds.values() for peer in row.values() for each in peer]
    return 1 if any(faults) else 0


@contextlib.contextmanager
def peers(options: argparse.Namespace) -> Iterator[dict[ProcessesPeer, list[Member]]]:
    """Run the single broker and all others within the context, with the topics of all rows."""
    with contextlib.ExitStack() as stack:
        prefix = "bench-processes-"
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix=prefix, dir=options.directory)
        )
        running = {}
        loads = len(ROWS) * (1 + len(options.counts)) * options.rounds
        seconds = loads * (options.ramp_seconds + options.seconds)
        check_room(Path(name), int(seconds * STORED_BYTES_PER_SECOND))
        for count in (None, *options.counts):
            peer = ProcessesPeer(Path(name) / str(count), count, stack)
            stack.enter_context(peer)
            members = running[peer] = peer.members()
            for row in ROWS:
                # A broker that knows the topic passes it on to the others, which takes a moment; all need it now.
                for member in members:
                    create_topic(member, row)
        yield running


def measure(
    peer: ProcessesPeer, members: list[Member], row: Row, options: argparse.Namespace
) -> Round:
    """Load all brokers of a peer at once, each with its share of the row's connections."""
    share = replace(row, connections=max(1, row.connections // len(members)))
    supervisor_before = process_cpu_seconds(peer.pid)
    with ThreadPoolExecutor(len(members)) as pool:
        found: list[Measurement] = list(
            pool.map(
                lambda member: measure_stored(
                    member, share, ramp_seconds=options.ramp_seconds, seconds=options.seconds
                ),
                members,
            )
        )
    loads = [measured.load for measured in found]
    acked = sum(load.acked for load in loads)
    supervisor = process_cpu_seconds(peer.pid) - supervisor_before
    return Round(
        sends_per_second=sum(load.acked_per_second for load in loads),
        broker_cpu_us=sum(load.server_cpu_seconds or 0.0 for load in loads) / acked * 1e6,
        supervisor_cpu_us=0.0 if peer.label == SINGLE else supervisor / acked * 1e6,
        generator_cores=sum(measured.generator_cpu_share for measured in found),
        p50_ms=statistics.median(load.latency_p50_us or 0.0 for load in loads) / 1e3,
        p99_ms=max(load.latency_p99_us or 0.0 for load in loads) / 1e3,
        faults=[report.complaint(measured) for measured in found if not measured.trustworthy],
    )


def cells(rounds: dict[str, dict[str, list[Round]]]) -> Cells:
    """Return a heading, then a line for each row and peer; ratios are to the single broker."""
    table = [[
        "connections × in flight, body", "brokers", "sends/s", "lowest–highest round", "ratio",
        "p50 / p99, ms", "brokers' CPU, µs/send", "ratio", "supervisor's CPU, µs/send",
        "generators' CPU, cores",
    ]]  # fmt: skip
    for title, by_peer in rounds.items():
        base = by_peer[SINGLE]
        for label, each in by_peer.items():
            rates = [one.sends_per_second for one in each]
            cpu = _median(each, "broker_cpu_us")
            table.append(
                [
                    title,
                    label,
                    f"{statistics.median(rates):,.0f}" + " (!)" * any(one.faults for one in each),
                    f"{min(rates):,.0f}–{max(rates):,.0f}",
                    f"{statistics.median(rates) / _median(base, 'sends_per_second'):.2f}×",
                    f"{_median(each, 'p50_ms'):.2f} / {_median(each, 'p99_ms'):.2f}",
                    f"{cpu:.1f}",
                    f"{cpu / _median(base, 'broker_cpu_us'):.2f}×",
                    f"{_median(each, 'supervisor_cpu_us'):.2f}",
                    f"{_median(each, 'generator_cores'):.2f}",
                ]
            )
    return table


def _median(each: list[Round], figure: str) -> float:
    values: list[float] = [getattr(one, figure) for one in each]
    return statistics.median(values)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured part of a round")
    parser.add_argument("--ramp-seconds", type=float, default=1.0, help="unmeasured part before it")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="of processes")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--quick", action="store_true", help="1 short round, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    given.counts = tuple(int(count) for count in given.counts.split(","))
    if given.quick:
        given.rounds, given.seconds = 1, 1.5
    return given


if __name__ == "__main__":
    os.environ.pop("NAMESRV_ADDR", None)
    sys.exit(main())

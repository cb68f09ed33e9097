"""Sends and pulls: messages per second of our broker and the Java broker, side by side.

    python -m benchmarks.send_path              # the whole run; rewrites the table in README.md
    python -m benchmarks.send_path --quick      # a minute, nothing written

Both brokers run at once, each with its own name server, and are loaded in turn (Java, ours, Java,
ours, …) by the same generator. A number in the table is the median of the rounds. The exit status
is 1 when a send failed or an acknowledged message was not stored.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console

from benchmarks import report
from benchmarks.frames import BATCHES, PULLS, SENDS, BenchmarkError
from benchmarks.measure import (
    Measurement,
    Row,
    create_topic,
    measure,
    prepare,
    run_load,
    send_exactly,
)
from benchmarks.memory import AnonymousPeak, read_memory
from benchmarks.peers import AckPeer, CometPeer, JavaPeer, Peer
from benchmarks.report import EQUAL_WORK_SENDS, PeerFigures, Report, machine
from benchmarks.room import check_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS = (
    Row(1, 1, 1024),
    Row(1, 1, 1024, one_core=True),
    Row(64, 1, 1024),
    Row(4, 32, 1024),
    Row(8, 64, 128),
    Row(4, 4, 128, requests=BATCHES),
    Row(4, 4, 1024, requests=BATCHES),
    Row(4, 1, 128, requests=PULLS),
    Row(16, 4, 128, requests=PULLS),
    Row(16, 4, 1024, requests=PULLS),
)
EQUAL_WORK_ROW = Row(4, 32, 1024)
HERE = Path(__file__).parent
NEEDED_FREE_BYTES = 40 << 30
NEEDED_FREE_BYTES_QUICK = 8 << 30
OUTPUT_COLUMNS = 140
"""Width of the tables where no terminal has one."""

PeerFactory: TypeAlias = "Callable[[Path], Peer]"


@dataclass(frozen=True, slots=True)
class Options:
    rows: tuple[Row, ...]
    peers: tuple[str, ...]
    rounds: int
    seconds: float
    ramp_seconds: float
    warmup_seconds: float
    startups: int
    java_heap_mib: int
    flush_disk_type: str
    java_conf: dict[str, str]
    our_conf: dict[str, str]
    directory: Path | None
    needed_bytes: int
    write: bool


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=OUTPUT_COLUMNS)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
            check_room(Path(directory), options.needed_bytes)
            result = run(options, Path(directory), console)
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    report.show(result, console)
    if options.write:
        for path in report.write(result, HERE):
            console.print(f"wrote {path.relative_to(HERE.parent)}")
    return 0 if result.trustworthy else 1


def run(options: Options, directory: Path, console: Console) -> Report:
    """Measure everything in order: ceiling, start-up, warm-up, rounds, memory."""
    result = Report(machine=machine(), options=_plain_options(options), rows=options.rows)
    with AckPeer(directory / "ack") as ack:
        for row in options.rows:
            if row.requests != SENDS:  # the answers of `AckPeer` are those to sends
                continue
            load = run_load(ack, row, ramp_seconds=0.5, seconds=min(2.0, options.seconds))
            result.ceiling[row.name] = Measurement(load, stored=None)
            console.print(f"ceiling {row.title}: {load.acked_per_second:,.0f}/s")
    with contextlib.ExitStack() as stack:
        peers = _start(options, directory, result, stack, console)
        peaks = {peer.label: stack.enter_context(AnonymousPeak(peer.pid)) for peer in peers}
        _warm_up(options, peers, console)
        for number in range(options.rounds):
            _round(options, number, peers, result, console)
        for peer in peers:
            figures = result.peers[peer.label]
            figures.memory_after = read_memory(peer.pid)
            figures.anonymous_peak_kib = peaks[peer.label].peak_kib
    return result


def _start(
    options: Options,
    directory: Path,
    result: Report,
    stack: contextlib.ExitStack,
    console: Console,
) -> list[Peer]:
    """Time `startups` starts of each peer, in turn, on fresh stores; the last ones stay."""
    factories = _factories(options)
    running: list[Peer] = []
    for number in range(options.startups):
        last = number == options.startups - 1
        for label, factory in factories.items():
            peer = factory(directory / f"{label}-{number}")
            figures = result.peers.setdefault(label, PeerFigures(settings=peer.settings()))
            if last:
                running.append(stack.enter_context(peer))
                figures.memory_idle = read_memory(peer.pid)
                create_topic(peer, EQUAL_WORK_ROW)
                send_exactly(peer, EQUAL_WORK_ROW, EQUAL_WORK_SENDS)
                figures.memory_equal_work = read_memory(peer.pid)
            else:
                with peer:
                    pass
            figures.startup_seconds.append(peer.startup_seconds)
            console.print(f"start {label}: {peer.startup_seconds:.2f} s")
    return running


def _factories(options: Options) -> dict[str, PeerFactory]:
    flush = {"flushDiskType": options.flush_disk_type}
    known: dict[str, PeerFactory] = {
        JavaPeer.label: partial(
            JavaPeer, heap_mib=options.java_heap_mib, conf={**flush, **options.java_conf}
        ),
        CometPeer.label: partial(CometPeer, conf={**flush, **options.our_conf}),
    }
    return {label: known[label] for label in options.peers}


def _warm_up(options: Options, peers: list[Peer], console: Console) -> None:
    """Run every row on every peer, for Java's compiler to see it. This also makes and fills the topics."""
    for row in options.rows:
        for peer in peers:
            prepare(peer, row)
            seconds = min(options.warmup_seconds, peer.warmup_limit_seconds)
            load = run_load(peer, row, ramp_seconds=seconds / 2, seconds=seconds / 2)
            console.print(f"warm-up {row.title} {peer.label}: {load.acked_per_second:,.0f}/s")


def _round(
    options: Options, number: int, peers: list[Peer], result: Report, console: Console
) -> None:
    for row in options.rows:
        for peer in peers:
            measured = measure(
                peer, row, ramp_seconds=options.ramp_seconds, seconds=options.seconds
            )
            result.peers[peer.label].measurements.setdefault(row.name, []).append(measured)
            warning = "" if measured.trustworthy else f"  [red]{report.complaint(measured)}[/red]"
            console.print(
                f"round {number + 1} {row.title} {peer.label}: "
                f"{measured.load.acked_per_second:,.0f}/s{warning}"
            )


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.send_path", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured part of a round")
    parser.add_argument("--ramp-seconds", type=float, default=1.0, help="unmeasured part before it")
    parser.add_argument("--warmup-seconds", type=float, default=30.0, help="per row, for Java")
    parser.add_argument("--startups", type=int, default=3, help="timed starts per peer")
    parser.add_argument("--java-heap-mib", type=int, default=4096, help="-Xms and -Xmx")
    parser.add_argument("--flush-disk-type", default="ASYNC_FLUSH")
    parser.add_argument("--java-conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--our-conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS), help="by name")
    parser.add_argument("--peers", default=f"{JavaPeer.label},{CometPeer.label}")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--quick", action="store_true", help="1 short round, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    names = given.rows.split(",")
    if unknown := set(names) - {row.name for row in ROWS}:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    if unknown := set(given.peers.split(",")) - {JavaPeer.label, CometPeer.label}:
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}")
    return Options(
        rows=tuple(row for row in ROWS if row.name in names),
        peers=tuple(given.peers.split(",")),
        rounds=1 if given.quick else given.rounds,
        seconds=1.5 if given.quick else given.seconds,
        ramp_seconds=0.5 if given.quick else given.ramp_seconds,
        warmup_seconds=3.0 if given.quick else given.warmup_seconds,
        startups=1 if given.quick else given.startups,
        java_heap_mib=given.java_heap_mib,
        flush_disk_type=given.flush_disk_type,
        java_conf=dict(pair.split("=", 1) for pair in given.java_conf),
        our_conf=dict(pair.split("=", 1) for pair in given.our_conf),
        directory=given.directory,
        needed_bytes=NEEDED_FREE_BYTES_QUICK if given.quick else NEEDED_FREE_BYTES,
        write=not (given.quick or given.no_write),
    )


def _plain_options(options: Options) -> dict[str, str]:
    return {
        "rounds": str(options.rounds),
        "measured seconds per round": f"{options.seconds:g}",
        "ramp seconds": f"{options.ramp_seconds:g}",
        "warm-up seconds per row": f"{options.warmup_seconds:g}",
        "timed starts": str(options.startups),
        "flush": options.flush_disk_type,
    }


if __name__ == "__main__":
    sys.exit(main())

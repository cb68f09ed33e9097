"""Measure the message store beside Java's: appends, reads, starts, rebuilds. No network, no broker.

    python -m benchmarks.store              # the whole run; rewrites its part of README.md
    python -m benchmarks.store --quick      # small sizes, one round, nothing written

Each store runs in a process of its own and both do the same in turn (Java, ours, Java, ours, …). A
number in the tables is the median of the rounds. The exit status is 1 when something failed or a
store did not hold every message afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import store_report
from benchmarks.frames import BenchmarkError
from benchmarks.report import machine
from benchmarks.room import check_room
from benchmarks.store_peers import CometStorePeer, JavaStorePeer, StorePeer, StoreProcess
from benchmarks.store_report import PeerFigures, Report, Round, Start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
OUTPUT_COLUMNS = 140
READ_BATCH = 32
# Size of a record here without its body: fixed fields, topic, properties.
BESIDE_BODY_BYTES = 91 + 7 + 81
GIB = 1 << 30
KINDS = ("clean", "killed", "killed, no checkpoint", "rebuilt")


@dataclass(frozen=True, slots=True)
class Options:
    peers: tuple[str, ...]
    rounds: int
    warmup_seconds: float
    body_bytes: int
    append_count: int
    sync_counts: dict[int, int]
    read_count: int
    random_count: int
    sizes_gib: tuple[float, ...]
    start_rounds: int
    kinds: tuple[str, ...]
    file_mib: int
    java_heap_mib: int
    directory: Path | None
    write: bool

    def plain(self) -> dict[str, str]:
        writers = ", ".join(f"{count:,} by {each}" for each, count in self.sync_counts.items())
        return {
            "rounds": str(self.rounds),
            "warm-up seconds per row (Java)": f"{self.warmup_seconds:g}",
            "body": f"{self.body_bytes:,} bytes, two keys, one tag; 16 queues in 4 topics",
            "appends in a round": f"{self.append_count:,}; sync {writers}",
            "reads in a round": f"{self.read_count:,}; at random {self.random_count:,}",
            "starts of each kind and size": str(self.start_rounds),
            "commit-log file": f"{self.file_mib} MiB",
        }


@dataclass(frozen=True, slots=True)
class Row:
    """Describes a measurement: `command` goes to both stores and must give `count` messages."""

    title: str
    command: tuple[object, ...]
    count: int
    appends: bool


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=OUTPUT_COLUMNS)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
            _check_disk(Path(directory), options)
            result = run(options, Path(directory), console)
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    store_report.show(result, console)
    if options.write:
        for path in store_report.write(result, HERE):
            console.print(f"wrote {path.relative_to(HERE.parent)}")
    return 0


def run(options: Options, directory: Path, console: Console) -> Report:
    """Measure everything in order: appends and reads, sync appends, starts."""
    peers = _peers(options, directory)
    result = Report(machine(), options.plain(), options.sizes_gib, options.kinds)
    for peer in peers:
        result.peers[peer.label] = PeerFigures(peer.settings())
    _measure_rows(_async_rows(options), "ASYNC_FLUSH", peers, options, result, console)
    _measure_rows(_sync_rows(options), "SYNC_FLUSH", peers, options, result, console)
    _measure_starts(peers, options, result, console)
    return result


def _peers(options: Options, directory: Path) -> list[StorePeer]:
    makers: dict[str, Callable[[], StorePeer]] = {
        JavaStorePeer.label: lambda: JavaStorePeer(
            directory / "java", heap_mib=options.java_heap_mib
        ),
        CometStorePeer.label: lambda: CometStorePeer(directory / "comet"),
    }
    return [makers[label]() for label in options.peers]


# Appends and reads --------------------------------------------------------------------------------


def _async_rows(options: Options) -> list[Row]:
    appends = options.append_count
    reads = min(options.read_count, appends * options.rounds)
    randoms = options.random_count
    return [
        Row("append, async flush", ("append", appends, options.body_bytes, 1), appends, True),
        Row(f"read in order, {READ_BATCH} at a time", ("read", reads, READ_BATCH), reads, False),
        Row("read one at a random queue offset", ("random", randoms, 1), randoms, False),
    ]


def _sync_rows(options: Options) -> list[Row]:
    return [
        Row(
            f"append, sync flush, {writers} writer{'s' if writers > 1 else ''}",
            ("append", count, options.body_bytes, writers),
            count,
            appends=True,
        )
        for writers, count in options.sync_counts.items()
    ]


def _measure_rows(
    rows: list[Row],
    flush: str,
    peers: list[StorePeer],
    options: Options,
    result: Report,
    console: Console,
) -> None:
    """Measure all rows on one store per peer, which is fresh at first and removed afterwards."""
    with contextlib.ExitStack() as stack:
        processes: dict[str, StoreProcess] = {}
        for peer in peers:
            process = processes[peer.label] = stack.enter_context(peer.process())
            process.ask("open", _fresh(peer, flush), flush, "false", options.file_mib)
        appended = dict.fromkeys(processes, 0)
        for row in rows:
            for peer in peers:
                times = _warm_up(processes[peer.label], peer, row, options)
                appended[peer.label] += times * row.count * row.appends
            for number in range(options.rounds):
                for label, process in processes.items():
                    os.sync()
                    answer = process.ask(*row.command)
                    appended[label] += row.count * row.appends
                    if row.appends and process.ask("messages").count != appended[label]:
                        raise BenchmarkError(f"{label} lost messages: {row.title}")
                    # Reads continue to queue ends that a batch may pass.
                    if answer.count < row.count:
                        raise BenchmarkError(f"{label} found {answer.count}: {row.title}")
                    rounds = result.peers[label].rows.setdefault(row.title, [])
                    rounds.append(Round(answer.count, answer.seconds))
                    console.print(
                        f"round {number + 1} {row.title} {label}: {rounds[-1].rate:,.0f}/s"
                    )
        for process in processes.values():
            process.ask("close")
    for peer in peers:
        shutil.rmtree(_root(peer, flush))


def _warm_up(process: StoreProcess, peer: StorePeer, row: Row, options: Options) -> int:
    """Run the row until Java's compiler has seen it; ours has no compiler, so once is enough.

    Returns how often the row was run.
    """
    limit = options.warmup_seconds if peer.warms_up else 0.0
    began = time.monotonic()
    times = 0
    while times == 0 or time.monotonic() - began < limit:
        process.ask(*row.command)
        times += 1
    return times


# Starts -------------------------------------------------------------------------------------------


def _measure_starts(
    peers: list[StorePeer], options: Options, result: Report, console: Console
) -> None:
    """Grow one store per peer from size to size, and start it in all ways at each.

    Each start has a process of its own: a broker's start finds no compiled code either.
    """
    stored = dict.fromkeys((peer.label for peer in peers), 0)
    for peer in peers:
        _fresh(peer, "starts")
    for size_gib in options.sizes_gib:
        total = int(size_gib * GIB) // (options.body_bytes + BESIDE_BODY_BYTES)
        for peer in peers:
            _fill(peer, total - stored[peer.label], options)
            stored[peer.label] = total
        for kind in options.kinds:
            for _ in range(options.start_rounds):
                for peer in peers:
                    start = _start(peer, kind, total, options)
                    starts = result.peers[peer.label].starts.setdefault(kind, {})
                    starts.setdefault(f"{size_gib:g}", []).append(start)
                    console.print(
                        f"start {kind}, {size_gib:g} GiB, {peer.label}: {start.seconds:.2f} s, "
                        f"index {start.index_seconds:.2f} s"
                    )
    for peer in peers:
        shutil.rmtree(_root(peer, "starts"))


def _fill(peer: StorePeer, count: int, options: Options) -> None:
    with peer.process() as process:
        process.ask("open", _root(peer, "starts"), "ASYNC_FLUSH", "true", options.file_mib)
        process.ask("append", count, options.body_bytes, 1)
        process.ask("index")
        process.ask("close")


def _start(peer: StorePeer, kind: str, expected: int, options: Options) -> Start:
    root = _root(peer, "starts")
    _bring_about(root, kind)
    os.sync()
    with peer.process() as process:
        opened = process.ask("open", root, "ASYNC_FLUSH", "true", options.file_mib)
        indexed = process.ask("index")
        found = process.ask("messages").count
        if found != expected:
            raise BenchmarkError(
                f"{peer.label} has {found} of {expected} messages after a start: {kind}"
            )
        process.ask("close")
    return Start(opened.seconds, opened.seconds + indexed.seconds)


def _bring_about(root: Path, kind: str) -> None:
    """Make a cleanly closed store look as after what `kind` says."""
    if kind.startswith("killed"):
        (root / "abort").write_text("1")
    if kind == "killed, no checkpoint":
        (root / "checkpoint").unlink()
    if kind == "rebuilt":
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")


def _root(peer: StorePeer, name: str) -> Path:
    return peer.directory / f"store-{name}"


def _fresh(peer: StorePeer, name: str) -> Path:
    root = _root(peer, name)
    root.mkdir()
    return root


# Options ------------------------------------------------------------------------------------------


def _check_disk(directory: Path, options: Options) -> None:
    needed = int((2 * max(options.sizes_gib) + 8) * GIB) if options.write else GIB
    check_room(directory, needed)


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup-seconds", type=float, default=10.0, help="per row, for Java")
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--sizes", default="0.25,1,4", help="of the stores that are started, GiB")
    parser.add_argument("--start-rounds", type=int, default=3)
    parser.add_argument("--kinds", default=";".join(KINDS), help="of starts, `;` between them")
    parser.add_argument("--file-mib", type=int, default=1024, help="commit-log file")
    parser.add_argument("--java-heap-mib", type=int, default=4096, help="-Xms and -Xmx")
    parser.add_argument("--peers", default=f"{JavaStorePeer.label},{CometStorePeer.label}")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    kinds = tuple(given.kinds.split(";"))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}")
    peers = tuple(given.peers.split(","))
    if unknown := set(peers) - {JavaStorePeer.label, CometStorePeer.label}:
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}")
    quick = given.quick
    return Options(
        peers=peers,
        rounds=1 if quick else given.rounds,
        warmup_seconds=0.0 if quick else given.warmup_seconds,
        body_bytes=given.body_bytes,
        append_count=2_000 if quick else 200_000,
        sync_counts={1: 50, 8: 200, 64: 600} if quick else {1: 2_000, 8: 10_000, 64: 40_000},
        read_count=2_000 if quick else 400_000,
        random_count=500 if quick else 50_000,
        sizes_gib=(0.005,) if quick else tuple(map(float, given.sizes.split(","))),
        start_rounds=1 if quick else given.start_rounds,
        kinds=kinds,
        file_mib=4 if quick else given.file_mib,
        java_heap_mib=512 if quick else given.java_heap_mib,
        directory=given.directory,
        write=not (quick or given.no_write),
    )


if __name__ == "__main__":
    sys.exit(main())

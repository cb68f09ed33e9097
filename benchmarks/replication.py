"""Master and slave: what a synchronous copy costs a send, how far a slave is behind, how fast it catches up.

    python -m benchmarks.replication              # about ten minutes; rewrites its tables in README.md
    python -m benchmarks.replication --quick      # two minutes, nothing written

Java's master and slave and ours take turns; only one pair runs at a time, because a pair already fills
two cores. The exit status is 1 when a send was not acknowledged as copied, an acknowledged message was
not stored, or a slave did not get all.
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
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console

from benchmarks.frames import SUCCESS, BenchmarkError, ControlConnection
from benchmarks.load import process_cpu_seconds
from benchmarks.measure import Measurement, Row, create_topic, measure_stored, run_load
from benchmarks.replicated_peers import CometPair, JavaPair, ReplicatedPeer
from benchmarks.replication_report import CatchUp, Lag, Result, SyncFigures, show, write
from benchmarks.report import machine
from benchmarks.room import check_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SYNC_ROWS = (Row(64, 1, 1024), Row(4, 32, 1024))
LAG_ROW = Row(4, 32, 1024)
HERE = Path(__file__).parent
NEEDED_FREE_BYTES = 30 << 30
SAMPLE_SECONDS = 0.1
POLL_SECONDS = 0.01
RUNTIME_INFO = 28
IN_STEP_LIMIT_SECONDS = 120.0
# The rest of the first log file of a gigabyte is not filled: an empty slave of Java begins with the
# last file only, so that file has to be the first.
CATCH_UP_BYTES = 900 << 20

Pair: TypeAlias = "type[JavaPair] | type[CometPair]"


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    seconds: float
    warmup_seconds: float
    lag_seconds: float
    catch_up_bytes: int
    java_heap_mib: int
    directory: Path | None
    write: bool


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
            check_room(Path(directory), NEEDED_FREE_BYTES)
            result = run(options, Path(directory), console)
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    show(result, console)
    if options.write:
        for path in write(result, HERE):
            console.print(f"wrote {path.relative_to(HERE.parent)}")
    return 0 if result.trustworthy else 1


def run(options: Options, directory: Path, console: Console) -> Result:
    result = Result(machine=machine(), options=_plain(options))
    result.limits["disk, written and flushed"] = disk_limit(directory, options.catch_up_bytes)
    for size in (32 << 10, 1 << 20):
        title = f"loopback, {size >> 10} KiB a write"
        result.limits[title] = loopback_limit(options.catch_up_bytes, size)
    for title, rate in result.limits.items():
        console.print(f"limit, {title}: {rate:,.0f} MB/s")
    kinds: tuple[Pair, ...] = (JavaPair, CometPair)
    for kind in kinds:
        make = partial(kind, heap_mib=options.java_heap_mib)
        with make(directory / f"sync-{kind.label}", sync=True) as pair:
            result.settings[kind.label] = pair.settings()
            _in_step(pair)
            for row in SYNC_ROWS:
                figures = _sync(pair, row, options, console)
                result.sync.setdefault(row.title, {})[kind.label] = figures
        with make(directory / f"async-{kind.label}", sync=False) as pair:
            _in_step(pair)
            result.lag[kind.label] = _lag(pair, options, console)
        with make(directory / f"empty-{kind.label}", sync=False, slave=False) as pair:
            result.catch_up[kind.label] = _catch_up(pair, options, console)
    return result


# The cost of a synchronous copy -------------------------------------------------------------------


def _sync(pair: ReplicatedPeer, row: Row, options: Options, console: Console) -> SyncFigures:
    create_topic(pair, row)
    seconds = min(options.warmup_seconds, pair.warmup_limit_seconds)
    run_load(pair, row, ramp_seconds=seconds / 2, seconds=seconds / 2)
    figures = SyncFigures([], [])
    for number in range(options.rounds):
        before = process_cpu_seconds(pair.slave.pid)
        measured = measure_stored(pair, row, ramp_seconds=0.5, seconds=options.seconds)
        slave_seconds = process_cpu_seconds(pair.slave.pid) - before
        figures.measurements.append(measured)
        figures.slave_us_per_send.append(slave_seconds / measured.load.acked_total * 1e6)
        console.print(
            f"SYNC_MASTER {row.title}, {pair.label}, round {number + 1}: "
            f"{measured.load.acked_per_second:,.0f}/s{_warning(measured)}"
        )
    return figures


def _warning(measured: Measurement) -> str:
    return "" if measured.trustworthy else f" [red]{measured.load.errors}[/red]"


# How far a slave is behind ------------------------------------------------------------------------


def _lag(pair: ReplicatedPeer, options: Options, console: Console) -> Lag:
    create_topic(pair, LAG_ROW)
    seconds = min(options.warmup_seconds, pair.warmup_limit_seconds)
    run_load(pair, LAG_ROW, ramp_seconds=seconds / 2, seconds=seconds / 2)
    _in_step(pair)
    os.sync()
    with _sampled(pair) as samples:
        load = run_load(pair, LAG_ROW, ramp_seconds=0.5, seconds=options.lag_seconds)
        ended = time.monotonic()
        _in_step(pair)
        caught_up_seconds = time.monotonic() - ended
    lag = Lag.of(samples, load.acked_per_second, caught_up_seconds)
    console.print(
        f"lag, {pair.label}: at {load.acked_per_second:,.0f} sends/s "
        f"{statistics.median(lag.bytes_behind) / 1e6:,.2f} MB, at most {max(lag.bytes_behind) / 1e6:,.2f} MB"
    )
    return lag


@contextlib.contextmanager
def _sampled(pair: ReplicatedPeer) -> Iterator[list[tuple[float, int, int]]]:
    """Look at both logs while the block runs: seconds, the master's end, the slave's end.

    A sample counts for the middle of the time that both answers took; the slave is asked first, so that
    it is never ahead.
    """
    samples: list[tuple[float, int, int]] = []
    done = threading.Event()

    def sample() -> None:
        began = time.monotonic()
        with (
            ControlConnection(pair.slave_address) as slave,
            ControlConnection(pair.address) as master,
        ):
            while not done.wait(SAMPLE_SECONDS):
                asked = time.monotonic()
                behind = log_end(slave)
                ahead = log_end(master)
                samples.append(((asked + time.monotonic()) / 2 - began, ahead, behind))

    thread = threading.Thread(target=sample, name="sampler")
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def log_end(connection: ControlConnection) -> int:
    """Return where the log of a broker ends. Java refuses to say so while it is busy, and is asked again."""
    deadline = time.monotonic() + IN_STEP_LIMIT_SECONDS
    while (answer := connection.call(RUNTIME_INFO, {})).code != SUCCESS:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"no runtime information: code {answer.code}, {answer.remark}")
        time.sleep(POLL_SECONDS)
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])


def _in_step(pair: ReplicatedPeer) -> None:
    """Wait until the slave has all that its master has."""
    deadline = time.monotonic() + IN_STEP_LIMIT_SECONDS
    with (
        ControlConnection(pair.slave_address) as slave,
        ControlConnection(pair.address) as master,
    ):
        while log_end(slave) != log_end(master):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the slave of {pair.label} does not get all")
            time.sleep(POLL_SECONDS)


# How fast an empty slave catches up ---------------------------------------------------------------


def _catch_up(pair: ReplicatedPeer, options: Options, console: Console) -> CatchUp:
    create_topic(pair, LAG_ROW)
    with ControlConnection(pair.address) as master:
        while (end := log_end(master)) < options.catch_up_bytes:
            left = options.catch_up_bytes - end
            run_load(pair, LAG_ROW, ramp_seconds=0.0, seconds=600.0, sends=left // 1300 + 1)
        end = log_end(master)
    os.sync()
    pair.start_slave()
    cpu_before = process_cpu_seconds(pair.pid), process_cpu_seconds(pair.slave.pid)
    deadline = time.monotonic() + IN_STEP_LIMIT_SECONDS
    began = time.monotonic()
    with ControlConnection(pair.slave_address) as slave:
        while (now_has := log_end(slave)) < end:
            now = time.monotonic()
            if not now_has:
                # It has not asked yet: Java's slave waits for up to 5 s with its first report.
                began = now
            if now > deadline:
                raise BenchmarkError(f"the slave of {pair.label} has {now_has} of {end} bytes")
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
    cpu = process_cpu_seconds(pair.pid) - cpu_before[0], process_cpu_seconds(pair.slave.pid)
    caught = CatchUp(end, seconds, cpu[0], cpu[1] - cpu_before[1])
    console.print(f"catch-up, {pair.label}: {caught.rate:,.0f} MB/s ({end / 1e6:,.0f} MB)")
    return caught


# The limits of the machine -------------------------------------------------------------------------


def disk_limit(directory: Path, size: int) -> float:
    """Write so many bytes to a new file and flush it; return MB/s."""
    block = os.urandom(1 << 20)
    path = directory / "limit"
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)
        os.fdatasync(file.fileno())
    seconds = time.monotonic() - began
    path.unlink()
    return (size >> 20 << 20) / seconds / 1e6


_SINK = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
view = memoryview(bytearray(1 << 20))
while peer.recv_into(view): pass
"""


def loopback_limit(size: int, write_bytes: int) -> float:
    """Send so many bytes to another process over loopback TCP and wait for its end; return MB/s."""
    sink = subprocess.Popen([sys.executable, "-c", _SINK], stdout=subprocess.PIPE)
    assert sink.stdout is not None
    try:
        with socket.create_connection(("127.0.0.1", int(sink.stdout.readline()))) as connection:
            block = bytes(write_bytes)
            began = time.monotonic()
            for _ in range(size // write_bytes):
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            sink.wait(60)
            return size / (time.monotonic() - began) / 1e6
    finally:
        sink.kill()
        sink.wait()
        sink.stdout.close()


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured part of a round")
    parser.add_argument("--warmup-seconds", type=float, default=20.0, help="per row, for Java")
    parser.add_argument("--lag-seconds", type=float, default=20.0)
    parser.add_argument("--catch-up-mib", type=int, default=CATCH_UP_BYTES >> 20)
    parser.add_argument("--java-heap-mib", type=int, default=2048, help="-Xms and -Xmx of each")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--quick", action="store_true", help="1 short round, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    if not 0 < given.catch_up_mib <= CATCH_UP_BYTES >> 20:
        parser.error(f"--catch-up-mib must be 1 to {CATCH_UP_BYTES >> 20}: see CATCH_UP_BYTES")
    return Options(
        rounds=1 if given.quick else given.rounds,
        seconds=2.0 if given.quick else given.seconds,
        warmup_seconds=4.0 if given.quick else given.warmup_seconds,
        lag_seconds=5.0 if given.quick else given.lag_seconds,
        catch_up_bytes=(200 if given.quick else given.catch_up_mib) << 20,
        java_heap_mib=1024 if given.quick else given.java_heap_mib,
        directory=given.directory,
        write=not (given.quick or given.no_write),
    )


def _plain(options: Options) -> dict[str, str]:
    return {
        "rounds": str(options.rounds),
        "measured seconds per round": f"{options.seconds:g}",
        "warm-up seconds per row (Java)": f"{options.warmup_seconds:g}",
        "seconds of load for the lag": f"{options.lag_seconds:g}",
        "log of an empty slave's master": f"{options.catch_up_bytes >> 20} MiB",
        "flush": "ASYNC_FLUSH",
    }


if __name__ == "__main__":
    sys.exit(main())

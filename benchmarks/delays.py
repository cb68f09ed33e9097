"""Measure the lateness when very many delayed messages fall due in one second.

    python -m benchmarks.delays                 # 100,000 by level, then 100,000 by time
    python -m benchmarks.delays --help

Nobody can send 100,000 messages into one second of the future through sockets on a small machine,
so the store is filled beforehand, on a clock that the fill sets, and a broker process is started on
it in time. Beside the deliveries one connection sends all the time, with one message in flight: how
long it waits shows what the deliveries cost others.

A message's lateness is the store timestamp of its record in the topic, minus the time at which it
was wanted, which stands in the record as its born timestamp. The exit status is 1 when a message is
missing, comes twice or comes early.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.frames import SUCCESS, BenchmarkError, ControlConnection
from benchmarks.peers import COMMIT_LOG_FILE_BYTES, CometPeer
from benchmarks.report import machine
from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.incoming import IncomingMessage
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import decode_record
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOPIC: Final = "delayed"
OTHER_TOPIC: Final = "meanwhile"
QUEUES: Final = 4
HOST: Final = pack_host("127.0.0.1", 10911)
# The delay of this level is longer than it takes to fill the store and start a broker.
LEVELS: Final = "1s 5s 10s 30s 60s"
LEVEL: Final = 5
LEVEL_DELAY_MS: Final = 60_000
PRECISION_MS: Final = 1_000
# Time from the filled store to the first message that is due.
START_MS: Final = 8_000
LIMIT_S: Final = 120.0
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


class SetClock:
    """Shows the time at which the present message is to seem sent."""

    def __init__(self) -> None:
        self.value_ms = 0

    def now_ms(self) -> int:
        return self.value_ms

    def monotonic(self) -> float:
        return self.value_ms / 1000

    def sleep(self, seconds: float, /) -> None:
        """Hold up nobody."""


@dataclass
class Figures:
    """Holds milliseconds, sorted; `slot_ms` are beyond the end of the timer's second."""

    kind: str
    count: int
    late_ms: list[int]
    slot_ms: list[int]
    cpu_us: float
    meanwhile_ms: list[float]
    faults: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    print(f"{options.count} messages of {options.body} bytes due in one second")
    for name, value in machine().items():
        print(f"  {name}: {value}")
    try:
        return run(options)
    except BenchmarkError as error:
        print(f"no result: {error}")
        return 1


def run(options: argparse.Namespace) -> int:
    """Print the figures of all rounds; return 1 if anything was wrong with the messages."""
    faults = 0
    for kind in options.kind or ("level", "timer"):
        for _ in range(options.rounds):
            figures = measure(kind, options)
            report(figures)
            faults += len(figures.faults)
    return 1 if faults else 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delays", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=100_000, help="messages due in the second")
    parser.add_argument("--body", type=int, default=1024, help="bytes of each body")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=("level", "timer"))
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="one more of broker.conf"
    )
    parser.add_argument("--directory", type=Path, help="where the stores are made")
    return parser.parse_args(arguments)


def measure(kind: str, options: argparse.Namespace) -> Figures:
    """Fill a store, let a broker deliver, and read what it delivered."""
    count = options.count
    root = Path(tempfile.mkdtemp(prefix="delays-", dir=options.directory))
    try:
        more = dict(pair.split("=", 1) for pair in options.conf)
        peer = CometPeer(root / "peer", conf={"messageDelayLevel": LEVELS} | more)
        config = StoreConfig(
            store_path_root_dir=root / "peer" / "store",
            mapped_file_size_commit_log=COMMIT_LOG_FILE_BYTES,
            message_delay_level=LEVELS,
        )
        due_ms = fill(config, kind, count, options.body)
        with peer:
            cpu_us, meanwhile = watch(peer, due_ms, count)
            # Read before the peer's files are removed, but after the last write.
            peer.stop()
            found = list(delivered(config))
        return judge(kind, count, due_ms, found, cpu_us, meanwhile)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def fill(config: StoreConfig, kind: str, count: int, body_bytes: int) -> int:
    """Put `count` messages that are due within one second; return when that second begins."""
    clock = SetClock()
    # A generous estimate: putting takes 20 to 30 µs a message on a quiet machine, and then all is
    # flushed.
    lead_ms = START_MS + count * 80 // 1000
    due_ms = (SYSTEM_CLOCK.now_ms() + lead_ms) // 1000 * 1000
    clock.value_ms = due_ms - LEVEL_DELAY_MS
    store = MessageStore(config, clock=clock, store_host=HOST)
    store.open()
    delayed = DelayedMessages(store, PRECISION_MS)
    delayed.open(None, clock.now_ms())
    put = MessagePut(BrokerConfig(), store, clock, delayed)
    body = b"m" * body_bytes
    for number in range(count):
        wanted_ms = due_ms + 1 + number * PRECISION_MS // count
        properties = {"UNIQ_KEY": f"{number:032X}", "WAIT": "true", "TAGS": "t"}
        if kind == "level":
            clock.value_ms = wanted_ms - LEVEL_DELAY_MS
            properties["DELAY"] = str(LEVEL)
        else:
            properties["TIMER_DELIVER_MS"] = str(wanted_ms)
        put.put(IncomingMessage(TOPIC, number % QUEUES, body, properties, wanted_ms, HOST))
    store.close()
    return due_ms


def watch(peer: CometPeer, due_ms: int, count: int) -> tuple[float, list[float]]:
    """Return the broker's CPU time for a delivery in µs, and how long sends took, in ms."""
    if SYSTEM_CLOCK.now_ms() > due_ms - 1_000:
        raise BenchmarkError("the broker was not up in time: this machine is too busy")
    meanwhile: list[float] = []
    done = threading.Event()
    sender = threading.Thread(target=send_meanwhile, args=(peer, due_ms, done, meanwhile))
    sender.start()
    try:
        time.sleep(max(0.0, (due_ms - 100 - SYSTEM_CLOCK.now_ms()) / 1000))
        before_s = cpu_seconds(peer.pid)
        deadline = time.monotonic() + LIMIT_S
        with ControlConnection(peer.address) as connection:
            while connection.stored_messages(TOPIC) < count:
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"not all were delivered in {LIMIT_S:.0f} s")
                time.sleep(0.05)
    finally:
        done.set()
        sender.join()
    spent_s = cpu_seconds(peer.pid) - before_s
    return spent_s / count * 1e6, meanwhile


def send_meanwhile(
    peer: CometPeer, due_ms: int, done: threading.Event, meanwhile: list[float]
) -> None:
    """Measure round trips of sends, in ms, from the first due message to the last delivered one."""
    with ControlConnection(peer.address) as connection:
        while not done.is_set():
            began = time.perf_counter()
            answer = connection.send(OTHER_TOPIC, 0, 128)
            if answer.code != SUCCESS:
                raise BenchmarkError(f"a send was refused: {answer.code} {answer.remark}")
            if SYSTEM_CLOCK.now_ms() >= due_ms:
                meanwhile.append((time.perf_counter() - began) * 1000)
            # Otherwise the question itself would be most of the load.
            time.sleep(0.002)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def delivered(config: StoreConfig) -> Iterator[tuple[str, int, int]]:
    """Yield properties, wanted time and store timestamp of each record in the topic."""
    store = MessageStore(config, clock=SYSTEM_CLOCK, store_host=HOST)
    store.open()
    try:
        for queue_id in range(QUEUES):
            queue = store.queue(TOPIC, queue_id)
            for offset in range(queue.min_offset, queue.next_offset):
                unit = queue.unit(offset)
                assert unit is not None
                data = store.record_at(unit.physical_offset)
                assert data is not None
                record = decode_record(data, check_crc=True)
                yield record.properties, record.born_timestamp, record.store_timestamp
    finally:
        store.close()


def judge(
    kind: str,
    count: int,
    due_ms: int,
    found: list[tuple[str, int, int]],
    cpu_us: float,
    meanwhile: list[float],
) -> Figures:
    late = sorted(stored - wanted for _, wanted, stored in found)
    slot_end_ms = due_ms + PRECISION_MS
    slot = sorted(stored - slot_end_ms for _, _, stored in found) if kind == "timer" else []
    figures = Figures(kind, len(found), late, slot, cpu_us, sorted(meanwhile))
    unique = {text.partition("UNIQ_KEY\x01")[2].partition("\x02")[0] for text, _, _ in found}
    if len(unique) != count or len(found) != count:
        figures.faults.append(f"{count} were put, {len(found)} came, {len(unique)} different ones")
    if late and late[0] < 0:
        figures.faults.append(f"the earliest came {-late[0]} ms early")
    return figures


def report(figures: Figures) -> None:
    print(f"{figures.kind}: {figures.count} delivered, {figures.cpu_us:.1f} µs of CPU each")
    print(f"  late, after the time wanted:     {quantiles(figures.late_ms)}")
    if figures.slot_ms:
        print(f"  late, after the timer's second:  {quantiles(figures.slot_ms)}")
    print(f"  sends meanwhile, round trip:     {quantiles(figures.meanwhile_ms)}")
    for fault in figures.faults:
        print(f"  FAULT: {fault}")


def quantiles(values: Sequence[float]) -> str:
    """Return p50, p99 and maximum of sorted milliseconds, as text."""
    if not values:
        return "none"
    at = [values[min(len(values) - 1, int(len(values) * share))] for share in (0.5, 0.99)]
    return f"p50 {at[0]:.0f} ms, p99 {at[1]:.0f} ms, max {values[-1]:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())

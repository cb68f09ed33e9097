"""Measure how long a start takes when very many transactions or timed messages wait.

    python -m benchmarks.starts                          # a million of each, after a clean stop
    python -m benchmarks.starts --killed --java          # after a kill, and Java's broker on a copy

The store is filled without sockets. A start ends with the first send that the broker accepts. Java's
broker gets a copy of the same store; it asks for transactions and fills its timer wheel after its start.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import peers
from benchmarks.delays import HOST, PRECISION_MS, TOPIC, SetClock, cpu_seconds
from benchmarks.frames import SUCCESS, BenchmarkError, ControlConnection
from benchmarks.peers import COMMIT_LOG_FILE_BYTES, CometPeer, JavaPeer
from benchmarks.report import machine
from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.incoming import IncomingMessage
from cometmq.model import names
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer

QUEUES: Final = 4
DAY_MS: Final = 86_400_000
LIMIT_S: Final = 1_800.0
JAVA_HEAP_MIB: Final = 2_048


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    peers.START_LIMIT_SECONDS = LIMIT_S
    print(machine())
    for what in options.what:
        root = Path(tempfile.mkdtemp(prefix="starts-", dir=options.directory))
        try:
            measure(root, what, options)
        finally:
            shutil.rmtree(root, ignore_errors=True)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--what", nargs="+", choices=["halves", "timers", "both"], default=["both"])
    parser.add_argument("--count", type=int, default=1_000_000, help="how many of each wait")
    parser.add_argument("--body", type=int, default=200, help="bytes of a message's body")
    parser.add_argument("--killed", action="store_true", help="leave the store as a kill does")
    parser.add_argument("--java", action="store_true", help="start Java's broker on a copy, too")
    parser.add_argument("--directory", type=Path, help="where the stores are made")
    return parser.parse_args(arguments)


def measure(root: Path, what: str, options: argparse.Namespace) -> None:
    """Fill a store, and start brokers on it. Its broker has made the topic by a first send."""
    comet = CometPeer(root / "comet", conf={})
    try:
        comet.start()
        with ControlConnection(comet.address) as connection:
            answer = connection.send(TOPIC, 0, 16)
    finally:
        comet.stop()
    if answer.code != SUCCESS:
        raise BenchmarkError(f"{TOPIC}: {answer.code} {answer.remark}")
    fill(root / "comet" / "store", what, options)
    kind = f"{options.count} {what}, {'killed' if options.killed else 'stopped'}"
    java: Peer | None = None
    if options.java:
        java = JavaPeer(root / "java", heap_mib=JAVA_HEAP_MIB, conf={})
        shutil.copytree(root / "comet" / "store", root / "java" / "broker" / "store")
    for peer in (comet, java):
        if peer is None:
            continue
        with peer:
            cpu_s = cpu_seconds(peer.pid)
            print(
                f"{kind}: {peer.label} {peer.startup_seconds:.1f} s, CPU {cpu_s:.1f} s", flush=True
            )
            if peer is comet:
                print_phases(root / "comet" / "broker.log")


def fill(directory: Path, what: str, options: argparse.Namespace) -> None:
    """Put the messages into a new store: halves that nobody decided on, timed ones for tomorrow."""
    clock = SetClock()
    clock.value_ms = SYSTEM_CLOCK.now_ms() - 60_000
    config = StoreConfig(
        store_path_root_dir=directory, mapped_file_size_commit_log=COMMIT_LOG_FILE_BYTES
    )
    store = MessageStore(config, clock=clock, store_host=HOST)
    store.open()
    delayed = DelayedMessages(store, PRECISION_MS)
    delayed.open(None, clock.now_ms())
    put = MessagePut(BrokerConfig(), store, clock, delayed)
    body = b"m" * options.body
    for number in range(options.count):
        clock.value_ms += number % 20 == 0
        now_ms = clock.value_ms
        properties = {"UNIQ_KEY": f"{number:032X}", "WAIT": "true", "TAGS": "t"}
        if what != "timers":
            half = {**properties, "TRAN_MSG": "true", "PGROUP": "producers"}
            message = IncomingMessage(TOPIC, number % QUEUES, body, half, now_ms, HOST)
            message.move_to(names.TRANS_HALF_TOPIC, 0)
            message.append_to(store, now_ms=now_ms)
        if what != "halves":
            properties["TIMER_DELIVER_MS"] = str(now_ms + DAY_MS + number * 37 % DAY_MS)
            put.put(IncomingMessage(TOPIC, number % QUEUES, body, properties, now_ms, HOST))
    store.flush_all()
    store.close()
    if options.killed:
        config.abort_path.write_text("1")


def print_phases(log: Path) -> None:
    """Print the lines of a broker's log that say what a start has found."""
    for line in log.read_text(errors="replace").splitlines():
        if any(said in line for said in ("store recovered", "found", "broker started")):
            print(f"    {line.strip()}")


if __name__ == "__main__":
    main()

"""Measure how long it takes to make topics by sends, its cost, and what another client notices.

    python -m benchmarks.topics [--count 50000] [--in-flight 256]

One connection sends a message to each of `--count` new topics, `--in-flight` of them at a time; a
send that is refused as SYSTEM_BUSY is repeated. Another client, a process of its own, sends to a
topic that exists, before and meanwhile, one message after the other with 2 ms between them. The
requests of the broker to the name server go through a proxy that counts them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.frames import (
    FIRST_OPAQUE,
    SUCCESS,
    BenchmarkError,
    ControlConnection,
    decode_response,
    send_template,
    unique_prefix,
)
from benchmarks.memory import read_memory
from benchmarks.peers import CometPeer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection as Pipe
    from multiprocessing.synchronize import Event

SYSTEM_BUSY = 2
OTHER_TOPIC = "another-clients-topic"
BEFORE_S = 5.0
REGISTER_BROKER = 103


class CountingProxy:
    """Passes bytes between a broker and its name server, and counts the broker's requests."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self.target = ("127.0.0.1", 0)
        self.registrations: list[int] = []
        self.bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            broker, _ = self._listener.accept()
            server = socket.create_connection(self.target)
            threading.Thread(target=self._count, args=(broker, server), daemon=True).start()
            threading.Thread(target=self._pass_back, args=(server, broker), daemon=True).start()

    def _count(self, broker: socket.socket, server: socket.socket) -> None:
        waiting = bytearray()
        while data := _received(broker):
            server.sendall(data)
            self.bytes += len(data)
            waiting += data
            while len(waiting) >= 4 and len(waiting) >= (
                size := 4 + int.from_bytes(waiting[:4], "big")
            ):
                header_end = 8 + (int.from_bytes(waiting[4:8], "big") & 0xFFFFFF)
                if json.loads(waiting[8:header_end])["code"] == REGISTER_BROKER:
                    self.registrations.append(size)
                del waiting[:size]
        server.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _pass_back(server: socket.socket, broker: socket.socket) -> None:
        while data := _received(server):
            broker.sendall(data)


def _received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 20)
    except OSError:
        return b""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    root = Path(tempfile.mkdtemp(prefix="topics-", dir=options.directory))
    try:
        measure(root, options)
    except BenchmarkError as error:
        print(f"no result: {error}")
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=50_000, help="topics to be made")
    parser.add_argument("--in-flight", type=int, default=256, help="sends that wait for an answer")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="one more of broker.conf"
    )
    parser.add_argument("--directory", type=Path, help="where the store is made")
    return parser.parse_args(arguments)


def measure(root: Path, options: argparse.Namespace) -> None:
    proxy = CountingProxy()
    more = dict(pair.split("=", 1) for pair in options.conf)
    peer = CometPeer(root / "peer", conf={"namesrvAddr": proxy.address} | more)
    proxy.target = peer.name_server
    with peer:
        for name, value in peer.settings().items():
            print(f"  {name}: {value}")
        memory_before = read_memory(peer.pid)
        started, ended = multiprocessing.Event(), multiprocessing.Event()
        here, there = multiprocessing.Pipe(duplex=False)
        other = multiprocessing.Process(
            target=send_meanwhile, args=(peer.address, started, ended, there)
        )
        other.start()
        time.sleep(BEFORE_S)
        registered = proxy.bytes
        started.set()
        took_s, busy = make_topics(peer.address, options.count, options.in_flight)
        ended.set()
        before, meanwhile = here.recv()
        other.join()
        print(f"{options.count} topics in {took_s:.1f} s, {options.count / took_s:.0f} a second")
        print(f"refused as busy and repeated: {busy}")
        print(f"another client's sends before, ms: {quantiles(before)}")
        print(f"another client's sends meanwhile, ms: {quantiles(meanwhile)}")
        increments = list(proxy.registrations)
        print(
            f"to the name server meanwhile: {(proxy.bytes - registered) / 1e6:.1f} MB in "
            f"{len(increments)} registrations, the largest {max(increments)} bytes"
        )
        report_broker(root / "peer" / "store", peer, memory_before.anonymous_kib)
        began = time.perf_counter()
        stopped_at = len(proxy.registrations)
        time.sleep(65)
        period = proxy.registrations[stopped_at:]
        print(f"registrations in the next {time.perf_counter() - began:.0f} s: {period}")
        began = time.perf_counter()
        peer.stop()
        print(f"stopped in {time.perf_counter() - began:.1f} s")
        # Checked before the peer's files are removed.
        check_topics(root / "peer" / "store", options.count)


def check_topics(store: Path, count: int) -> None:
    known = json.loads((store / "config" / "topics.json").read_text())
    made = sum(name.startswith("made-") for name in known["topicConfigTable"])
    print(f"topics in topics.json after the stop: {made}")
    if made != count:
        raise BenchmarkError(f"{count - made} topics are missing")


def report_broker(store: Path, peer: CometPeer, kib_before: int) -> None:
    memory = read_memory(peer.pid)
    print(
        f"broker's anonymous memory: {kib_before / 1024:.0f} MiB before, "
        f"{memory.anonymous_kib / 1024:.0f} MiB after; resident {memory.resident_kib / 1024:.0f} MiB"
    )
    descriptors = len(list(Path(f"/proc/{peer.pid}/fd").iterdir()))
    maps = len(Path(f"/proc/{peer.pid}/maps").read_text().splitlines())
    print(f"open descriptors: {descriptors}, mappings: {maps}")
    for name in ("topics.json", "topics.journal"):
        path = store / "config" / name
        if path.exists():
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB")
    blocks = sum(path.lstat().st_blocks for path in (store / "consumequeue").rglob("*"))
    print(f"consume queues on disk: {blocks * 512 / 1e6:.0f} MB")


def make_topics(address: tuple[str, int], count: int, in_flight: int) -> tuple[float, int]:
    """Make the topics; return how many seconds that took, and how many sends were repeated."""
    prefix = unique_prefix()
    waiting: dict[int, int] = {}
    due = list(range(count - 1, -1, -1))
    busy = done = 0
    received = bytearray()
    opaque = FIRST_OPAQUE
    began = time.perf_counter()
    with socket.create_connection(address, timeout=60) as connection:
        while done < count:
            frames = []
            while due and len(waiting) < in_flight:
                number = due.pop()
                opaque += 1
                waiting[opaque] = number
                frames.append(send_template(f"made-{number:06d}", 0, 128, prefix).frame(opaque))
            connection.sendall(b"".join(frames))
            data = connection.recv(1 << 20)
            if not data:
                raise BenchmarkError("the broker closed the connection")
            received += data
            while len(received) >= 4 and len(received) >= (
                size := 4 + int.from_bytes(received[:4], "big")
            ):
                header_end = 8 + (int.from_bytes(received[4:8], "big") & 0xFFFFFF)
                answered = json.loads(received[8:header_end])["opaque"]
                answer = decode_response(bytes(received[4:size]))
                del received[:size]
                number = waiting.pop(answered)
                if answer.code == SUCCESS:
                    done += 1
                elif answer.code == SYSTEM_BUSY:
                    busy += 1
                    due.append(number)
                else:
                    raise BenchmarkError(f"a send was refused: {answer.code} {answer.remark}")
    return time.perf_counter() - began, busy


def send_meanwhile(address: tuple[str, int], started: Event, ended: Event, pipe: Pipe) -> None:
    """Measure round trips in ms, before `started`, and from then until `ended`."""
    before: list[float] = []
    meanwhile: list[float] = []
    with ControlConnection(address, timeout_seconds=120) as connection:
        connection.send(OTHER_TOPIC, 0, 128)
        while not ended.is_set():
            into = meanwhile if started.is_set() else before
            began = time.perf_counter()
            answer = connection.send(OTHER_TOPIC, 0, 128)
            if answer.code != SUCCESS:
                raise BenchmarkError(f"a send was refused: {answer.code} {answer.remark}")
            into.append((time.perf_counter() - began) * 1000)
            time.sleep(0.002)
    pipe.send((before, meanwhile))


def quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "none"
    median, p99, p999 = (
        ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99, 0.999)
    )
    return (
        f"median {median:.2f}, p99 {p99:.2f}, p99.9 {p999:.2f}, max {ordered[-1]:.1f} "
        f"of {len(ordered)}"
    )


if __name__ == "__main__":
    sys.exit(main())

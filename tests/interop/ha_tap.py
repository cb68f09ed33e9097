"""A TCP link between a slave and its master that records what passes, and can be cut anywhere.

`Tap(target)` listens on a free loopback port, forwards both ways and keeps every chunk with its time.
It speaks no replication: the readers below it read what was recorded, from the description of
the protocol and not by `cometmq.protocol`, so that a mistake there cannot hide itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self, TypeVar

# A frame's header: int64 commit-log offset of the body, int32 size of the body.
FRAME = struct.Struct(">qi")
# What a slave says: int64 end of its own log.
REPORT = struct.Struct(">q")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST

T = TypeVar("T")
Side = Literal["master", "slave"]


class Chunk(NamedTuple):
    """The bytes of one read: who said it, and how many ms after the connection was made."""

    side: Side
    at_ms: int
    data: bytes


class Frame(NamedTuple):
    """A master's message, with the time at which its last byte passed."""

    at_ms: int
    offset: int
    body: bytes


class Report(NamedTuple):
    """A slave's message, with the time at which its last byte passed."""

    at_ms: int
    offset: int


@dataclass
class Connection:
    """One connection from its beginning to its end."""

    began: float
    chunks: list[Chunk] = field(default_factory=list)
    ended_by: Side | Literal["tap"] | None = None
    ended_ms: int = 0

    def add(self, side: Side, data: bytes) -> None:
        self.chunks.append(Chunk(side, self.now_ms(), data))

    def end(self, by: Side | Literal["tap"]) -> None:
        if self.ended_by is None:
            self.ended_by, self.ended_ms = by, self.now_ms()

    def now_ms(self) -> int:
        return int((time.monotonic() - self.began) * 1000)

    def frames(self) -> list[Frame]:
        """The complete frames that the master sent."""
        return [
            Frame(at_ms, *parsed) for at_ms, parsed in _parsed(self.chunks, "master", _one_frame)
        ]

    def reports(self) -> list[Report]:
        """The complete reports of the slave."""
        return [
            Report(at_ms, parsed) for at_ms, parsed in _parsed(self.chunks, "slave", _one_report)
        ]


class Tap:
    """A context manager. `connections` are those so far, the newest last.

    `cut_after(count)` ends the connection of the moment with RST as soon as the master has sent so many
    bytes more, of which the slave still gets all: between two bytes of a record, for example. Without
    `lets_reports_through`, what slaves say waits in the tap.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self._server = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.connections: list[Connection] = []
        self.lets_reports_through = threading.Event()
        self.lets_reports_through.set()
        self._left: int | None = None
        self._pairs: list[tuple[Connection, socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, name="ha-tap", daemon=True)]
        self._threads[0].start()

    def cut_after(self, count: int) -> None:
        self._left = count

    def cut(self) -> None:
        """End all connections now."""
        pairs, self._pairs = self._pairs, []
        for connection, *ends in pairs:
            connection.end("tap")
            for end in ends:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RD)  # wakes the thread that reads
                with contextlib.suppress(OSError):
                    end.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.lets_reports_through.set()
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                slave, _ = self._server.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                master = socket.create_connection((host, int(port)), timeout=5)
            except OSError:
                slave.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                slave.close()
                continue
            master.settimeout(None)
            connection = Connection(time.monotonic())
            self.connections.append(connection)
            self._pairs.append((connection, master, slave))
            sides: tuple[tuple[Side, socket.socket, socket.socket], ...] = (
                ("master", master, slave),
                ("slave", slave, master),
            )
            for side, source, sink in sides:
                thread = threading.Thread(
                    target=self._pump, args=(connection, side, source, sink), daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def _pump(
        self, connection: Connection, side: Side, source: socket.socket, sink: socket.socket
    ) -> None:
        cut = False
        with contextlib.suppress(OSError):
            while not cut and (data := source.recv(65536)):
                if side == "master" and self._left is not None:
                    cut = len(data) >= self._left
                    data = data[: self._left]
                    self._left = None if cut else self._left - len(data)
                connection.add(side, data)
                if side == "slave":
                    self.lets_reports_through.wait()
                sink.sendall(data)
        connection.end("tap" if cut else side)
        if cut:
            # What was forwarded last is to arrive: a reset would discard it.
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()


def _one_frame(data: bytearray) -> tuple[int, tuple[int, bytes]] | None:
    """The first frame's end and content, None while it is not complete."""
    if len(data) < FRAME.size:
        return None
    offset, size = FRAME.unpack_from(data)
    end = FRAME.size + size
    return None if len(data) < end else (end, (offset, bytes(data[FRAME.size : end])))


def _one_report(data: bytearray) -> tuple[int, int] | None:
    if len(data) < REPORT.size:
        return None
    (offset,) = REPORT.unpack_from(data)
    return REPORT.size, offset


def _parsed(
    chunks: Iterable[Chunk], side: Side, parse: Callable[[bytearray], tuple[int, T] | None]
) -> Iterator[tuple[int, T]]:
    waiting = bytearray()
    for chunk in list(chunks):
        if chunk.side != side:
            continue
        waiting += chunk.data
        while (found := parse(waiting)) is not None:
            end, parsed = found
            yield chunk.at_ms, parsed
            del waiting[:end]

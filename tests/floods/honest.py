"""Be a well-behaved client at a steady rate, and measure what it notices.

    python -m tests.floods.honest HOST:PORT --seconds 10 [--namesrv HOST:PORT]

A producer sends a message at each due time and a consumer pulls them, over a connection each; a third
connection asks the name server for the topic's route. The due times are fixed beforehand (an open
loop): what comes late, because an earlier request was slow, counts from its due time. Prints one line
of JSON, a `Measured`. The broker must have the topic `TOPIC`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import select
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.integration.raw_client import json_request, pull_ext, send_ext

TOPIC: Final = "honest"
GROUP: Final = "honest-group"
RATE: Final = 200
BODY_BYTES: Final = 1024
# How long answers that have not come at the end are waited for.
_GRACE_S: Final = 5.0
_SEND, _PULL, _GET_MAX_OFFSET, _GET_ROUTE = 310, 11, 30, 105
_FOUND, _NOT_FOUND, _RETRY = 0, 19, 20
_MARK: Final = re.compile(rb"<due (\d{20})>")


@dataclass
class Latencies:
    """Holds quantiles in ms; what never came counts with the time for which it was waited for."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, seconds: list[float]) -> Latencies:
        if not seconds:
            return cls()
        ordered = sorted(seconds)
        p50, p99 = (ordered[math.ceil(len(ordered) * q) - 1] for q in (0.5, 0.99))
        return cls(len(ordered), *(round(each * 1000, 2) for each in (p50, p99, ordered[-1])))


@dataclass
class Measured:
    """Holds what the client noticed. `own` says how late its own timer was: that is the machine's.

    `joined_s` is how long it took to connect and to have a first answer.
    """

    sent: Latencies = field(default_factory=Latencies)
    delivered: Latencies = field(default_factory=Latencies)
    routed: Latencies = field(default_factory=Latencies)
    own: Latencies = field(default_factory=Latencies)
    missing: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    joined_s: float = 0.0


class Line:
    """Keeps a connection without blocking; connects again when it is lost."""

    def __init__(self, address: str, epoll: select.epoll) -> None:
        host, _, port = address.rpartition(":")
        self._place = (host, int(port))
        self._epoll = epoll
        self.lost = 0
        self._connect()

    def _connect(self) -> None:
        self.socket = socket.create_connection(self._place, timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.fileno = self.socket.fileno()
        self._unsent = bytearray()
        self._received = bytearray()
        self._epoll.register(self.fileno, select.EPOLLIN)

    def send(self, frame: bytes) -> None:
        self._unsent += frame
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            del self._unsent[: self.socket.send(self._unsent)]
        waits = select.EPOLLOUT if self._unsent else 0
        self._epoll.modify(self.fileno, select.EPOLLIN | waits)

    def receive(self) -> list[tuple[dict[str, str], int, int, bytes]]:
        """Return (ext, code, opaque, body) of each answer that has come. Raises ConnectionError."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("closed by the server")
        self._received += data
        answers = []
        while len(self._received) >= 8:
            length, header_length = struct.unpack_from(">II", self._received)
            if len(self._received) < 4 + length:
                break
            header = json.loads(self._received[8 : 8 + header_length])
            body = bytes(self._received[8 + header_length : 4 + length])
            del self._received[: 4 + length]
            if header["flag"] & 1:
                answers.append(
                    (header.get("extFields") or {}, header["code"], header["opaque"], body)
                )
        return answers

    def reconnect(self) -> None:
        self.lost += 1
        self._epoll.unregister(self.fileno)
        self.socket.close()
        self._connect()


class Honest:
    def __init__(self, address: str, namesrv: str | None) -> None:
        self._made_s = time.monotonic()
        self._epoll = select.epoll()
        self._producer = Line(address, self._epoll)
        self._consumer = Line(address, self._epoll)
        self._asker = Line(namesrv, self._epoll) if namesrv else None
        self._due_of: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        self._undelivered: dict[int, float] = {}
        self._sent: list[float] = []
        self._delivered: list[float] = []
        self._routed: list[float] = []
        self._own: list[float] = []
        self._refused: Counter[str] = Counter()
        self._offset = -1
        self._pull_at = math.inf

    def run(self, seconds: float) -> Measured:
        self._consumer.send(json_request(_GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}))
        while self._offset < 0:
            self._serve(1.0)
        began = time.monotonic()
        joined_s = began - self._made_s
        period = 1 / RATE
        for number in range(int(seconds * RATE)):
            due = began + number * period
            while (wait := due - time.monotonic()) > 0:
                self._serve(wait)
            self._own.append(time.monotonic() - due)
            self._ask(number, due)
            self._serve(0)
        end = time.monotonic() + _GRACE_S
        while (self._due_of or self._undelivered) and time.monotonic() < end:
            self._serve(0.05)
        now = time.monotonic()
        missing = len(self._due_of) + len(self._undelivered)
        self._sent += [now - due for due in self._due_of.values()]
        self._delivered += [now - due for due in self._undelivered.values()]
        self._routed += [now - due for due in self._asked.values()]
        for line in (self._producer, self._consumer):
            if line.lost:
                self._refused["connection lost"] += line.lost
        return Measured(
            Latencies.of(self._sent),
            Latencies.of(self._delivered),
            Latencies.of(self._routed),
            Latencies.of(self._own),
            missing,
            dict(self._refused),
            round(joined_s, 3),
        )

    def _ask(self, number: int, due: float) -> None:
        mark = b"<due %020d>" % int(due * 1e9)
        body = mark + b"m" * (BODY_BYTES - len(mark))
        ext = send_ext(TOPIC, letters=True, properties=f"UNIQ_KEY\x01{number:032X}\x02")
        self._due_of[number] = due
        self._undelivered[int(due * 1e9)] = due
        self._producer.send(json_request(_SEND, ext, body, opaque=number))
        if self._asker is not None and number % 4 == 0:
            self._asked[number] = due
            self._asker.send(json_request(_GET_ROUTE, {"topic": TOPIC}, opaque=number))

    def _serve(self, wait_s: float) -> None:
        now = time.monotonic()
        if now >= self._pull_at:
            self._pull()
        # A timer of epoll is as coarse as a millisecond, and rounds up.
        coarse = int(wait_s * 1000) / 1000
        for fileno, event in self._epoll.poll(coarse if coarse > 0.001 else 0):
            line = next(
                each
                for each in (self._producer, self._consumer, self._asker)
                if each is not None and each.fileno == fileno
            )
            if event & select.EPOLLOUT:
                line.flush()
            if event & ~select.EPOLLOUT:
                self._take(line)

    def _take(self, line: Line) -> None:
        try:
            answers = line.receive()
        except ConnectionError:
            line.reconnect()
            if line is self._consumer:
                self._pull()
            return
        now = time.monotonic()
        for ext, code, opaque, body in answers:
            if line is self._asker:
                self._routed.append(now - self._asked.pop(opaque))
            elif line is self._producer:
                due = self._due_of.pop(opaque, now)
                if code == 0:
                    self._sent.append(now - due)
                else:
                    self._refused[f"send {code}"] += 1
                    self._undelivered.pop(int(due * 1e9), None)
            elif self._offset < 0:
                self._offset = int(ext["offset"])
                self._pull()
            else:
                self._pulled(ext, code, body, now)

    def _pulled(self, ext: dict[str, str], code: int, body: bytes, now: float) -> None:
        for match in _MARK.finditer(body):
            due = self._undelivered.pop(int(match[1]), None)
            if due is not None:
                self._delivered.append(now - due)
        if code in (_FOUND, _NOT_FOUND, _RETRY):
            self._offset = int(ext["nextBeginOffset"])
            self._pull()
        else:
            self._refused[f"pull {code}"] += 1
            self._pull_at = now + 0.1

    def _pull(self) -> None:
        self._pull_at = math.inf
        ext = pull_ext(TOPIC, consumerGroup=GROUP, queueOffset=self._offset, sysFlag=2 | 4)
        self._consumer.send(json_request(_PULL, ext))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.floods.honest", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--namesrv")
    options = parser.parse_args()
    with contextlib.suppress(OSError):
        # Its own place among the processes of the machine must not show in what it measures.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    measured = Honest(options.address, options.namesrv).run(options.seconds)
    sys.stdout.write(json.dumps(asdict(measured)) + "\n")


if __name__ == "__main__":
    main()

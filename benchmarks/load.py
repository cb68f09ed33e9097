"""Generate raw load: one process, one epoll loop, a closed loop of requests per connection.

    python -m benchmarks.load --port 10911 --topic bench --connections 64 --in-flight 1 \
        --body-bytes 1024 --ramp-seconds 1 --seconds 5 [--server-pid PID] [--requests pulls]

Requests are `sends`, `batches` of MESSAGES messages, or `pulls` of as many messages, which the topic must
have: its queues are filled up to FILLED. All counts but those of probes are counts of messages.

Every connection keeps `in_flight` sends outstanding: an answer is replaced by a new send at once.
The loop is plain epoll rather than asyncio, because the generator must stay cheaper than what it
measures; `benchmarks.ack_server` shows how much cheaper. Both brokers meet this same process.

Within one run bornTimestamp stays the same; everything else that a Java client varies is varied.

Answers are cut by their length prefix and looked at for `"code":0`; anything else is decoded and
counted by its code. Latency is sampled by probes: one send per connection at a time is remembered
by its opaque and timed until the answer with that opaque is read. With one request in flight every
send is a probe. The result is one line of JSON on stdout (`LoadResult`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.door import OPEN, Door, LoadSocket, for_load
from benchmarks.frames import (
    BATCHES,
    FIRST_OPAQUE,
    MAX_OPAQUE,
    MESSAGES,
    OPAQUE_DIGITS,
    PULLS,
    QUEUES_PER_TOPIC,
    SENDS,
    SUCCESS,
    BenchmarkError,
    batch_sends,
    decode_response,
    pulls,
    send_template,
    signed_sends,
    unique_prefix,
)

SILENCE_LIMIT_SECONDS = 20.0
"""No answer on any connection for this long ends the run as failed."""

_SUCCESS_MARK = b'"code":0,'
_SUCCESS_MARK_SPAN = 24
"""Both brokers write `code` first; further back only the full decoder looks for it."""

_SOCKET_BUFFER_BYTES = 1 << 20
_REPEATED_SENDS = 1_000
"""For each queue."""
FILLED = 8_192
"""Messages in each queue of a topic that is pulled."""

_PULLED_BYTES = 1 << 18
"""Read at once of answers to pulls, which have up to 40 KiB."""

_LENGTH = struct.Struct(">I")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class LoadConfig:
    host: str
    port: int
    topic: str
    connections: int
    in_flight: int
    body_bytes: int
    ramp_seconds: float
    seconds: float
    server_pid: int | None = None
    cpu: int | None = None
    """Run on this core only."""
    sends: int | None = None
    """Stop after exactly so many sends, however early in the measured seconds that is."""
    door: Door = OPEN
    repeat_ids: bool = False
    """Repeat the unique ids of 4,000 messages, whose signatures are made beforehand."""
    requests: str = SENDS


@dataclass(slots=True)
class LoadResult:
    """Holds counts of messages. `acked*` are those of answers with code 0; `*_total` include ramp and
    drain.
    """

    sent_total: int
    acked_total: int
    acked: int
    seconds: float
    acked_per_second: float
    frame_bytes: int
    probes: int
    latency_p50_us: float | None
    latency_p99_us: float | None
    latency_max_us: float | None
    generator_cpu_seconds: float
    server_cpu_seconds: float | None
    errors: dict[str, int] = field(default_factory=dict)
    error_remarks: dict[str, str] = field(default_factory=dict)


class _Connection:
    """Keeps the state of one socket; the numbers live in `Generator`."""

    __slots__ = ("probe_mark", "probe_sent_ns", "socket", "tail", "unsent")

    def __init__(self, connected: LoadSocket) -> None:
        self.socket = connected
        self.tail = b""
        self.unsent = b""
        self.probe_mark = b""
        self.probe_sent_ns = 0


@dataclass(slots=True)
class _Mark:
    """Holds the counters at one edge of the measured window."""

    at_ns: int
    acked: int
    generator_cpu_seconds: float
    server_cpu_seconds: float | None


class Generator:
    """Runs one `LoadConfig`, once. Blocks; raises BenchmarkError when the server fails."""

    def __init__(self, config: LoadConfig) -> None:
        assert config.connections > 0
        assert config.in_flight > 0
        self._config = config
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        templates = [
            send_template(config.topic, queue_id, config.body_bytes, unique_prefix())
            for queue_id in range(QUEUES_PER_TOPIC)
        ]
        assert QUEUES_PER_TOPIC == 4, "queue of a message = low two bits of its opaque"
        self._frame_bytes = templates[0].frame_bytes
        self._templates = [(t.head, t.middle, t.tail) for t in templates]
        self._receive_bytes = 4096 if config.in_flight == 1 else 65536
        self._next_opaque = FIRST_OPAQUE
        self._last_opaque = MAX_OPAQUE if config.sends is None else FIRST_OPAQUE + config.sends
        self._outstanding = 0
        self._acked = 0
        self._draining = False
        self._errors: dict[str, int] = {}
        self._error_remarks: dict[str, str] = {}
        self._latencies_ns: list[int] = []

    def run(self) -> LoadResult:
        config = self._config
        if config.cpu is not None:
            os.sched_setaffinity(0, {config.cpu})
        gc.disable()  # nothing here makes cycles, and a pause would be charged to the server
        try:
            self._connect_all()
            for connection in self._connections.values():
                if not self._draining:
                    self._send(connection, config.in_flight)
            self._loop_for(config.ramp_seconds)
            self._check_taken(0)
            self._latencies_ns = []
            begin = self._mark()
            self._loop_for(config.seconds)
            end = self._mark()
            self._check_taken(begin.acked)
            measured_latencies_ns = self._latencies_ns
            self._draining = True
            self._loop_for(float("inf"))
        finally:
            gc.enable()
            self._close_all()
        return self._result(begin, end, sorted(measured_latencies_ns))

    def _connect_all(self) -> None:
        for _ in range(self._config.connections):
            connected = self._config.door.connect((self._config.host, self._config.port), 10)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            self._connections[connected.fileno()] = _Connection(for_load(connected))
            self._epoll.register(connected.fileno(), select.EPOLLIN)

    def _close_all(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._epoll.close()

    def _loop_for(self, seconds: float) -> None:
        """Serve events until `seconds` have passed, or until nothing is outstanding."""
        poll = self._epoll.poll
        connections = self._connections
        clock = time.monotonic
        now = last_event = clock()
        end = now + seconds
        while self._outstanding and now < end:
            events = poll(0.05)
            now = clock()
            if events:
                last_event = now
            elif now - last_event > SILENCE_LIMIT_SECONDS:
                raise BenchmarkError(
                    f"{self._outstanding} requests unanswered for {SILENCE_LIMIT_SECONDS:.0f} s"
                )
            for fileno, event in events:
                connection = connections[fileno]
                if event & select.EPOLLOUT:
                    self._flush(connection)
                if event & ~select.EPOLLOUT:
                    self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(self._receive_bytes)
        except BlockingIOError:  # what came belongs to TLS itself
            return
        now_ns = time.perf_counter_ns()
        if not data:
            raise BenchmarkError("the server closed a connection in the middle of the run")
        if connection.tail:
            data = connection.tail + data
        size = len(data)
        unpack = _LENGTH.unpack_from
        find = data.find
        position = 0
        answered = 0
        while size - position >= 4:
            end = position + 4 + unpack(data, position)[0]
            if end > size:
                break
            if find(_SUCCESS_MARK, position, position + _SUCCESS_MARK_SPAN) >= 0:
                self._acked += 1
            else:
                self._count_unusual(data[position + 4 : end])
            answered += 1
            position = end
        connection.tail = data[position:] if position < size else b""
        if answered:
            # A mark in a half-read frame stays in `tail`, so the next search finds it.
            if connection.probe_mark and find(connection.probe_mark, 0, position) >= 0:
                self._latencies_ns.append(now_ns - connection.probe_sent_ns)
                connection.probe_mark = b""
            self._outstanding -= answered
            if not self._draining:
                self._send(connection, answered)

    def _send(self, connection: _Connection, count: int) -> None:
        first = self._next_opaque
        if first + count >= self._last_opaque:
            count = self._last_opaque - first
            self._draining = True
            if not count:
                return
        self._next_opaque = first + count
        block = self._frames(first, count)
        if not connection.probe_mark:
            # A random place in the burst: the first send would always see the shortest queue.
            probe = first if count == 1 else first + int(random.random() * count)
            connection.probe_mark = b'"opaque":%d' % probe
            connection.probe_sent_ns = time.perf_counter_ns()
        self._outstanding += count
        if connection.unsent:
            connection.unsent += block
            return
        try:
            sent = connection.socket.send(block)
        except BlockingIOError:
            sent = 0
        if sent < len(block):
            connection.unsent = block[sent:]
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _frames(self, first: int, count: int) -> bytes:
        templates = self._templates
        parts: list[bytes] = []
        for opaque in range(first, first + count):
            head, middle, tail = templates[opaque & 3]
            digits = b"%d" % opaque
            parts += (head, digits, middle, digits, tail)
        return b"".join(parts)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            return
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN)

    def _count_unusual(self, frame: bytes) -> None:
        """Count an answer without the mark in front: code 0 written elsewhere, or a refusal."""
        response = decode_response(frame)
        if response.code == SUCCESS:
            self._acked += 1
            return
        code = str(response.code)
        self._errors[code] = self._errors.get(code, 0) + 1
        self._error_remarks.setdefault(code, response.remark[:200])

    def _check_taken(self, acked_before: int) -> None:
        """Raise BenchmarkError, with the server's words, if all it did since then was to refuse."""
        if self._acked == acked_before and self._errors:
            code, remark = next(iter(self._error_remarks.items()))
            raise BenchmarkError(f"every request was refused: {code} {remark}")

    def _mark(self) -> _Mark:
        pid = self._config.server_pid
        return _Mark(
            at_ns=time.perf_counter_ns(),
            acked=self._acked,
            generator_cpu_seconds=time.process_time(),
            server_cpu_seconds=None if pid is None else process_cpu_seconds(pid),
        )

    def _result(self, begin: _Mark, end: _Mark, latencies_ns: list[int]) -> LoadResult:
        if self._next_opaque == MAX_OPAQUE:
            raise BenchmarkError("the run used up the opaques of an int32 and stopped early")
        seconds = (end.at_ns - begin.at_ns) / 1e9
        messages = 1 if self._config.requests == SENDS else MESSAGES
        acked = (end.acked - begin.acked) * messages
        server_cpu_seconds = None
        if begin.server_cpu_seconds is not None and end.server_cpu_seconds is not None:
            server_cpu_seconds = end.server_cpu_seconds - begin.server_cpu_seconds
        return LoadResult(
            sent_total=(self._next_opaque - FIRST_OPAQUE) * messages,
            acked_total=self._acked * messages,
            acked=acked,
            seconds=seconds,
            acked_per_second=acked / seconds,
            frame_bytes=self._frame_bytes,
            probes=len(latencies_ns),
            latency_p50_us=_percentile_us(latencies_ns, 0.50),
            latency_p99_us=_percentile_us(latencies_ns, 0.99),
            latency_max_us=_percentile_us(latencies_ns, 1.0),
            generator_cpu_seconds=end.generator_cpu_seconds - begin.generator_cpu_seconds,
            server_cpu_seconds=server_cpu_seconds,
            errors=self._errors,
            error_remarks=self._error_remarks,
        )


class PreparedGenerator(Generator):
    """Sends requests that are encoded beforehand, over and over."""

    def __init__(self, config: LoadConfig, requests: list[tuple[bytes, bytes]]) -> None:
        super().__init__(config)
        if config.requests == PULLS:
            self._receive_bytes = _PULLED_BYTES
        self._sends = requests
        before, after = self._sends[0]
        self._frame_bytes = len(before) + len(after) + OPAQUE_DIGITS

    def _frames(self, first: int, count: int) -> bytes:
        sends = self._sends
        size = len(sends)
        parts: list[bytes] = []
        for opaque in range(first, first + count):
            before, after = sends[opaque % size]
            parts += (before, b"%d" % opaque, after)
        return b"".join(parts)


class RepeatingGenerator(PreparedGenerator):
    """Sends messages that are signed beforehand.

    To sign each send would cost the generator as much as the rest of its work.
    """

    def __init__(self, config: LoadConfig) -> None:
        by_queue = [
            signed_sends(config.topic, queue_id, config.body_bytes, config.door, _REPEATED_SENDS)
            for queue_id in range(QUEUES_PER_TOPIC)
        ]
        # Message n goes to queue n modulo 4, as in other loads.
        super().__init__(config, [send for sends in zip(*by_queue, strict=True) for send in sends])


def generator_of(config: LoadConfig) -> Generator:
    if config.requests == BATCHES:
        return PreparedGenerator(config, batch_sends(config.topic, config.body_bytes))
    if config.requests == PULLS:
        return PreparedGenerator(config, pulls(config.topic, FILLED))
    return (RepeatingGenerator if config.repeat_ids else Generator)(config)


def process_cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _percentile_us(sorted_ns: list[int], share: float) -> float | None:
    if not sorted_ns:
        return None
    return sorted_ns[min(len(sorted_ns) - 1, int(share * len(sorted_ns)))] / 1000


def main() -> int:
    parser = argparse.ArgumentParser(description="raw load of sends or pulls")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=1, help="per connection")
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--ramp-seconds", type=float, default=1.0, help="not measured")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cpu", type=int, help="run on this core only")
    parser.add_argument("--sends", type=int, help="stop after so many; default: no limit")
    parser.add_argument("--server-pid", type=int, help="account this process's CPU time")
    parser.add_argument("--requests", choices=(SENDS, BATCHES, PULLS), default=SENDS)
    parser.add_argument("--repeat-ids", action="store_true", help="4,000 messages over and over")
    parser.add_argument("--access-key", default="", help="sign; with --repeat-ids only")
    parser.add_argument("--secret-key", default="")
    parser.add_argument("--tls", action="store_true")
    given = vars(parser.parse_args())
    door = Door(given.pop("access_key"), given.pop("secret_key"), given.pop("tls"))
    if door.access_key and not given["repeat_ids"]:
        parser.error("--access-key needs --repeat-ids: signatures are made beforehand")
    config = LoadConfig(**given, door=door)
    try:
        result = generator_of(config).run()
    except (BenchmarkError, OSError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

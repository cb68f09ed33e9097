"""Encode the few frames that the benchmark speaks, without the product's own codecs.

A benchmark that encoded with `cometmq` would share the mistakes of the broker it measures, so the
bytes are spelt out here, as a Java 5.x client writes them:

    u32 length | u8 0 (JSON), u24 header length | header (JSON, keys a..z) | body

SEND_MESSAGE_V2 keeps one constant length per queue: only two spots change from message to message,
the opaque and the tail of UNIQ_KEY, and both carry the same ten decimal digits.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.door import OPEN, Door

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

PULL_MESSAGE = 11
GET_MAX_OFFSET = 30
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
SUCCESS = 0

JAVA_VERSION_V5_3_3 = 479
DEFAULT_TOPIC = "TBW102"
BROKER_NAME = "broker-a"
QUEUES_PER_TOPIC = 4

SENDS, BATCHES, PULLS = "sends", "batches", "pulls"
"""The requests of which a load consists."""

MESSAGES = 32
"""In a batch, and asked for by a pull."""

_SUBSCRIPTION = 4
"""The bit of a pull's sysFlag that says: the request brings its subscription. It does not wait then."""

FIRST_OPAQUE = 1_000_000_000
"""Ten digits from the first message on, so a frame never changes its length."""

OPAQUE_DIGITS = 10
MAX_OPAQUE = 2**31 - 1

_LENGTHS = struct.Struct(">II")
_BATCHED = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">h")
_PLACEHOLDER = "0123456789"
assert len(_PLACEHOLDER) == OPAQUE_DIGITS


class BenchmarkError(Exception):
    """Says that a measurement cannot be trusted: a peer refused, vanished, or lost a message."""


@dataclass(frozen=True, slots=True)
class SendTemplate:
    """Holds one SEND_MESSAGE_V2 frame, cut at its two variable spots.

    A frame is `head + digits + middle + digits + tail`; the first spot is the tail of UNIQ_KEY,
    the second the opaque (Java writes extFields before opaque).
    """

    head: bytes
    middle: bytes
    tail: bytes

    def frame(self, opaque: int) -> bytes:
        digits = b"%d" % opaque
        assert len(digits) == OPAQUE_DIGITS
        return b"".join((self.head, digits, self.middle, digits, self.tail))

    @property
    def frame_bytes(self) -> int:
        return len(self.head) + len(self.middle) + len(self.tail) + 2 * OPAQUE_DIGITS


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    remark: str
    ext: dict[str, str]
    body: bytes


def encode_frame(header: bytes, body: bytes = b"") -> bytes:
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def send_template(topic: str, queue_id: int, body_bytes: int, unique_prefix: str) -> SendTemplate:
    """Make a send as `DefaultMQProducer` makes it (compared with a frame the 5.3.3 client sent).

    UNIQ_KEY and WAIT are the only properties, as for a message without tags and keys.
    `unique_prefix` is 22 characters of UNIQ_KEY (Java: address, process, class loader, time); the
    ten digits that follow make up its 32.
    """
    assert len(unique_prefix) == 32 - OPAQUE_DIGITS
    ext = _send_ext(topic, queue_id, f"{unique_prefix}{_PLACEHOLDER}")
    header = _request_header(SEND_MESSAGE_V2, ext, _PLACEHOLDER).encode()
    parts = encode_frame(header, b"m" * body_bytes).split(_PLACEHOLDER.encode())
    assert len(parts) == 3, "exactly two variable spots"
    return SendTemplate(*parts)


def signed_sends(
    topic: str, queue_id: int, body_bytes: int, door: Door, count: int
) -> list[tuple[bytes, bytes]]:
    """Make `count` sends as above but for their opaques, which nobody signs.

    Each is the bytes before and after the opaque's ten digits. They have unique ids of their own,
    so they are signed beforehand; with a door without an account they are not signed.
    """
    body = b"m" * body_bytes
    prefix = unique_prefix()
    sends = []
    for number in range(FIRST_OPAQUE, FIRST_OPAQUE + count):
        ext = door.signed(_send_ext(topic, queue_id, f"{prefix}{number}"), body)
        header = _request_header(SEND_MESSAGE_V2, ext, _PLACEHOLDER).encode()
        before, after = encode_frame(header, body).split(_PLACEHOLDER.encode())
        sends.append((before, after))
    return sends


def batch_sends(topic: str, body_bytes: int) -> list[tuple[bytes, bytes]]:
    """Make a batch of MESSAGES messages for each queue, cut at its opaque's ten digits."""
    prefix = unique_prefix()
    requests = []
    for queue_id in range(QUEUES_PER_TOPIC):
        ext = _send_ext(topic, queue_id, "") | {"i": "WAIT\x01true\x02", "m": "true"}
        first = FIRST_OPAQUE + queue_id * MESSAGES
        body = b"".join(
            _batched(f"UNIQ_KEY\x01{prefix}{first + number}\x02WAIT\x01true\x02", body_bytes)
            for number in range(MESSAGES)
        )
        header = _request_header(SEND_BATCH_MESSAGE, ext, _PLACEHOLDER).encode()
        before, after = encode_frame(header, body).split(_PLACEHOLDER.encode())
        requests.append((before, after))
    return requests


def _batched(properties: str, body_bytes: int) -> bytes:
    """Encode a message of a batch: its length, magic, CRC and flag, which are 0, its body and properties,
    each behind its length.
    """
    encoded = properties.encode()
    size = _BATCHED.size + body_bytes + _PROPERTIES_LENGTH.size + len(encoded)
    head = _BATCHED.pack(size, 0, 0, 0, body_bytes)
    return head + b"m" * body_bytes + _PROPERTIES_LENGTH.pack(len(encoded)) + encoded


def pull_ext(topic: str, queue_id: int, offset: int) -> dict[str, str]:
    """Return the header of a pull that asks for MESSAGES messages and does not wait."""
    return {
        "consumerGroup": "benchmark_consumer",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(MESSAGES),
        "sysFlag": str(_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def pulls(topic: str, filled: int) -> list[tuple[bytes, bytes]]:
    """Make pulls of all messages of all queues, each filled up to `filled`, as `repeated_requests` does."""
    exts = [
        pull_ext(topic, queue_id, offset)
        for offset in range(0, filled, MESSAGES)
        for queue_id in range(QUEUES_PER_TOPIC)
    ]
    return repeated_requests(PULL_MESSAGE, exts, OPEN)


def repeated_requests(
    code: int, exts: Sequence[dict[str, str]], door: Door
) -> list[tuple[bytes, bytes]]:
    """Make a request without a body of each header, cut at its opaque's ten digits."""
    requests = []
    for ext in exts:
        header = _request_header(code, door.signed(ext, b""), _PLACEHOLDER).encode()
        before, after = encode_frame(header).split(_PLACEHOLDER.encode())
        requests.append((before, after))
    return requests


def _send_ext(topic: str, queue_id: int, unique_key: str) -> dict[str, str]:
    return {
        "a": "benchmark_producer",
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": str(QUEUES_PER_TOPIC),
        "e": str(queue_id),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": BROKER_NAME,
    }


def decode_response(frame: bytes) -> Response:
    """Decode a frame, which starts behind the length field. Headers are JSON, as brokers send."""
    header_length = int.from_bytes(frame[:4], "big")
    if header_length >> 24:
        raise BenchmarkError(f"answer in serialize type {header_length >> 24}, expected 0 (JSON)")
    header = json.loads(frame[4 : 4 + header_length])
    return Response(
        code=header["code"],
        remark=header.get("remark") or "",
        ext=header.get("extFields") or {},
        body=frame[4 + header_length :],
    )


class ControlConnection:
    """Keeps one blocking connection around a measurement: topics, offsets, a probing send."""

    def __init__(
        self, address: tuple[str, int], timeout_seconds: float = 10.0, door: Door = OPEN
    ) -> None:
        self._socket = door.connect(address, timeout_seconds)
        self._door = door
        self._opaque = FIRST_OPAQUE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> Response:
        self._opaque += 1
        header = _request_header(code, self._door.signed(ext, body), str(self._opaque))
        return self._exchange(encode_frame(header.encode(), body))

    def send(self, topic: str, queue_id: int, body_bytes: int) -> Response:
        """Send one message and return its answer; the broker creates an unknown topic."""
        self._opaque += 1
        [(before, after)] = signed_sends(topic, queue_id, body_bytes, self._door, 1)
        return self._exchange(before + b"%d" % self._opaque + after)

    def stored_messages(self, topic: str) -> int:
        """Return the sum of the queues' maximum offsets (the next offsets to be written)."""
        total = 0
        for queue_id in range(QUEUES_PER_TOPIC):
            response = self.call(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
            if response.code != SUCCESS:
                raise BenchmarkError(
                    f"max offset of {topic}-{queue_id}: code {response.code}, {response.remark}"
                )
            total += int(response.ext["offset"])
        return total

    def _exchange(self, request: bytes) -> Response:
        self._socket.sendall(request)
        length = int.from_bytes(self._read(4), "big")
        return decode_response(self._read(length))

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            parts += part
        return bytes(parts)


def unique_prefix() -> str:
    """Return 22 characters of a UNIQ_KEY that no other run repeats."""
    return f"7F000001{time.time_ns() & 0xFFFFFFFFFFFFFF:014X}"


def _request_header(code: int, ext: dict[str, str], opaque_digits: str) -> str:
    fields = json.dumps(ext, separators=(",", ":"))
    return (
        f'{{"code":{code},"extFields":{fields},"flag":0,"language":"JAVA",'
        f'"opaque":{opaque_digits},"serializeTypeCurrentRPC":"JSON",'
        f'"version":{JAVA_VERSION_V5_3_3}}}'
    )

"""Talk to a server in bytes over blocking sockets, as a peer without our own client does.

Frames and headers are made and read here from the protocol's description, not by
`cometmq.protocol`, so that a mistake there cannot hide itself.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from tests.waits import CLOCK, WAIT_S, eventually

# With a transient store pool a message can be read some 200 ms after it was acknowledged.
READ_LATER = "transientStorePoolEnable=true" in os.environ.get("COMETMQ_TEST_PROPERTIES", "")
_SENDS = (10, 310, 320, 324, 325)
_GET_MAX_OFFSET = 30
_GET_ROUTE = 105
_RUNTIME_INFO = 28
# Messages with one of these properties are not in the queue that their answer names.
_STORED_ELSEWHERE = ("TRAN_MSG", "DELAY", "TIMER_")
RESPONSE = 1
ONEWAY = 2

# V1 names of the send header and their V2 letters.
SEND_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


@dataclass(frozen=True)
class Command:
    """Holds one frame that came in."""

    serialize_type: int
    code: int
    flag: int
    opaque: int
    language: str | int
    version: int
    remark: str | None
    ext: dict[str, str]
    body: bytes

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE != 0


def json_frame(header: Mapping[str, Any] | bytes, body: bytes = b"") -> bytes:
    """Return a frame with a JSON header; bytes are taken as the header's text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def json_request(
    code: int,
    ext: Mapping[str, Any] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    flag: int = 0,
) -> bytes:
    header = {
        "code": code,
        "extFields": {key: str(value) for key, value in (ext or {}).items()},
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    return json_frame(header, body)


def binary_request(
    code: int,
    ext: Mapping[str, Any] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    flag: int = 0,
) -> bytes:
    entries = b"".join(
        struct.pack(">H", len(key.encode()))
        + key.encode()
        + struct.pack(">I", len(str(value).encode()))
        + str(value).encode()
        for key, value in (ext or {}).items()
    )
    header = struct.pack(">HBHiiII", code, 0, 479, opaque, flag, 0, len(entries)) + entries
    return struct.pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def send_ext(topic: str, *, letters: bool = False, **fields: Any) -> dict[str, str]:
    """Return the ext fields of a send; `letters` gives them the names of V2. None omits a field."""
    values: dict[str, Any] = {
        "producerGroup": "raw-producer",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
        **fields,
    }
    return {
        SEND_LETTERS[name] if letters else name: str(value)
        for name, value in values.items()
        if value is not None
    }


def pull_ext(topic: str, **fields: Any) -> dict[str, str]:
    """Return the ext fields of a pull that states its subscription and does not wait."""
    values: dict[str, Any] = {
        "consumerGroup": "raw-group",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        **fields,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def properties(values: Mapping[str, str]) -> str:
    """Return the properties string of `values`."""
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def batch_body(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the body of a batch of (body, properties)."""
    parts = []
    for body, text in messages:
        size = 22 + len(body) + len(text)
        parts.append(struct.pack(">iIIii", size, 0, 0, 0, len(body)) + body)
        parts.append(struct.pack(">H", len(text)) + text)
    return b"".join(parts)


def heartbeat_body(
    client_id: str, groups: Mapping[str, Iterable[str]], *, sub_version: int = 1, **consumer: Any
) -> bytes:
    """Return the heartbeat of a consumer whose `groups` subscribe to the topics given."""
    return json.dumps(
        {
            "clientID": client_id,
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "unitMode": False,
                    "subscriptionDataSet": [
                        {
                            "topic": topic,
                            "subString": "*",
                            "subVersion": sub_version,
                            "expressionType": "TAG",
                            "tagsSet": [],
                            "codeSet": [],
                            "classFilterMode": False,
                        }
                        for topic in topics
                    ],
                    **consumer,
                }
                for group, topics in groups.items()
            ],
        }
    ).encode()


def java_hash(text: str) -> int:
    """Return String.hashCode of a text of one-unit characters."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 1 << 31 else value


def wait_until_readable(
    namesrv: str, topic: str, broker_name: str, queue_id: int, queue_offset: int
) -> None:
    """Wait until the message at a queue offset can be read from its broker."""
    with RawClient(namesrv.split(";", maxsplit=1)[0]) as client:
        # A topic that a send has just made reaches the name server a moment later.
        answer = eventually(
            lambda: client.ask(_GET_ROUTE, {"topic": topic}), lambda answer: bool(answer.body)
        )
    route = json.loads(answer.body)
    (broker,) = [data for data in route["brokerDatas"] if data["brokerName"] == broker_name]
    with RawClient(broker["brokerAddrs"]["0"]) as client:
        client.wait_for_offset(topic, queue_id, queue_offset)


# How a connection is made: by the machine, or in the virtual cluster of the running test.
_connect: Callable[[tuple[str, int], float], Any] = socket.create_connection


@contextmanager
def connecting_by(connect: Callable[[tuple[str, int], float], Any]) -> Iterator[None]:
    """Have raw clients use `connect(address, timeout_s)`, which returns what acts as a socket."""
    global _connect  # noqa: PLW0603 - it is of the one test that runs
    before, _connect = _connect, connect
    try:
        yield
    finally:
        _connect = before


class RawClient:
    """Keeps one connection. `binary` sends ROCKETMQ headers."""

    def __init__(self, address: str, *, binary: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self.socket = _connect((host, int(port)), WAIT_S)
        # The name that the server has for this end.
        self.peer_name = "{}:{}".format(*self.socket.getsockname()[:2])
        self._encode = binary_request if binary else json_request
        self._opaque = 100
        # Requests that the server sent us while we waited for an answer.
        self.pushed: deque[Command] = deque()

    def send(
        self, code: int, ext: Mapping[str, Any] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> int:
        """Send a request; return its opaque."""
        self._opaque += 1
        self.socket.sendall(self._encode(code, ext, body, opaque=self._opaque, flag=flag))
        return self._opaque

    def ask(self, code: int, ext: Mapping[str, Any] | None = None, body: bytes = b"") -> Command:
        """Send a request and return its answer; a message that was sent can then be read."""
        answer = self.answer(self.send(code, ext, body))
        if READ_LATER and code in _SENDS and answer.code == 0 and ext:
            self._wait_until_readable(ext, answer)
        return answer

    def _wait_until_readable(self, ext: Mapping[str, Any], answer: Command) -> None:
        text = ext.get("properties", ext.get("i", ""))
        if any(name in text for name in _STORED_ELSEWHERE) or "queueOffset" not in answer.ext:
            return
        host, port = self.socket.getpeername()
        topic, queue_id = ext.get("topic", ext.get("b")), int(answer.ext["queueId"])
        # On another connection, because what this one receives belongs to the test.
        with RawClient(f"{host}:{port}") as other:
            other.wait_for_offset(str(topic), queue_id, int(answer.ext["queueOffset"]))

    def wait_for_offset(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Wait until the message at a queue offset can be read."""
        queue = {"topic": topic, "queueId": queue_id}
        eventually(lambda: int(self.ask(_GET_MAX_OFFSET, queue).ext["offset"]) > queue_offset)

    def answer(self, opaque: int) -> Command:
        """Return the answer to `opaque`; keep requests of the server that come before it."""
        while True:
            command = self.receive()
            if command.is_response:
                assert command.opaque == opaque, f"an answer to {command.opaque}, not to {opaque}"
                return command
            self.pushed.append(command)

    def settle(self) -> None:
        """Wait until all that the broker has acknowledged can be read."""
        deadline = CLOCK.monotonic() + WAIT_S
        settled = 0
        # Twice: what is committed between two looks at the log is put into its queue soon after.
        while READ_LATER and settled < 2:
            assert CLOCK.monotonic() < deadline, "the broker does not commit what it has"
            table = json.loads(self.ask(_RUNTIME_INFO).body)["table"]
            uncommitted = table.get("remainHowManyDataToCommit", "0 B") != "0 B"
            settled = 0 if uncommitted or table["dispatchBehindBytes"] != "0" else settled + 1
            CLOCK.sleep(0.01)

    def push(self, code: int, timeout_s: float = WAIT_S) -> Command:
        """Return the next request of the server, which must have `code`."""
        command = self.pushed.popleft() if self.pushed else self.receive(timeout_s)
        assert not command.is_response
        assert command.code == code
        return command

    def receive(self, timeout_s: float = WAIT_S) -> Command:
        """Return the next frame. Raises TimeoutError, or ConnectionError when the peer closed."""
        self.socket.settimeout(timeout_s)
        length, type_and_length = struct.unpack(">II", self._exactly(8))
        payload = self._exactly(length - 4)
        header_length = type_and_length & 0xFFFFFF
        header, body = payload[:header_length], payload[header_length:]
        if type_and_length >> 24 == 1:
            return _binary_command(header, body)
        fields = json.loads(header)
        return Command(
            0,
            fields["code"],
            fields["flag"],
            fields["opaque"],
            fields["language"],
            fields["version"],
            fields.get("remark"),
            fields.get("extFields") or {},
            body,
        )

    def silent(self, seconds: float) -> bool:
        """Say whether nothing comes in for `seconds`."""
        if isinstance(self.socket, socket.socket):
            return not select.select([self.socket], [], [], seconds)[0]
        return not self.socket.waits_readable(seconds)

    def closed_by_peer(self, timeout_s: float = WAIT_S) -> bool:
        """Say whether the peer closes the connection in time; drop what else comes in."""
        deadline = CLOCK.monotonic() + timeout_s
        try:
            while (left := deadline - CLOCK.monotonic()) > 0:
                self.socket.settimeout(left)
                if not self.socket.recv(65536):
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = self.socket.recv(size - len(received))
            if not chunk:
                raise ConnectionError(f"the peer closed after {len(received)} of {size} bytes")
            received += chunk
        return bytes(received)


def _binary_command(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag, remark_length = struct.unpack_from(">HBHiiI", header)
    at = 17 + remark_length
    remark = header[17:at].decode() or None
    end = at + 4 + int.from_bytes(header[at : at + 4], "big")
    at += 4
    ext = {}
    while at < end:
        size = int.from_bytes(header[at : at + 2], "big")
        key = header[at + 2 : at + 2 + size].decode()
        at += 2 + size
        size = int.from_bytes(header[at : at + 4], "big")
        ext[key] = header[at + 4 : at + 4 + size].decode()
        at += 4 + size
    return Command(1, code, flag, opaque, language, version, remark, ext, body)

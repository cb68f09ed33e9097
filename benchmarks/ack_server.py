"""A server that acknowledges sends and stores nothing: it shows the load generator's ceiling.

    python -m benchmarks.ack_server [--port 0]          # prints "HOST PORT" when it listens

The server cuts each frame by its length prefix, copies its opaque into an answer of a real answer's
size, and does nothing else. No broker in this language can be cheaper. So if a broker's row comes
near this one, it measures the generator.
"""

from __future__ import annotations

import argparse
import select
import signal
import socket
import struct
import sys

from benchmarks.frames import OPAQUE_DIGITS, encode_frame

_OPAQUE_MARK = b'"opaque":'
_LENGTH = struct.Struct(">I")
_PLACEHOLDER = b"0123456789"
_ANSWER_HEADER = (
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F0000000000000000","queueOffset":"1000000",'
    b'"transactionId":"7F0000010000000000000000000000000000"},"flag":1,"language":"JAVA",'
    b'"opaque":' + _PLACEHOLDER + b',"serializeTypeCurrentRPC":"JSON","version":479}'
)


class AckServer:
    """Runs one epoll loop, and answers whatever comes with code 0."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._sockets: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        self._head, self._rest = encode_frame(_ANSWER_HEADER).split(_PLACEHOLDER)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def serve_forever(self) -> None:
        while True:
            for fileno, _ in self._epoll.poll():
                if fileno == self._listener.fileno():
                    self._accept()
                else:
                    self._answer(fileno)

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[accepted.fileno()] = accepted
        self._tails[accepted.fileno()] = b""
        self._epoll.register(accepted.fileno(), select.EPOLLIN)

    def _answer(self, fileno: int) -> None:
        connected = self._sockets[fileno]
        try:
            data = connected.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self._epoll.unregister(fileno)
            del self._sockets[fileno], self._tails[fileno]
            connected.close()
            return
        data = self._tails[fileno] + data
        head, rest, size = self._head, self._rest, len(data)
        parts: list[bytes] = []
        position = 0
        while size - position >= 4:
            end = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if end > size:
                break
            opaque = data.index(_OPAQUE_MARK, position, end) + len(_OPAQUE_MARK)
            parts += (head, data[opaque : opaque + OPAQUE_DIGITS], rest)
            position = end
        self._tails[fileno] = data[position:]
        if parts:
            connected.sendall(b"".join(parts))


def main() -> int:
    parser = argparse.ArgumentParser(description="acknowledge everything, store nothing")
    parser.add_argument("--port", type=int, default=0)
    server = AckServer(parser.parse_args().port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(*server.address, flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A TCP link that can be cut: it forwards, refuses, or swallows what passes.

`BadLink(listen, target)` accepts at one address and forwards to another, in threads of its own.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

Address = tuple[str, int]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST


class BadLink:
    """`reset` ends all connections with RST; while `refusing`, new ones end so too. `swallow` makes
    the connections that exist, and those made until `heal`, deaf and dumb for ever without closing
    them, as when a router forgets them; `swallow_answers` does so only towards the client."""

    def __init__(self, listen: Address, target: Address) -> None:
        self._target = target
        self._server = socket.create_server(listen, backlog=128)
        self.address = f"{listen[0]}:{self._server.getsockname()[1]}"
        self._pairs: list[_Pair] = []
        self._lock = threading.Lock()
        self._refusing = False
        self._swallowing = False
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="bad-link", daemon=True)
        self._thread.start()

    def reset(self, *, refusing: bool = False) -> None:
        with self._lock:
            self._refusing = refusing
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.reset()

    def swallow(self) -> None:
        with self._lock:
            self._swallowing = True
            for pair in self._pairs:
                pair.deaf = pair.dumb = True

    def swallow_answers(self) -> None:
        """Of the connections that exist; new ones work."""
        with self._lock:
            for pair in self._pairs:
                pair.dumb = True

    def heal(self) -> None:
        with self._lock:
            self._refusing = self._swallowing = False

    def close(self) -> None:
        self._closed = True
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with self._lock:
                refusing, swallowing = self._refusing, self._swallowing
            try:
                if refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                client.close()
                continue
            server.settimeout(None)
            pair = _Pair(client, server)
            pair.deaf = pair.dumb = swallowing
            with self._lock:
                self._pairs.append(pair)
            pair.start()


class _Pair:
    """One connection: `deaf` drops what the client says, `dumb` what the server says."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client = client
        self._server = server
        self.deaf = False
        self.dumb = False

    def start(self) -> None:
        threading.Thread(
            target=self._pump, args=(self._client, self._server, True), daemon=True
        ).start()
        threading.Thread(
            target=self._pump, args=(self._server, self._client, False), daemon=True
        ).start()

    def reset(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads
            with contextlib.suppress(OSError):
                end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        try:
            while data := source.recv(65536):
                if not (self.deaf if from_client else self.dumb):
                    sink.sendall(data)
        except OSError:
            pass
        if not (self.deaf or self.dumb):
            self.reset()

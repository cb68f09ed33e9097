"""Stand in for Kubernetes' API server: keep what a client makes, and say that its pods have succeeded.

It checks nothing and starts nothing. The tests check the objects by Kubernetes' schemas afterwards.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RecordingApi(ThreadingHTTPServer):
    """Keeps objects by their paths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def made(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind."""
        return [made for made in self.objects.values() if made["kind"] == kind]


class _Handler(BaseHTTPRequestHandler):
    server: RecordingApi

    def do_POST(self) -> None:
        made = self._body()
        self._keep(f"{self._path}/{made['metadata']['name']}", made)

    def do_PATCH(self) -> None:
        self._keep(self._path, self._body())

    def do_PUT(self) -> None:
        self._keep(self._path, self._body())

    def do_GET(self) -> None:
        found = self.server.objects.get(self._path)
        if found is None:
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "code": 404})
        else:
            ended = {"phase": "Succeeded"} if found["kind"] == "Pod" else {}
            self._answer(200, {**found, "status": ended})

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _keep(self, path: str, made: dict[str, Any]) -> None:
        self.server.objects[path] = made
        metadata = {**made["metadata"], "uid": f"uid-{len(self.server.objects)}"}
        self._answer(201, {**made, "metadata": metadata})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def recording_api() -> Iterator[RecordingApi]:
    api = RecordingApi()
    thread = threading.Thread(target=api.serve_forever)
    thread.start()
    try:
        yield api
    finally:
        api.shutdown()
        thread.join()
        api.server_close()

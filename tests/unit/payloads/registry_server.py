"""A small registry of schemas over real HTTP, as Confluent's documentation of its REST interface has it.

From that documentation: paths, methods, fields of requests and answers, the media type, `schemaType` left
out for Avro, and the error codes 40401, 40403, 409 and 42201. The check of compatibility is this file's
own: a new Avro record may only add fields with defaults, and lose none without.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Registrations:
    """Holds the schemas, and what the server shall do otherwise than answer.

    `authorization` is the header that requests must have. `status`, `body`, `pause_s` replace an answer.
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str]] = []
        self.authorization: str | None = None
        self.status: int | None = None
        self.body: bytes | None = None
        self.pause_s = 0.0
        self.url = ""

    def add(self, schema: str, kind: str | None = None, **more: Any) -> int:
        """Keep a schema of no subject. Return its id."""
        entry: dict[str, Any] = {"schema": schema, **more}
        if kind is not None:
            entry["schemaType"] = kind
        if entry not in self.schemas:
            self.schemas.append(entry)
        return 100 + self.schemas.index(entry)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        parts = path.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"] and method == "GET":
            index = int(parts[2]) - 100
            if not 0 <= index < len(self.schemas):
                return 404, {"error_code": 40403, "message": f"Schema {parts[2]} not found"}
            return 200, self.schemas[index]
        if parts[0] == "subjects" and method == "POST":
            known = self.subjects.get(parts[1])
            if len(parts) == 2:
                return self._lookup(parts[1], known, body)
            if parts[2:] == ["versions"]:
                return self._register(parts[1], known or [], body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _lookup(
        self, subject: str, known: list[int] | None, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if known is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        for version, schema_id in enumerate(known, 1):
            if self.schemas[schema_id - 100] == body:
                return 200, {"subject": subject, "id": schema_id, "version": version, **body}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _register(
        self, subject: str, known: list[int], body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if "schemaType" not in body:
            fields = json.loads(body["schema"])
            if not isinstance(fields, dict) or "type" not in fields:
                return 422, {"error_code": 42201, "message": "Invalid schema"}
            fault = self._fault(known, fields)
            if fault:
                return 409, {"error_code": 409, "message": f"incompatible: {fault}"}
        schema_id = self.add(body["schema"], body.get("schemaType"))
        self.subjects[subject] = [*known, *([] if schema_id in known else [schema_id])]
        return 200, {"id": schema_id}

    def _fault(self, known: list[int], new: dict[str, Any]) -> str:
        if not known:
            return ""
        old = json.loads(self.schemas[known[-1] - 100]["schema"])
        names = {field["name"] for field in old["fields"]}
        for field in new["fields"]:
            if field["name"] not in names and "default" not in field:
                return f"READER_FIELD_MISSING_DEFAULT_VALUE {field['name']}"
        return ""


@contextmanager
def registry() -> Iterator[Registrations]:
    """Run a registry on a free port of this machine."""
    registrations = Registrations()
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, *_args: Any) -> None:
            """Say nothing."""

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            registrations.asked.append((self.command, self.path))
            ended.wait(registrations.pause_s)
            wanted = registrations.authorization
            if wanted is not None and self.headers.get("Authorization") != wanted:
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, answer = registrations.answer(
                    self.command, self.path, json.loads(body or b"{}")
                )
            data = json.dumps(answer).encode()
            if registrations.status is not None:
                status = registrations.status
            if registrations.body is not None:
                data = registrations.body
            self.send_response(status)
            self.send_header("Content-Type", MEDIA_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registrations.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registrations
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def trickle(beginning: bytes) -> Iterator[str]:
    """Serve a registry that begins its answer, and then sends a byte from time to time. Yield its URL."""
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(beginning)
                while not ended.wait(0.02):
                    connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()

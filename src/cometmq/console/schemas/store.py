"""Keep the schemas by which operators have bodies decoded: Avro's in JSON, and `.proto` files.

They lie in `schemas.json` beside the audit log. A process of its own reads schemas and decodes bodies,
with bounds on its time and memory: both come from others, and a body of few bytes can declare lists
without an end.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess  # only this program, with fixed arguments
import sys
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.console.refusals import Refused
from cometmq.errors import IllegalArgumentError, UndecodableError
from cometmq.runtime.state_files.durable import PRIVATE_FILE, make_directories, write_atomically

MAX_SCHEMAS: Final = 200
MAX_SCHEMA: Final = 256 * 1024
MAX_SCHEMA_NAME: Final = 100
KINDS: Final = ("avro", "protobuf")
_DECODED_AT_ONCE: Final = 2
MAX_DECODINGS: Final = 16
_MAX_DRAFTS: Final = 20
# The process ends itself earlier, by its limit on processor time.
_DEADLINE_S: Final = 15.0
# The only variables that it gets of the environment, which may hold secrets of the cluster.
_ENVIRONMENT: Final = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
)


@dataclass(frozen=True, slots=True)
class Schema:
    """Is a schema with a name. It is proposed for messages of `topic`, if that is not empty.

    `message` is the type in a `.proto` file, and `compiled` its descriptors in Base64.
    """

    name: str
    kind: str
    text: str
    topic: str = ""
    message: str = ""
    compiled: str = ""


class Schemas:
    """Holds the schemas by name. For the loop's thread only."""

    def __init__(self, root: Path) -> None:
        self.path = root / "schemas.json"
        self._schemas: dict[str, Schema] = {}
        # Two writers at once would each lose the other's change.
        self._writing = asyncio.Lock()
        # The last refused schema of a session, so that nobody has to type it again.
        self._drafts: OrderedDict[str, Schema] = OrderedDict()
        # Threads of their own: slow work here must not hold up logins and the audit log.
        self._threads = ThreadPoolExecutor(_DECODED_AT_ONCE, "schemas")
        self._waiting = 0

    async def open(self) -> None:
        """Read the file. Raises OSError, for one that holds something else, too."""
        self._schemas = await asyncio.to_thread(self._read)

    def close(self) -> None:
        """Begin no further decoding."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def all(self) -> list[Schema]:
        """Return the schemas in the order of their names."""
        return sorted(self._schemas.values(), key=lambda schema: schema.name)

    def get(self, name: str) -> Schema | None:
        return self._schemas.get(name)

    def of_topic(self, topic: str) -> Schema | None:
        """Return the schema that is proposed for a topic."""
        return next((schema for schema in self.all() if schema.topic == topic), None)

    def keep_draft(self, token: str, schema: Schema) -> None:
        """Keep a session's refused schema; of all sessions the newest few are kept."""
        self._drafts[token] = schema
        while len(self._drafts) > _MAX_DRAFTS:
            self._drafts.popitem(last=False)

    def take_draft(self, token: str) -> Schema | None:
        """Return the last refused schema of a session, once."""
        return self._drafts.pop(token, None)

    async def put(self, schema: Schema) -> Schema:
        """Check a schema and keep it under its name. Raises UndecodableError, IllegalArgumentError."""
        if not schema.name or schema.name != schema.name.strip():
            raise IllegalArgumentError(Refused.SCHEMA_NAME(most=MAX_SCHEMA_NAME))
        if len(schema.name) > MAX_SCHEMA_NAME:
            raise IllegalArgumentError(
                Refused.SCHEMA_NAME_LONG(most=MAX_SCHEMA_NAME),
                limit="MAX_SCHEMA_NAME",
            )
        if schema.kind not in KINDS:
            raise IllegalArgumentError(Refused.SCHEMA_KIND(kind=schema.kind))
        if len(schema.text) > MAX_SCHEMA:
            raise IllegalArgumentError(
                Refused.SCHEMA_LONG(count=len(schema.text), most=MAX_SCHEMA),
                limit="MAX_SCHEMA",
            )
        if schema.name not in self._schemas and len(self._schemas) >= MAX_SCHEMAS:
            raise IllegalArgumentError(
                Refused.SCHEMAS(count=len(self._schemas), most=MAX_SCHEMAS),
                limit="MAX_SCHEMAS",
            )
        answer = await self._run({"do": "check", **asdict(schema)}, b"")
        checked = Schema(
            schema.name,
            schema.kind,
            schema.text,
            schema.topic,
            str(answer.get("message", schema.message)),
            str(answer.get("compiled", "")),
        )
        async with self._writing:
            await self._write({**self._schemas, schema.name: checked})
        return checked

    async def delete(self, name: str) -> None:
        """Forget a schema. Raises IllegalArgumentError if there is none of this name."""
        async with self._writing:
            if name not in self._schemas:
                raise IllegalArgumentError(Refused.NO_SCHEMA(name=name))
            await self._write({key: each for key, each in self._schemas.items() if key != name})

    async def decode(self, schema: Schema, body: bytes) -> tuple[str, str]:
        """Return what a body holds, as JSON, and a note if there is one. Raises UndecodableError."""
        answer = await self._run({"do": "decode", **asdict(schema)}, body)
        return str(answer["text"]), str(answer.get("note", ""))

    async def _run(self, order: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        if self._waiting >= MAX_DECODINGS:
            raise UndecodableError(
                Refused.DECODINGS(count=self._waiting, most=MAX_DECODINGS),
                limit="MAX_DECODINGS",
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, _in_process, order, body)
        finally:
            self._waiting -= 1
        if "error" in answer:
            raise UndecodableError(str(answer["error"]))
        return answer

    async def _write(self, schemas: dict[str, Schema]) -> None:
        await asyncio.to_thread(self._replace, list(schemas.values()))
        self._schemas = schemas

    def _replace(self, schemas: list[Schema]) -> None:
        make_directories(self.path.parent)
        data = json.dumps([asdict(each) for each in schemas], indent=1).encode()
        write_atomically(self.path, data, PRIVATE_FILE)

    def _read(self) -> dict[str, Schema]:
        if not self.path.exists():
            return {}
        try:
            return {each["name"]: Schema(**each) for each in json.loads(self.path.read_bytes())}
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(f"{self.path} does not hold schemas: {error}; move it away") from error


def _in_process(order: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    sent = json.dumps({**order, "body": base64.b64encode(body).decode()}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cometmq.console.schemas.decoding"],
            input=sent,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {"error": "decoding it takes too much time or memory; look at its bytes"}
    return answer

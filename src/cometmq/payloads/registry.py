"""Ask a registry of schemas, by the REST interface of Confluent's Schema Registry.

Apicurio serves the same interface under `/apis/ccompat/v7`, Karapace and Redpanda under their root.

GET  /schemas/ids/{id}                     {"schema": …, "schemaType": …}; without a type it is Avro's
POST /subjects/{subject}                   the id of a schema that the subject has
POST /subjects/{subject}/versions          the id of a schema that the subject has or gets

An error has `error_code` and `message`: 40401 no such subject, 40403 no such schema, 409 a schema that is
not compatible, 42201 one that is none. Source: "Schema Registry API Reference" in Confluent's documentation.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from cometmq.errors import IllegalArgumentError, SchemaRefusedError, SchemaRegistryError
from cometmq.model.durations import Duration, milliseconds
from cometmq.payloads.avro import MAX_SCHEMA_BYTES
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.http_exchange import exchange

T = TypeVar("T")

TIMEOUT_MS: Final = 5000
MAX_SCHEMAS: Final = 1000
# A schema is text in JSON: each of its quotes takes two bytes more.
MAX_ANSWER_BYTES: Final = 4 * MAX_SCHEMA_BYTES
# How long a client waits before it asks again for a schema that the registry does not have.
UNKNOWN_S: Final = 60.0
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404
_NO_SUBJECT: Final = 40401
_NO_SCHEMA: Final = 40403
_INCOMPATIBLE: Final = 409
_NO_VALID_SCHEMA: Final = (422, 42201)
_BUSY: Final = 429


class Schema(NamedTuple):
    """Holds a schema of a registry. `kind` is AVRO, JSON or PROTOBUF."""

    kind: str
    text: str
    has_references: bool = False


class Registry(Protocol):
    """Knows schemas by their ids. Each call raises SchemaRegistryError."""

    async def schema(self, schema_id: int) -> Schema | None:
        """Return a schema, or None if the registry has none of this id."""

    async def id_of(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema that the subject has."""

    async def register(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema, and add the schema to the subject if it is not there."""


class SchemaRegistry:
    """Asks a registry over HTTP, in threads, and keeps up to `max_schemas` answers.

    `url` is like `https://registry:8081` or `http://apicurio:8080/apis/ccompat/v7`. `user` and `password`
    are for HTTP's basic authentication, `token` is a bearer token. `timeout_ms` bounds a question. Redirects
    are not followed. For any thread and loop.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout_ms: Duration = TIMEOUT_MS,
        tls: ssl.SSLContext | None = None,
        max_schemas: int = MAX_SCHEMAS,
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            # The error may quote a part of a password that does not belong there.
            raise IllegalArgumentError(
                "the registry's url cannot be read: its host or its port is none; pass http://HOST:PORT or "
                "https://HOST:PORT, and user=… and password=… beside it"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise IllegalArgumentError(
                f"the registry's url has the scheme {parts.scheme!r} and the host {parts.hostname!r}; "
                "pass http://HOST:PORT or https://HOST:PORT, and user=… and password=… beside it"
            )
        if (user is None) != (password is None) or (user is not None and token is not None):
            raise IllegalArgumentError("pass user and password, or token, or none of them")
        self._timeout_s = milliseconds(timeout_ms) / 1000
        if not 0 < self._timeout_s <= 600 or max_schemas < 1:
            raise IllegalArgumentError(
                f"timeout_ms is {timeout_ms!r} and max_schemas {max_schemas!r}; they must be 1 to 600000 "
                "and 1 at least"
            )
        self._host = parts.hostname
        self._is_https = parts.scheme == "https"
        self._port = port or (443 if self._is_https else 80)
        self._path = parts.path.rstrip("/")
        self._tls = tls
        self._headers = {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE}
        if user is not None:
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        elif token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()
        self._max = max_schemas
        # One question at a time, so that many messages of a new schema ask once.
        self._asking = threading.Lock()
        self._clock = SYSTEM_CLOCK

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def schema(self, schema_id: int) -> Schema | None:
        """Return a schema, or None if the registry has none of this id. Raises SchemaRegistryError."""
        if self._unknown.get(schema_id, 0.0) > self._clock.monotonic():
            return None

        def ask() -> Schema | None:
            try:
                answer = self._ask("GET", f"/schemas/ids/{schema_id}", None)
            except SchemaRegistryError as error:
                if error.code not in (_NOT_FOUND, _NO_SCHEMA):
                    raise
                self._unknown[schema_id] = self._clock.monotonic() + UNKNOWN_S
                while len(self._unknown) > self._max:
                    self._unknown.popitem(last=False)
                return None
            return Schema(
                str(answer.get("schemaType") or "AVRO"),
                _field(answer, "schema", str, self.address),
                bool(answer.get("references")),
            )

        return await self._once(("schema", schema_id), ask)

    async def id_of(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema that the subject has. Raises SchemaRegistryError."""

        def ask() -> int:
            try:
                answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}", schema)
            except SchemaRegistryError as error:
                if error.code not in (_NOT_FOUND, _NO_SUBJECT, _NO_SCHEMA):
                    raise
                raise SchemaRegistryError(
                    f"the subject {subject} of the registry {self.address} does not have this schema "
                    f"({error.remark or error}); register it, or pass register=True",
                    retriable=False,
                    code=error.code,
                    address=self.address,
                ) from error
            return _field(answer, "id", int, self.address)

        return await self._once(("id", subject, schema), ask)

    async def register(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema, and add the schema to the subject if it is not there.

        Raises SchemaRefusedError if it is not compatible with those that the subject has.
        """

        def ask() -> int:
            try:
                answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", schema)
            except SchemaRegistryError as error:
                if error.code != _INCOMPATIBLE and error.code not in _NO_VALID_SCHEMA:
                    raise
                fault = "is not compatible" if error.code == _INCOMPATIBLE else "is refused"
                raise SchemaRefusedError(
                    f"the schema {fault} in subject {subject} of the registry {self.address}: "
                    f"{error.remark}",
                    retriable=False,
                    code=error.code,
                    address=self.address,
                ) from error
            return _field(answer, "id", int, self.address)

        return await self._once(("register", subject, schema), ask)

    async def _once(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Return a known answer, or ask in a thread while no other thread asks."""
        if key in self._known:
            known: T = self._known[key]
            return known

        def asking() -> T:
            if not self._asking.acquire(timeout=self._timeout_s):
                raise self._late()
            try:
                if key in self._known:
                    known: T = self._known[key]
                    return known
                answer = ask()
                if answer is not None:
                    self._known[key] = answer
                    while len(self._known) > self._max:
                        self._known.popitem(last=False)
                return answer
            finally:
                self._asking.release()

        try:
            # The thread ends later if the registry only sends a byte from time to time.
            async with asyncio.timeout(3 * self._timeout_s):
                return await asyncio.to_thread(asking)
        except TimeoutError as error:
            raise self._late() from error

    def _ask(self, method: str, path: str, schema: Schema | None) -> dict[str, Any]:
        """Exchange one question for its answer. Blocks. Raises SchemaRegistryError."""
        body = None
        if schema is not None:
            asked = {"schema": schema.text}
            if schema.kind != "AVRO":
                asked["schemaType"] = schema.kind
            body = json.dumps(asked).encode()
        try:
            status, data = exchange(
                self._host,
                self._port,
                method,
                self._path + path,
                body,
                self._headers,
                is_https=self._is_https,
                tls=self._tls,
                timeout_s=self._timeout_s,
                most_bytes=MAX_ANSWER_BYTES + 1,
            )
        except OSError as error:
            raise SchemaRegistryError(
                f"the registry {self.address} does not answer: {type(error).__name__}: {error}",
                retriable=True,
                address=self.address,
            ) from error
        if len(data) > MAX_ANSWER_BYTES:
            raise SchemaRegistryError(
                f"the registry {self.address} answers with more than {MAX_ANSWER_BYTES} bytes, the limit "
                "MAX_ANSWER_BYTES",
                retriable=False,
                address=self.address,
                limit="MAX_ANSWER_BYTES",
            )
        return self._answer(status, data)

    def _answer(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        known = answer if isinstance(answer, dict) else {}
        if status == 200 and known:
            return known
        code = known.get("error_code")
        remark = str(known.get("message", ""))[:1000]
        refused = {401: " (user and password, or token, are wrong or missing)", 403: " (forbidden)"}
        raise SchemaRegistryError(
            f"the registry {self.address} answers with HTTP status {status}{refused.get(status, '')}: "
            f"{remark or 'no JSON object of its own'}",
            retriable=status >= 500 or status == _BUSY,
            code=code if isinstance(code, int) else status,
            remark=remark,
            address=self.address,
        )

    def _late(self) -> SchemaRegistryError:
        return SchemaRegistryError(
            f"the registry {self.address} does not answer within {self._timeout_s * 1000:.0f} ms",
            retriable=True,
            address=self.address,
        )


def _field(answer: dict[str, Any], name: str, kind: type[T], address: str) -> T:
    value = answer.get(name)
    if not isinstance(value, kind):
        raise SchemaRegistryError(
            f"the answer of the registry {address} has {name}={value!r:.80}; it should be of type "
            f"{kind.__name__}",
            retriable=False,
            address=address,
        )
    return value

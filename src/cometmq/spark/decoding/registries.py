"""Take schemas of bodies from a registry: Confluent's, or one with its interface, such as Apicurio's.

The driver and the workers ask the registry. Workers get its address and the places of its secrets; each process
reads the secrets before its first request.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cometmq.errors import ConfigError, IllegalArgumentError, SchemaRegistryError
from cometmq.payloads.registry import Schema, SchemaRegistry
from cometmq.runtime.portal import LoopThread
from cometmq.spark.decoding.readers import BodySchema, Kind, reader_of
from cometmq.spark.secrets import Secret

_loop: Final = LoopThread("cometmq-schemas")
_starting: Final = threading.Lock()
# If the registry refuses the credentials, no message is judged: the messages wait for valid ones.
_NOT_LET_IN: Final = "401"
_KINDS: Final[dict[str, Kind]] = {"JSON": "JSON", "AVRO": "AVRO", "PROTOBUF": "PROTOBUF"}
# A process asks few registries.
_MOST_REGISTRIES: Final = 16


@dataclass(frozen=True)
class Registry:
    """Names a registry of schemas. It can be pickled, and its secrets are not in it.

    url: as `http://registry:8081`, or `http://apicurio:8080/apis/ccompat/v7`.
    user, and a password from a file or an environment variable, or a bearer token from one of them. The driver and
    all workers need the file or variable.
    message: the Protobuf message to decode, "" for the first message of its file.
    """

    url: str
    user: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    message: str = ""

    def __post_init__(self) -> None:
        for name in ("password", "token"):
            if (
                getattr(self, f"{name}_file") is not None
                and getattr(self, f"{name}_env") is not None
            ):
                raise IllegalArgumentError(f"give one of {name}_file and {name}_env, not both")

    def client(self) -> SchemaRegistry:
        """Return a new client. Raise ConfigError if the URL or secrets do not fit."""
        password = _secret("password", self.password_file, self.password_env)
        token = _secret("token", self.token_file, self.token_env)
        try:
            return SchemaRegistry(self.url, user=self.user, password=password, token=token)
        except IllegalArgumentError as error:
            # Without the URL, which may hold a password that does not belong there.
            raise ConfigError(f"registry: {error}") from error

    def schema(self, schema_id: int, kind: Kind | None = None) -> BodySchema | str:
        """Return the registry's schema with an id, or the reason why no body can be decoded by it. If `kind`
        is given, the schema must be of this kind.

        Raise SchemaRegistryError if the registry does not answer, or refuses the credentials.
        """
        try:
            return usable_schema(_client(self), schema_id, kind, self.message)
        except SchemaRegistryError:
            # The next attempt reads the secrets again, since they may have changed.
            _client.cache_clear()
            raise


def usable_schema(
    registry: SchemaRegistry, schema_id: int, kind: Kind | None, message: str
) -> BodySchema | str:
    """Return the schema with an id, or the reason why no body can be decoded by it; see `Registry.schema`."""
    try:
        found = _ask(registry, schema_id)
    except SchemaRegistryError as error:
        # Error codes of registries begin with the HTTP status. A schema that these credentials may not read
        # (403) is one like any other that nobody can decode: else a producer could stop the topic by its id.
        if error.retriable or str(error.code).startswith(_NOT_LET_IN):
            raise
        return str(error)
    if found is None:
        return f"the registry {registry.address} has no schema with this id"
    if kind is not None and found.kind != kind:
        return f"its kind is {found.kind}, not {kind}"
    if found.kind not in _KINDS:
        return f"its kind is {found.kind:.80}, which is none of {', '.join(_KINDS)}"
    if found.has_references:
        return "it refers to other schemas, which is not supported; copy them into it"
    schema = BodySchema(_KINDS[found.kind], found.text, message)
    try:
        reader_of(schema)
    except IllegalArgumentError as error:
        return str(error)
    return schema


def _ask(registry: SchemaRegistry, schema_id: int) -> Schema | None:
    """Ask a registry in a separate event loop, because the thread of a notebook already runs one.

    The time of a request is bounded, even if a registry sends its answer byte by byte.
    """
    with _starting:
        if not _loop.running:
            _loop.start()
    return _loop.call(registry.schema(schema_id))


@lru_cache(_MOST_REGISTRIES)
def _client(place: Registry) -> SchemaRegistry:
    return place.client()


def _secret(name: str, file: str | None, variable: str | None) -> str | None:
    if file is None and variable is None:
        return None
    return Secret(f"registry_{name}", file, variable).read()

"""Take schemas of bodies from a registry: Confluent's, or one with its interface, such as Apicurio's.

A registry is asked on the driver and in workers. Workers get its address and the places of its secrets; each
process reads a secret when it first asks.
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
# Refused credentials say nothing of a schema, so messages wait for others.
_LET_IN: Final = "401"
_KINDS: Final[dict[str, Kind]] = {"JSON": "JSON", "AVRO": "AVRO", "PROTOBUF": "PROTOBUF"}
# A process asks few registries.
_MOST_REGISTRIES: Final = 16


@dataclass(frozen=True)
class Registry:
    """Names a registry of schemas. It can be pickled, and its secrets are not in it.

    url: as `http://registry:8081`, or `http://apicurio:8080/apis/ccompat/v7`.
    user, and password by a file or an environment variable, or a bearer token by one of them: the driver and all
    workers need the file or variable.
    message: the Protobuf message that is decoded, "" for the first one of its file.
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
        """Return the registry's schema with an id, of this kind if one is given, or the reason for which no
        body can be decoded by it.

        Raise SchemaRegistryError if the registry does not answer, or only others.
        """
        try:
            return usable_schema(_client(self), schema_id, kind, self.message)
        except SchemaRegistryError:
            # The next attempt reads the secrets again: they may be others by then.
            _client.cache_clear()
            raise


def usable_schema(
    registry: SchemaRegistry, schema_id: int, kind: Kind | None, message: str
) -> BodySchema | str:
    """Return the schema with an id, or the reason for which no body can be decoded by it; see `Registry.schema`."""
    try:
        found = _ask(registry, schema_id)
    except SchemaRegistryError as error:
        # Error codes of registries begin with the HTTP status.
        if error.retriable or str(error.code).startswith(_LET_IN):
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
    """Ask a registry, in a loop of its own, because a notebook's thread runs one already.

    The time of a question is bounded: what a registry sends byte by byte goes on in another thread.
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

"""Find the schemas of bodies, in files or in a registry, by the table [decode] of pipeline.toml."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError, IllegalArgumentError, SchemaRegistryError
from cometmq.payloads.registry import Schema, SchemaRegistry
from cometmq.pipelines.configuration import Decode
from cometmq.runtime.portal import LoopThread
from cometmq.spark.decoding.batches import Wire
from cometmq.spark.decoding.readers import BodySchema, Kind, reader_of
from cometmq.spark.secrets import Secret

_loop: Final = LoopThread("cometmq-schemas")
_starting: Final = threading.Lock()
# Refused credentials say nothing of a schema, so messages wait for others.
_LET_IN: Final = "401"
_KINDS: Final[dict[str, Kind]] = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}


class DecodeRule:
    """The decoding of the topics that `key` of [decode] names.

    schema: the one in the file; None without a file. registry: the one that has the schemas; None without
    one. Raise ConfigError if the file cannot be read or holds no schema, and if the registry's URL or secrets
    do not fit.
    """

    def __init__(self, key: str, settings: Decode) -> None:
        self.key = key
        self.table = settings.table
        self._kind = _KINDS[settings.format]
        self._message = settings.message or ""
        self.registry = _registry_of(key, settings)
        self.wire: Wire = settings.wire or ("property" if self.registry else "plain")
        self.schema: BodySchema | None = None
        if settings.schema is not None:
            self.schema = self._in_file(Path(settings.schema))

    def registered(self, schema_id: int) -> BodySchema | str:
        """Return the registry's schema with an id, or the reason for which no body can be decoded by it.

        Raise SchemaRegistryError if the registry does not answer, or does not let this client in.
        """
        registry = self.registry
        assert registry is not None, "only rules with a registry ask it"
        try:
            found = _ask(registry, schema_id)
        except SchemaRegistryError as error:
            # Error codes of registries begin with the HTTP status.
            if error.retriable or str(error.code).startswith(_LET_IN):
                raise
            return str(error)
        if found is None:
            return f"the registry {registry.address} has no schema with this id"
        if found.kind != self._kind:
            return f"its kind is {found.kind}, not {self._kind}"
        if found.has_references:
            return "it refers to other schemas, which is not supported; copy them into it"
        schema = BodySchema(self._kind, found.text, self._message)
        try:
            reader_of(schema)
        except IllegalArgumentError as error:
            return str(error)
        return schema

    # Inside

    def _in_file(self, path: Path) -> BodySchema:
        where = f"[decode.{self.key}]: schema is {str(path)!r}"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"{where}, which cannot be read: {reason}") from error
        schema = BodySchema(self._kind, text, self._message)
        try:
            reader_of(schema)
        except IllegalArgumentError as error:
            raise ConfigError(f"{where}: {error}") from error
        return schema


def _ask(registry: SchemaRegistry, schema_id: int) -> Schema | None:
    """Ask a registry, in a loop of its own, because a notebook's thread runs one already.

    The time of a question is bounded: what a registry sends byte by byte goes on in another thread.
    """
    with _starting:
        if not _loop.running:
            _loop.start()
    return _loop.call(registry.schema(schema_id))


def _registry_of(key: str, settings: Decode) -> SchemaRegistry | None:
    if settings.registry is None:
        return None
    password = _secret("password", settings.registry_password_file, settings.registry_password_env)
    token = _secret("token", settings.registry_token_file, settings.registry_token_env)
    try:
        return SchemaRegistry(
            settings.registry, user=settings.registry_user, password=password, token=token
        )
    except IllegalArgumentError as error:
        raise ConfigError(f"[decode.{key}]: registry is {settings.registry!r}: {error}") from error


def _secret(name: str, file: str | None, variable: str | None) -> str | None:
    if file is None and variable is None:
        return None
    return Secret(f"registry_{name}", file, variable).read()

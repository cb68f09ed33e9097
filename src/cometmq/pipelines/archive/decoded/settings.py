"""Find the schemas of bodies, in files or in a registry, by the table [decode] of pipeline.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError, IllegalArgumentError
from cometmq.payloads.registry import SchemaRegistry
from cometmq.pipelines.configuration import Decode
from cometmq.spark.decoding.batches import Wire
from cometmq.spark.decoding.readers import BodySchema, Kind, reader_of
from cometmq.spark.decoding.registries import Registry, usable_schema

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

        Raise SchemaRegistryError if the registry does not answer, or refuses the credentials.
        """
        assert self.registry is not None, "only rules with a registry ask it"
        return usable_schema(self.registry, schema_id, self._kind, self._message)

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


def _registry_of(key: str, settings: Decode) -> SchemaRegistry | None:
    if settings.registry is None:
        return None
    try:
        return Registry(
            settings.registry,
            user=settings.registry_user,
            password_file=settings.registry_password_file,
            password_env=settings.registry_password_env,
            token_file=settings.registry_token_file,
            token_env=settings.registry_token_env,
        ).client()
    except (ConfigError, IllegalArgumentError) as error:
        raise ConfigError(f"[decode.{key}]: {error}") from error

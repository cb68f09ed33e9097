"""Read the schemas of the file's table [decode], by topic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError, IllegalArgumentError
from cometmq.pipelines.configuration import Decode
from cometmq.spark.decoding.batches import Wire
from cometmq.spark.decoding.readers import BodySchema, Kind, reader_of

_KINDS: Final[dict[str, Kind]] = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}


class DecodeRule:
    """The decoding of the topics that `key` of [decode] names.

    Raise ConfigError if the file of the schema cannot be read, or holds none.
    """

    def __init__(self, key: str, settings: Decode) -> None:
        self.key = key
        self.table = settings.table
        self.wire: Wire = settings.wire
        self.schema: BodySchema | None = None
        if settings.schema is None:
            return
        path = Path(settings.schema)
        where = f"[decode.{key}]: schema is {settings.schema!r}"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"{where}, which cannot be read: {reason}") from error
        schema = BodySchema(_KINDS[settings.format], text, settings.message or "")
        try:
            reader_of(schema)
        except IllegalArgumentError as error:
            raise ConfigError(f"{where}: {error}") from error
        self.schema = schema

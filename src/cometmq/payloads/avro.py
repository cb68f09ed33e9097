"""Encode values as Avro, with fastavro. Needs the extra `avro`.

fastavro reads with C code that neither counts items nor looks at the stack. A few bytes can declare an
array of 2^60 items that take no bytes. If a schema refers to itself, a body can be so deep that it
exhausts the stack and ends the process. So bodies of such schemas are walked first, by `AvroWalk`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeVar, overload
from uuid import UUID

import msgspec

from cometmq.errors import IllegalArgumentError
from cometmq.extras import needs
from cometmq.model.message import Message
from cometmq.payloads.avro_walk import AvroWalk
from cometmq.payloads.codec import Codec, Encoded

T = TypeVar("T")

MAX_SCHEMA_BYTES: Final = 256 * 1024
# Types that fastavro takes and returns for logical types.
_LOGICAL: Final = (bytes, datetime, date, time, Decimal, UUID)


class AvroSchema:
    """Holds a parsed schema. `text` is its JSON.

    Raises IllegalArgumentError for text that is no Avro schema.
    """

    def __init__(self, schema: str | Mapping[str, Any] | list[Any]) -> None:
        with needs("avro", "an Avro schema"):
            import fastavro

        self.text = schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True)
        if len(self.text.encode()) > MAX_SCHEMA_BYTES:
            raise IllegalArgumentError(
                f"the Avro schema has {len(self.text.encode())} bytes, the limit MAX_SCHEMA_BYTES is "
                f"{MAX_SCHEMA_BYTES}; split it",
                limit="MAX_SCHEMA_BYTES",
            )
        try:
            self.parsed: Any = fastavro.parse_schema(json.loads(self.text))
        # fastavro raises errors of many kinds for faults in a schema.
        except Exception as error:
            raise IllegalArgumentError(
                f"it is no Avro schema: {type(error).__name__}: {str(error)[:500]}"
            ) from error
        self.name = (
            str(self.parsed.get("name", "value")) if isinstance(self.parsed, dict) else "value"
        )
        walk = AvroWalk(self.parsed)
        self._walk = walk if walk.is_needed else None

    def write(self, value: object) -> bytes:
        """Return a value in Avro. Raises ValueError or TypeError that names the field."""
        import fastavro
        import fastavro.validation

        try:
            fastavro.validation.validate(value, self.parsed, raise_errors=True)
        except fastavro.validation.ValidationError as error:
            raise ValueError("; ".join(str(each) for each in error.errors[:5])) from None
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self.parsed, value, strict_allow_default=True)
        return out.getvalue()

    def read(self, body: bytes, reader: AvroSchema | None = None) -> Any:
        """Return the value that a body holds, as the schema `reader` sees it.

        Raises ValueError if bytes are left, and fastavro's errors for bytes that do not fit.
        """
        import fastavro

        if self._walk is not None:
            self._walk.check(body)
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(
            stream, self.parsed, None if reader is None or reader is self else reader.parsed
        )
        left = len(body) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left after the value")
        return value


class Avro(Codec[T]):
    """Encodes values by an Avro schema, given as text or as the JSON's dict.

    Values are dicts, as fastavro has them. With `type_`, a dataclass, Struct or TypedDict, they are of that
    type. A body has no header; `Registered` adds the schema's id.
    """

    kind = "AVRO"

    @overload
    def __init__(self: Avro[Any], schema: str | Mapping[str, Any]) -> None: ...

    @overload
    def __init__(self, schema: str | Mapping[str, Any], type_: type[T]) -> None: ...

    def __init__(self, schema: str | Mapping[str, Any], type_: type[T] | None = None) -> None:
        self._schema = AvroSchema(schema)
        self._type: Any = type_

    def encode(self, _topic: str, value: T) -> Encoded:
        plain: object = value
        if self._type is not None:
            # Values of logical types keep the types that fastavro has for them.
            plain = msgspec.to_builtins(value, builtin_types=_LOGICAL)
        return Encoded(self._schema.write(plain))

    def decode(self, message: Message) -> T:
        return self.decode_body(message.body, self._schema)

    def decode_body(self, body: bytes, written: AvroSchema) -> T:
        """Return the value of a body that the schema `writer` wrote, as this codec's schema sees it."""
        value: Any = written.read(body, self._schema)
        if self._type is None:
            made: T = value
            return made
        typed: T = msgspec.convert(value, self._type, builtin_types=_LOGICAL)
        return typed

    def accepts(self, value: object) -> bool:
        if not isinstance(self._type, type):
            return isinstance(value, dict)
        return isinstance(value, self._type)

    @property
    def name(self) -> str:
        return self._schema.name if self._type is None else str(self._type.__name__)

    @property
    def schema(self) -> str:
        return self._schema.text

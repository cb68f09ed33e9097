"""Encode values as JSON: msgspec's Structs, dataclasses, TypedDicts and built-in types; pydantic's models."""

from __future__ import annotations

from typing import Any, Final, TypeVar, get_origin, is_typeddict

import msgspec

from cometmq.model.message import Message
from cometmq.payloads.codec import Codec, Encoded, check_type

T = TypeVar("T")

# The dialect that msgspec and pydantic write.
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
# The methods of pydantic's models. A program that defines one has pydantic; nothing here imports it.
_PYDANTIC: Final = ("model_validate_json", "model_dump_json", "model_json_schema")


class Json(Codec[T]):
    """Encodes values of `type_` as JSON: a msgspec Struct, dataclass, TypedDict, list[…], a union of tagged
    Structs, whatever msgspec knows, or a pydantic model.

    A value is checked before it is sent, also in its fields.
    """

    kind = "JSON"

    def __init__(self, type_: type[T]) -> None:
        self._type = type_
        self._class = _class_of(type_)
        self._model: Any = type_ if all(hasattr(type_, name) for name in _PYDANTIC) else None
        self._decoder: msgspec.json.Decoder[T] | None = None
        if self._model is None:
            self._decoder = msgspec.json.Decoder(type_)
        self._encoder = msgspec.json.Encoder()

    def encode(self, _topic: str, value: T) -> Encoded:
        check_type(self._class, value)
        if self._model is not None:
            model: Any = value
            body: bytes = model.model_dump_json(by_alias=True).encode()
        else:
            body = self._encoder.encode(value)
        # Neither library looks at the types of fields that were set; a value that its reader would refuse
        # must not be sent.
        self._decoded(body)
        return Encoded(body)

    def decode(self, message: Message) -> T:
        return self._decoded(message.body)

    def accepts(self, value: object) -> bool:
        return self._class is None or isinstance(value, self._class)

    @property
    def name(self) -> str:
        return getattr(self._type, "__name__", str(self._type))

    @property
    def schema(self) -> str:
        """The JSON Schema of the type."""
        if self._model is not None:
            schema: dict[str, Any] = self._model.model_json_schema()
        else:
            schema = msgspec.json.schema(self._type)
        # Apicurio takes a schema for JSON's by this line only, whatever type the request names.
        return msgspec.json.encode({"$schema": _DIALECT, **schema}, order="sorted").decode()

    def _decoded(self, body: bytes) -> T:
        if self._decoder is not None:
            return self._decoder.decode(body)
        value: T = self._model.model_validate_json(body)
        return value


def _class_of(type_: Any) -> type | None:
    """Return the class that values must have, or None: unions, generics and TypedDicts have no such class."""
    if isinstance(type_, type) and get_origin(type_) is None and not is_typeddict(type_):
        return type_
    return None

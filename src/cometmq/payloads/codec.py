"""Turn values into bodies of messages and back: the class of all codecs, and two codecs without a library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import IllegalArgumentError
from cometmq.model.message import Message

T = TypeVar("T")

# The property in which `OneOf` names the codec of a body.
PAYLOAD_TYPE: Final = "PAYLOAD_TYPE"
# Fetches something that a codec has to have first.
Fetch = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Holds a body, and the properties that go with it."""

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


class Codec(ABC, Generic[T]):
    """Encodes values of one type, and decodes bodies that hold them.

    `encode` and `decode` compute only: they may run on a loop or in any thread, and raise any exception
    for a value or body that does not fit. `missing_to_encode` and `missing_to_decode` are for codecs that
    have to fetch something first, a schema for instance.
    """

    @abstractmethod
    def encode(self, topic: str, value: T) -> Encoded: ...

    @abstractmethod
    def decode(self, message: Message) -> T: ...

    def missing_to_encode(self, _topic: str) -> Fetch | None:
        """Return the function that fetches a thing for `encode`, or None if nothing is missing."""
        return None

    def missing_to_decode(self, _message: Message) -> Fetch | None:
        """Return the function that fetches a thing for `decode`, or None if nothing is missing."""
        return None

    def accepts(self, _value: object) -> bool:
        """Say whether a value is of this codec's type; `OneOf` asks."""
        return True

    @property
    def name(self) -> str:
        """The name of the type, for errors and for the property that `OneOf` sends."""
        return "value"

    def value(self, message: Message) -> T:
        """Return the value of a message that this codec decodes: `message.value` with its static type."""
        value: T = message.value
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class Custom(Codec[T]):
    """Encodes and decodes by two functions: `encode` takes a value, `decode` a body.

    `type_` is the class of the values, if they have one.
    """

    def __init__(
        self,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        type_: type[T] | None = None,
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._type = type_

    def encode(self, _topic: str, value: T) -> Encoded:
        check_type(self._type, value)
        return Encoded(self._encode(value))

    def decode(self, message: Message) -> T:
        return self._decode(message.body)

    def accepts(self, value: object) -> bool:
        return self._type is None or isinstance(value, self._type)

    @property
    def name(self) -> str:
        return "value" if self._type is None else self._type.__name__


class OneOf(Codec[Any]):
    """Encodes values of several types in one topic: each by the first codec that accepts it.

    The property PAYLOAD_TYPE names the type. The first codec decodes a body without this property.
    """

    def __init__(self, *codecs: Codec[Any]) -> None:
        self._by_name = {codec.name: codec for codec in codecs}
        self._codecs = codecs
        if len(self._by_name) < max(len(codecs), 1):
            names = ", ".join(codec.name for codec in codecs) or "none"
            raise IllegalArgumentError(
                f"OneOf has the codecs {names}; it needs one at least, each for a type of another name"
            )

    def encode(self, topic: str, value: Any) -> Encoded:
        for codec in self._codecs:
            if codec.accepts(value):
                encoded = codec.encode(topic, value)
                return Encoded(encoded.body, {**encoded.properties, PAYLOAD_TYPE: codec.name})
        raise TypeError(f"Expected one of {self.name}, got {type(value).__name__}")

    def decode(self, message: Message) -> Any:
        return self._of(message).decode(message)

    def missing_to_encode(self, topic: str) -> Fetch | None:
        return next(filter(None, (each.missing_to_encode(topic) for each in self._codecs)), None)

    def missing_to_decode(self, message: Message) -> Fetch | None:
        return self._of(message).missing_to_decode(message)

    def accepts(self, value: object) -> bool:
        return any(codec.accepts(value) for codec in self._codecs)

    @property
    def name(self) -> str:
        return ", ".join(self._by_name)

    def _of(self, message: Message) -> Codec[Any]:
        name = message.properties.get(PAYLOAD_TYPE)
        if name is None:
            return self._codecs[0]
        codec = self._by_name.get(name)
        if codec is None:
            raise LookupError(f"{PAYLOAD_TYPE} is {name[:80]!r}, none of {self.name}")
        return codec


def check_type(type_: type | None, value: object) -> None:
    """Raise TypeError unless a value is of this class. None is for values without a class."""
    if type_ is not None and not isinstance(value, type_):
        raise TypeError(f"Expected {type_.__name__}, got {type(value).__name__}")

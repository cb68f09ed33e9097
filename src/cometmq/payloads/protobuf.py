"""Encode messages of generated Protobuf classes. Needs the extra `protobuf`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, TypeVar

from cometmq.model.message import Message
from cometmq.payloads.codec import Codec, Encoded, check_type

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

T = TypeVar("T", bound="ProtobufMessage")


class Protobuf(Codec[T]):
    """Encodes messages of a class that `protoc` generated.

    Google's parser bounds the depth of a body (100), and refuses one that is cut.
    """

    kind = "PROTOBUF"

    def __init__(self, type_: type[T]) -> None:
        self._type = type_

    def encode(self, _topic: str, value: T) -> Encoded:
        check_type(self._type, value)
        return Encoded(value.SerializeToString())

    def decode(self, message: Message) -> T:
        return self.decode_body(message.body)

    def decode_body(self, body: bytes) -> T:
        value = self._type()
        value.ParseFromString(body)
        return value

    def accepts(self, value: object) -> bool:
        return isinstance(value, self._type)

    @property
    def name(self) -> str:
        return self._type.DESCRIPTOR.full_name

    @property
    def schema(self) -> str:
        """The descriptor of the class's `.proto` file in Base64, the form in which registries take it."""
        return base64.b64encode(self._type.DESCRIPTOR.file.serialized_pb).decode()

    @property
    def message_path(self) -> list[int]:
        """The indexes that lead from the file's messages to this one."""
        path: list[int] = []
        descriptor = self._type.DESCRIPTOR
        while descriptor.containing_type is not None:
            path.insert(0, descriptor.containing_type.nested_types.index(descriptor))
            descriptor = descriptor.containing_type
        names = list(descriptor.file.message_types_by_name)
        return [names.index(descriptor.name), *path]

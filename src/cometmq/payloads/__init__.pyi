from .avro import Avro
from .codec import Codec, Custom, Encoded, OneOf
from .codecs import Codecs
from .json import Json
from .protobuf import Protobuf
from .registered import Registered
from .registry import Registry, Schema, SchemaRegistry

__all__ = [
    "Avro",
    "Codec",
    "Codecs",
    "Custom",
    "Encoded",
    "Json",
    "OneOf",
    "Protobuf",
    "Registered",
    "Registry",
    "Schema",
    "SchemaRegistry",
]

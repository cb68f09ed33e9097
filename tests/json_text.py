"""Write and read JSON as a broker does."""

from __future__ import annotations

from typing import Any, TypeVar

from cometmq.protocol.fastjson.dialect import (
    MAX_DIALECT_REQUEST_LENGTH,
    decode_body,
    pretty_pieces,
)

T = TypeVar("T")


def pretty(value: Any) -> str:
    """Return the text of a state file in one piece."""
    return "".join(pretty_pieces(value))


def decode_request(data: bytes, type_: type[T]) -> T:
    """Decode what any client may send to a server: a body in the dialect must be short."""
    return decode_body(data, type_, max_dialect_length=MAX_DIALECT_REQUEST_LENGTH)

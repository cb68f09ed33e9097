"""Encode and decode header records in `extFields`, where every value is text (Java:
CommandCustomHeader).

A header class is a `msgspec.Struct` deriving from `Header`. Decoding turns the texts into the typed
fields and says which field does not fit; encoding leaves out fields that are None.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from cometmq.errors import ProtocolError
from cometmq.model.java.ranges import Int32, Int64

__all__ = ["Header", "HeaderT", "Int32", "Int64", "NoHeader", "header_from_ext", "header_to_ext"]


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all headers. Names on the wire are the fields' names in camel case.

    Texts and numbers form no reference cycles, so the garbage collector need not track headers.
    """


class NoHeader(Header):
    """A request or response without header fields of its own."""


HeaderT = TypeVar("HeaderT", bound=Header)


def header_from_ext(ext: dict[str, Any], header_type: type[HeaderT]) -> HeaderT:
    """Return the typed header in `ext`; unknown entries are ignored.

    Raise ProtocolError, which names the field that is missing or does not fit.
    """
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{header_type.__name__}: {error}") from error


def header_to_ext(header: Header) -> dict[str, str]:
    """Return the texts of a header's fields by wire name, without fields that are None."""
    ext: dict[str, str] = {}
    for name, wire_name in _wire_names(type(header)):
        value = getattr(header, name)
        if isinstance(value, str):
            ext[wire_name] = value
        elif isinstance(value, bool):
            ext[wire_name] = "true" if value else "false"
        elif value is not None:
            ext[wire_name] = str(value)
    return ext


@cache
def _wire_names(header_type: type[Header]) -> list[tuple[str, str]]:
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(header_type)]

"""How header records travel in `extFields`: every value as text (Java: CommandCustomHeader).

A header class is a `msgspec.Struct` deriving from `Header`. Decoding turns the texts into the typed
fields and says which field does not fit; encoding leaves out fields that are None.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from cometmq.errors import ProtocolError

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all headers. Names on the wire are the fields' names in camel case."""


class NoHeader(Header):
    """A request or response without header fields of its own."""


HeaderT = TypeVar("HeaderT", bound=Header)


def header_from_ext(ext: dict[str, Any], header_type: type[HeaderT]) -> HeaderT:
    """The typed header in `ext`; unknown entries are ignored.

    Raises ProtocolError naming the field that is missing or does not fit.
    """
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{header_type.__name__}: {error}") from error


def header_to_ext(header: Header) -> dict[str, str]:
    """The texts of a header's fields by wire name, None left out."""
    ext = {}
    for name, wire_name in zip(
        header.__struct_fields__, header.__struct_encode_fields__, strict=True
    ):
        value = getattr(header, name)
        if value is None:
            continue
        if value is True:
            ext[wire_name] = "true"
        elif value is False:
            ext[wire_name] = "false"
        else:
            ext[wire_name] = str(value)
    return ext

"""Make Hypothesis strategies for header records of any class."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from cometmq.protocol import headers
from cometmq.protocol.header import Header, Int32, Int64

# Text as it can travel: any of Unicode but lone surrogates.
texts = st.text(st.characters(codec="utf-8"), max_size=30)

_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    types.NoneType: st.none(),
}


def header_types() -> list[type[Header]]:
    """Return every header class that `cometmq.protocol.headers` defines."""
    return [
        value
        for value in vars(headers).values()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    ]


def header_records(header_type: type[Header]) -> st.SearchStrategy[Header]:
    """Return records of that class with arbitrary values in range."""
    hints = typing.get_type_hints(header_type, include_extras=True)
    return st.builds(
        header_type,
        **{field.name: _values(hints[field.name]) for field in msgspec.structs.fields(header_type)},
    )


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return st.one_of([_values(part) for part in typing.get_args(hint)])
    return _BY_TYPE[hint]

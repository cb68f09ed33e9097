"""Large tables, cut out of their JSON."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.json_cuts import cut_tables

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='a"\\{}[],:é'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\{}[],:'), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text('ab"\\{}[],:'), json_values), json_values, st.integers(2, 9))
def test_parts_and_rest_are_the_whole(table: dict[str, Any], other: object, chunk: int) -> None:
    """Texts full of signs and escapes, cut wherever a chunk ends."""
    value = {"x": other, "in": {"y": other, "table": table, "z": other}}
    data = msgspec.json.encode(value)
    cut = finish(cut_tables(data, ("table",), level=3, chunk_bytes=chunk))
    decoded = msgspec.json.decode(cut.rest)
    parts = cut.parts(decoded["in"]["table"])
    if parts is not None:
        merged: dict[str, Any] = {}
        for part in parts:
            merged |= msgspec.json.decode(part)
        decoded["in"]["table"] = merged
    assert decoded == value
    assert parts is not None or len(msgspec.json.encode(table)) <= 2 * chunk

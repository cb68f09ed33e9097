from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.java import hashing
from cometmq.model.java.hashing import java_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),  # the text known for Java's smallest hash
        ("hello world", 1794106052),
        ("中", 20013),
        ("😀", 31 * 0xD83D + 0xDE00),  # two units beyond the first plane
        ("\ud83d", 0xD83D),  # half a pair, as a Java text may hold it
    ],
)
def test_known_values(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text(max_size=12), st.text(max_size=12))
def test_the_hash_of_a_longer_text_follows_from_its_parts(first: str, second: str) -> None:
    units = len(second.encode("utf-16-le", "surrogatepass")) // 2
    expected = (java_hash(first) * 31**units + java_hash(second)) % 2**32
    value = java_hash(first + second)
    # Two halves of a pair make one character when they meet, but stay the same two units.
    assert value % 2**32 == expected
    assert -(2**31) <= value < 2**31


def test_a_tag_of_a_megabyte_is_not_kept() -> None:
    """Any client may pull by one, and 4,096 of them were."""
    before = hashing.cached_count()
    for number in range(3):
        assert java_hash(f"{number}" + "x" * 300) == java_hash(f"{number}" + "x" * 300)
    assert hashing.cached_count() == before
    assert java_hash("x" * 300) == hashing.hash_once("x" * 300)

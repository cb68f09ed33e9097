from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.errors import IllegalArgumentError
from cometmq.protocol.messages.properties import (
    decode_properties,
    encode_properties,
    find_batch_id,
    find_property,
)

words = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12
)
# Few letters, so that names repeat and separators stand in every odd place.
strings = st.text("abK\x01\x02", max_size=24)


@given(st.dictionaries(words, words, max_size=6))
def test_properties_come_back(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    # Releases 4.9.1 to 5.1.4 leave the last separator out.
    assert decode_properties(text.removesuffix("\x02")) == properties


def test_layout() -> None:
    assert encode_properties({"TAGS": "A", "KEYS": "k1 k2"}) == "TAGS\x01A\x02KEYS\x01k1 k2\x02"
    assert encode_properties({}) == ""


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("\x02\x02", {}),
        ("a\x01\x02", {}),  # no value
        ("\x01v\x02", {}),  # no name
        ("name\x02", {}),  # no separator
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
        ("a\x011\x02a\x01\x02", {"a": "1"}),
    ],
)
def test_odd_strings_are_read_as_java_reads_them(text: str, properties: dict[str, str]) -> None:
    assert decode_properties(text) == properties


@pytest.mark.parametrize(
    ("text", "own", "batch"),
    [
        ("UNIQ_KEY\x01A\x02WAIT\x01true\x02UNIQ_KEY\x01B\x02WAIT\x01true\x02", "A", "B"),
        ("k\x01v\x02UNIQ_KEY\x01A\x02UNIQ_KEY\x01B", "A", "B"),
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02UNIQ_KEY\x01C", "A", "C"),
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01A\x02", "A", None),
        ("UNIQ_KEY\x01\x02UNIQ_KEY\x01B\x02", "B", None),  # no value
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01\x02", "A", None),
        ("UNIQ_KEY\x01\x02UNIQ_KEY\x01\x02", None, None),
        ("UNIQ_KEY\x01A\x02XUNIQ_KEY\x01B\x02", "A", None),
        ("XUNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02", "B", None),
        ("k\x01UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02", "B", None),  # within a value
        ("k\x01v\x02", None, None),
    ],
)
def test_a_message_of_a_java_batch_keeps_its_own_id(
    text: str, own: str | None, batch: str | None
) -> None:
    """Brokers of 4.8 to 5.3.3 append the batch's UNIQ_KEY, and so all messages had one id."""
    assert decode_properties(text).get("UNIQ_KEY") == own
    assert find_property(text, "UNIQ_KEY") == own
    assert find_batch_id(text) == batch


id_entries = st.lists(st.sampled_from(["UNIQ_KEY\x01", "\x02", "a", "\x01", "k\x01v"]), max_size=9)


@given(id_entries.map("".join))
def test_finding_the_unique_id_agrees_with_decoding_all(text: str) -> None:
    own = decode_properties(text).get("UNIQ_KEY")
    assert find_property(text, "UNIQ_KEY") == own
    assert find_batch_id(text) != own or own is None


@given(strings, st.sampled_from(["a", "b", "K", "ab", "Ka"]))
@example("a\x011\x02a\x01\x02", "a")
@example("ba\x011", "a")
@example("x\x02a\x01b", "a")
def test_find_property_agrees_with_decoding_all(text: str, name: str) -> None:
    assert find_property(text, name) == decode_properties(text).get(name)


@given(st.dictionaries(words, words, max_size=6))
def test_find_property_finds_each(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    for name, value in properties.items():
        assert find_property(text, name) == value


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
@pytest.mark.parametrize("place", ["name", "value"])
def test_separators_inside_are_refused_by_name(place: str, separator: str) -> None:
    odd = f"od{separator}d"
    properties = {odd: "v"} if place == "name" else {"n": odd}
    with pytest.raises(IllegalArgumentError, match="0x01 and 0x02"):
        encode_properties({"TAGS": "A", **properties})

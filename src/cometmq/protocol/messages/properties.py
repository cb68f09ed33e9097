"""Encode and decode the properties string: `name 0x01 value 0x02` repeated (Java: MessageDecoder).

The Java release decides whether the last 0x02 is written; readers accept both. Entries that are
shorter than three characters or lack the 0x01 are skipped, as in Java.

If a name occurs twice, its last value counts, as in Java, but of UNIQ_KEY the first one does: Java
brokers of 4.8 to 5.3.3 append the properties of a batch, and so its UNIQ_KEY, to those of each of
its messages (docs/internals/message-ids.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.properties import UNIQ_CLIENT_MESSAGE_ID

PROPERTY_SEPARATOR: Final = "\x02"
MAX_PROPERTIES_LENGTH: Final = 32767
MAX_PROPERTIES: Final = 2_048
# Properties of fewer characters than this are not too many: each takes a name, an empty value and
# two separators at least.
MANY_PROPERTIES_LENGTH: Final = 3 * MAX_PROPERTIES
_UNIQUE_ID: Final = f"{UNIQ_CLIENT_MESSAGE_ID}\x01"
_UNIQUE_ENTRY: Final = f"\x02{_UNIQUE_ID}"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the properties string. Raise IllegalArgumentError if a name or value holds a
    separator.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    # Each entry adds one of each separator; more of them means that a name or a value holds one.
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise _separator_error(properties)
    return text


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties in the string; if a name occurs twice, its last value counts, but of
    UNIQ_KEY the first.
    """
    properties = {}
    for entry in text.split("\x02"):
        if len(entry) >= 3:
            name, separator, value = entry.partition("\x01")
            if separator and name and value:
                properties[name] = value
    if text.count(_UNIQUE_ID) > 1:
        unique_ids = _unique_ids(text)
        if unique_ids:
            properties[UNIQ_CLIENT_MESSAGE_ID] = unique_ids[0]
    return properties


def find_batch_id(text: str) -> str | None:
    """Return the unique id that a Java broker appended for the batch in which the message came, or
    None without one.

    Java's consumers take it for the id of each message of the batch.
    """
    if text.count(_UNIQUE_ID) < 2:
        return None
    unique_ids = _unique_ids(text)
    return unique_ids[-1] if unique_ids and unique_ids[-1] != unique_ids[0] else None


def _unique_ids(text: str) -> list[str]:
    length = len(_UNIQUE_ID)
    return [
        entry[length:]
        for entry in text.split("\x02")
        if len(entry) > length and entry.startswith(_UNIQUE_ID)
    ]


def find_property(text: str, name: str) -> str | None:
    """Return one value without decoding the others; for hot paths that need one or two values."""
    return property_finder(name)(text)


@functools.cache
def property_finder(name: str) -> Callable[[str], str | None]:
    """Return a function that finds the value of one name, with the preparation done once."""
    if name == UNIQ_CLIENT_MESSAGE_ID:
        return _find_unique_id
    marker = f"\x02{name}\x01"
    first_entry = marker[1:]
    length = len(marker)

    def find(text: str) -> str | None:
        at = text.rfind(marker)
        if at < 0 and not text.startswith(first_entry):
            return None
        # The first entry has no separator before it, so the search for it begins as if at -1.
        start = at + length
        end = text.find("\x02", start)
        value = text[start:] if end < 0 else text[start:end]
        # An entry without a value does not count, but an earlier one of the same name may.
        return value or decode_properties(text).get(name)

    return find


def _find_unique_id(text: str) -> str | None:
    """Return the first UNIQ_KEY that has a value."""
    # Clients and brokers write it first, or behind few others.
    if text.startswith(_UNIQUE_ID):
        start = len(_UNIQUE_ID)
    else:
        at = text.find(_UNIQUE_ENTRY)
        if at < 0:
            return None
        start = at + len(_UNIQUE_ENTRY)
    end = text.find("\x02", start)
    value = text[start:] if end < 0 else text[start:end]
    # An entry without a value does not count, but a later one may.
    return value or next(iter(_unique_ids(text)), None)


def _separator_error(properties: Mapping[str, str]) -> IllegalArgumentError:
    for name, value in properties.items():
        for text in (name, value):
            if "\x01" in text or "\x02" in text:
                return IllegalArgumentError(
                    f"property {name!r}: names and values may not contain the characters "
                    f"0x01 and 0x02, got {text!r}"
                )
    raise AssertionError("a separator was counted but not found")

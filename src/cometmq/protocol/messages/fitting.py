"""Shorten the properties of a message that is stored again and gets additional ones.

A sender may use all of MAX_PROPERTIES_LENGTH. A retry, a dead letter or a check adds a few hundred
bytes: the topic and the queue that the message came from, and the number of deliveries. Properties
that brokers add for traces and tools are dropped first, since no consumer needs them.
"""

from __future__ import annotations

from typing import Final

from cometmq.model import properties as p
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH

# Names the properties that a dead letter lacks because there was no room for them.
LEFT_OUT: Final = "LEFT_OUT_PROPERTIES"
# Bytes of the names in LEFT_OUT; further names are only counted.
_NAMES_LENGTH: Final = 300
_SPARE: Final = (
    p.FAILURE_TEXT,
    p.FAILURE_MEMBER,
    p.FAILURE_TYPE,
    p.WAIT_STORE_MSG_OK,
    p.TRACE_SWITCH,
    p.MSG_REGION,
    p.CLUSTER,
    p.ORIGIN_MESSAGE_ID,
)


def encoded_length(properties: dict[str, str]) -> int:
    """Return the length of the properties as `encode_properties` writes them."""
    return sum(map(_length, properties.items()))


def drop_spare(properties: dict[str, str], room: int = MAX_PROPERTIES_LENGTH) -> bool:
    """Leave out properties that nobody needs until the rest takes at most `room` bytes; say whether
    it fits.
    """
    length = encoded_length(properties)
    for name in _SPARE:
        if length <= room:
            break
        if name in properties:
            length -= _length((name, properties.pop(name)))
    return length <= room


def cut(properties: dict[str, str], room: int = MAX_PROPERTIES_LENGTH) -> list[str]:
    """Leave out the longest properties, too, until they fit, and name them in LEFT_OUT.

    Return their names. The sender's own properties go first, then keys and tags, then RocketMQ's, which
    are short unless a sender has written them.
    """
    if drop_spare(properties, room):
        return []
    room -= len(LEFT_OUT) + _NAMES_LENGTH
    length = encoded_length(properties)
    dropped: list[str] = []
    by_length = sorted(properties.items(), key=lambda item: (_rank(item[0]), -_length(item)))
    for item in by_length:
        if length <= room:
            break
        length -= _length(item)
        del properties[item[0]]
        dropped.append(item[0])
    properties[LEFT_OUT] = _named(dropped)
    return dropped


def _rank(name: str) -> int:
    if name == p.RETRY_TOPIC:
        return 3
    if name in (p.KEYS, p.TAGS):
        return 1
    return 2 if name in p.RESERVED or name in p.OF_ONE_SENDING else 0


def _named(names: list[str]) -> str:
    text = ",".join(names)
    if len(text.encode()) <= _NAMES_LENGTH - 2:
        return text
    start = text.encode()[: _NAMES_LENGTH - 60].decode("utf-8", "ignore")
    return f"{start}... ({len(names)} in all)"


def _length(item: tuple[str, str]) -> int:
    name, value = item
    text = name + value
    return (len(text) if text.isascii() else len(text.encode())) + 2

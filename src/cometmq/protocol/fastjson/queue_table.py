"""Encode and decode JSON maps whose keys are message queues (Java: Map<MessageQueue, …> through
fastjson).

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:7}}

The bean is the key, without quotes: RocketMQ 5.4 and later (fastjson2) read no other form, and
older releases also write this one (checked with the decoders of 4.9.8, 5.3.3 and 5.5.0;
docs/internals/requests.md). Until 0.2.0 CometMQ wrote the bean as a quoted text. This module reads
both forms.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Final, TypeVar

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.cluster import MessageQueueBean
from cometmq.protocol.fastjson.dialect import decode_body, encode_body

T = TypeVar("T")

# A key as Java and we write it. In a text its quotes would be escaped, so it matches keys only.
_BARE_KEY: Final = re.compile(
    rb'\{"brokerName":"([^"\\]*)","queueId":(-?\d+),"topic":"([^"\\]*)"\}:'
)
_TEXT_KEY: Final = rb'"{\\"brokerName\\":\\"\1\\",\\"queueId\\":\2,\\"topic\\":\\"\3\\"}":'


def queue_table(table: Mapping[MessageQueue, T]) -> dict[str, T]:
    """Return the map with the JSON of each queue as its key, sorted by queue."""
    return {
        queue_key(queue).decode(): value
        for queue, value in sorted(table.items(), key=lambda item: item[0])
    }


def queue_key(queue: MessageQueue) -> bytes:
    """Return a queue as the key of such a map."""
    return encode_body(MessageQueueBean.of(queue))


def encode_keyed(table: Mapping[str, object]) -> bytes:
    """Return the JSON of a map whose keys are the JSON of queues."""
    entries = [b"%b:%b" % (key.encode(), encode_body(value)) for key, value in table.items()]
    return b"{%b}" % b",".join(entries)


def encode_queue_table(name: str, table: Mapping[MessageQueue, int]) -> bytes:
    """Return a body that has only such a map, under `name`."""
    return b"{%b:%b}" % (encode_body(name), encode_keyed(queue_table(table)))


def relayed_queue_table(data: bytes, name: str) -> Generator[None, None, bytes]:
    """Return the map under `name` with its keys as this module writes them, key by key.

    Raise ProtocolError.
    """
    raw = decode_body(with_text_keys(data), dict[str, msgspec.Raw]).get(name)
    table: dict[str, int] = {}
    if raw is not None:
        for key, value in decode_body(bytes(raw), dict[str, int]).items():
            table[queue_key(decode_body(key.encode(), MessageQueueBean).queue()).decode()] = value
            yield
    return encode_keyed(table)


def decode_queue_table(data: bytes, name: str, type_: type[T]) -> dict[MessageQueue, T]:
    """Return the map under `name`, empty if there is none. Raise ProtocolError."""
    raw = decode_body(with_text_keys(data), dict[str, msgspec.Raw]).get(name)
    if raw is None:
        return {}
    table: dict[str, T] = decode_body(bytes(raw), dict[str, type_])  # type: ignore[valid-type]  # msgspec takes a type that is a value here
    return {
        decode_body(key.encode(), MessageQueueBean).queue(): value for key, value in table.items()
    }


def with_text_keys(data: bytes) -> bytes:
    """Return a body with its bare keys turned into texts, if they are written as usual.

    `decode_body` reads any of them, but takes ten times as long for it.
    """
    return _BARE_KEY.sub(_TEXT_KEY, data)

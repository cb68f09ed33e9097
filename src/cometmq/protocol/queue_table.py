"""Encode and decode JSON maps whose keys are message queues (Java: Map<MessageQueue, …> through
fastjson).

    {"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":0,\\"topic\\":\\"t\\"}":7}}

This module writes strict JSON, as CometMQ does everywhere: the bean becomes a text, which Java
reads as a message queue (checked with the clients of 4.9.8 and 5.3.3). Java itself writes the bean
without quotes. This module reads both forms.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeVar

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import MessageQueueBean
from cometmq.protocol.json_dialect import decode_body, encode_body

T = TypeVar("T")


def queue_table(table: Mapping[MessageQueue, T]) -> dict[str, T]:
    """Return the map with its keys as they stand in JSON, sorted by queue."""
    return {
        queue_key(queue): value for queue, value in sorted(table.items(), key=lambda item: item[0])
    }


def queue_key(queue: MessageQueue) -> str:
    """Return a queue as the key of such a map."""
    return encode_body(MessageQueueBean.of(queue)).decode()


def encode_queue_table(name: str, table: Mapping[MessageQueue, int]) -> bytes:
    """Return a body that has only such a map, under `name`."""
    return encode_body({name: queue_table(table)})


def relayed_queue_table(data: bytes, name: str) -> Generator[None, None, dict[str, int]]:
    """Return the map under `name` with its keys as this module writes them, key by key.

    Raise ProtocolError.
    """
    raw = decode_body(data, dict[str, msgspec.Raw]).get(name)
    table: dict[str, int] = {}
    if raw is not None:
        for key, value in decode_body(bytes(raw), dict[str, int]).items():
            table[encode_body(decode_body(key.encode(), MessageQueueBean)).decode()] = value
            yield
    return table


def decode_queue_table(data: bytes, name: str, type_: type[T]) -> dict[MessageQueue, T]:
    """Return the map under `name`, empty if there is none. Raise ProtocolError."""
    raw = decode_body(data, dict[str, msgspec.Raw]).get(name)
    if raw is None:
        return {}
    table: dict[str, T] = decode_body(bytes(raw), dict[str, type_])  # type: ignore[valid-type]  # msgspec takes a type that is a value here
    return {
        decode_body(key.encode(), MessageQueueBean).queue(): value for key, value in table.items()
    }

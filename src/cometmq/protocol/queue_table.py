"""JSON maps whose keys are message queues, as fastjson writes them: the key is a bare bean.

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:7}}

Java reads its own dialect only: strict JSON with the bean as a text is no message queue to it.
`json_dialect` reads both, a bean becoming a text key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import MessageQueueBean
from cometmq.protocol.json_dialect import decode_body, encode_body

T = TypeVar("T")


def queue_table(table: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    """The map as a value that a struct of a body may hold."""
    entries = (
        encode_body(MessageQueueBean.of(queue)) + b":" + encode_body(value)
        for queue, value in sorted(table.items())
    )
    return msgspec.Raw(b"{" + b",".join(entries) + b"}")


def encode_queue_table(name: str, table: Mapping[MessageQueue, Any]) -> bytes:
    """A body with nothing but such a map under `name`."""
    return msgspec.json.encode({name: queue_table(table)})


def decode_queue_table(data: bytes, name: str, type_: type[T]) -> dict[MessageQueue, T]:
    """The map that stands under `name`, empty if nothing does. Raises ProtocolError."""
    body = decode_body(data, dict[str, msgspec.Raw])
    raw = body.get(name)
    if raw is None:
        return {}
    table: dict[str, T] = decode_body(bytes(raw), dict[str, type_])  # type: ignore[valid-type]
    return {decode_body(key.encode(), MessageQueueBean).queue(): v for key, v in table.items()}

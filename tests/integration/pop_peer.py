"""Pop and acknowledge in bytes, as Java's client does: MQClientAPIImpl.processPopResponse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.pop_offsets import offsets_of

from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.protocol.pop.handle import (
    PopHandle,
    decode_start_offsets,
    mark_of,
    real_topic,
)

GROUP = "g"
POP, ACK, BATCH_ACK, CHANGE = 200050, 200051, 200151, 200053
PEEK, NOTIFICATION, POLLING_INFO = 200052, 200054, 200055
NOTHING_FOUND = 210
MINUTE_MS = 60_000


class Answer(Protocol):
    """An answer that a client of bytes, or a connection without a socket, got."""

    @property
    def code(self) -> int: ...

    @property
    def ext(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> bytes | memoryview: ...


@dataclass
class Popped:
    """A message as a client knows it: what it got, and its handle."""

    record: StoredRecord
    handle: PopHandle
    group: str = GROUP

    @property
    def body(self) -> bytes:
        return bytes(self.record.body)

    def ext(self, **more: Any) -> dict[str, Any]:
        """Return the fields of a request about the message."""
        return {
            "consumerGroup": self.group,
            "topic": real_topic(self.record.topic, self.group, self.handle.mark),
            "queueId": self.handle.queue_id,
            "extraInfo": self.handle.encode(),
            "offset": self.record.queue_offset,
            **more,
        }


def pop_ext(topic: str = "orders", **fields: Any) -> dict[str, Any]:
    return {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 10 * MINUTE_MS,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        **fields,
    }


def popped(answer: Answer, group: str = GROUP, broker: str = "b") -> list[Popped]:
    """Return the messages of an answer of that broker, none if there were none."""
    if answer.code == NOTHING_FOUND:
        return []
    assert answer.code == 0, answer
    starts = decode_start_offsets(answer.ext["startOffsetInfo"])
    offsets = offsets_of(answer.ext["msgOffsetInfo"])
    found: list[Popped] = []
    for record in decode_records(bytes(answer.body)):
        text = decode_properties(record.properties).get("POP_CK")
        if text is not None:
            found.append(Popped(record, PopHandle.decode(text), group))
            continue
        place = mark_of(record.topic), record.queue_id
        assert record.queue_offset in offsets[place]
        handle = PopHandle(
            starts[place],
            int(answer.ext["popTime"]),
            int(answer.ext["invisibleTime"]),
            int(answer.ext["reviveQid"]),
            place[0],
            broker,
            record.queue_id,
            record.queue_offset,
        )
        found.append(Popped(record, handle, group))
    return found

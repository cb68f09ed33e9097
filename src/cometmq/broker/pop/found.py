"""Collect what one pop finds in the queues that it reads, and describe it for the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cometmq.broker.pop.changes import AnyChange, Key
from cometmq.model import properties as p
from cometmq.protocol.messages.properties import decode_properties, encode_properties
from cometmq.protocol.messages.record import decode_record, encode_moved
from cometmq.protocol.messages.record_layout import record_struct
from cometmq.protocol.pop.handle import (
    PopHandle,
    mark_of,
    msg_offset_entry,
    order_count_entries,
    start_offset_entry,
)

_HEAD: Final = record_struct("size", "queue_offset")


def split(slices: Sequence[memoryview]) -> Iterator[tuple[int, memoryview]]:
    """Yield queue offset and record of each message in slices of the log."""
    unpack = _HEAD.unpack_from
    for view in slices:
        place, end = 0, len(view)
        while place < end:
            size, queue_offset = unpack(view, place)
            yield queue_offset, view[place : place + size]
            place += size


class Found:
    """Holds the messages of one pop so far, and the changes by which they count as popped.

    `rest` estimates how many more there are; `absent` brings into memory what kept the pop from reading a
    queue, and `is_cut` says that a filter had no work left. With `keeps_topic` messages of retry topics stay as they
    are: the client makes their handles.
    """

    def __init__(
        self,
        popped_ms: int,
        invisible_ms: int,
        revive_qid: int,
        broker_name: str,
        *,
        keeps_topic: bool = False,
    ) -> None:
        self.popped_ms = popped_ms
        self.invisible_ms = invisible_ms
        self.revive_qid = revive_qid
        self._broker_name = broker_name
        self._keeps_topic = keeps_topic
        self.slices: list[memoryview] = []
        self.byte_count = 0
        self.count = 0
        self.rest = 0
        self.changes: list[AnyChange] = []
        self.absent: list[Callable[[], None]] = []
        self.is_cut = False
        # The queues that gave messages, each with the last offset given.
        self.ends: list[tuple[Key, int]] = []
        self._starts: list[str] = []
        self._offsets: list[str] = []
        self._order_counts: list[str] = []

    @property
    def until_ms(self) -> int:
        return self.popped_ms + self.invisible_ms

    def add(
        self, key: Key, asked_topic: str, offsets: Sequence[int], slices: Sequence[memoryview]
    ) -> None:
        """Take in messages of a queue. Messages of a retry topic get the topic that was asked for, and the handle by
        which they are acknowledged (Java: PopMessageProcessor).
        """
        mark = mark_of(key[1])
        self.ends.append((key, offsets[-1]))
        self._starts.append(start_offset_entry(mark, key[2], offsets[0]))
        self._offsets.append(msg_offset_entry(mark, key[2], offsets))
        self.count += len(offsets)
        if key[1] != asked_topic and not self._keeps_topic:
            slices = [
                self._renamed(record, key, asked_topic, offsets[0]) for _, record in split(slices)
            ]
        self.slices += slices
        self.byte_count += sum(map(len, slices))

    def add_counts(self, key: Key, offsets: Sequence[int], counts: Sequence[int]) -> None:
        """Take in how often each message of a queue was delivered before."""
        self._order_counts += order_count_entries(mark_of(key[1]), key[2], offsets, counts)

    def ext_json(self, *, is_order: bool) -> bytes:
        """Return the fields of the answer as JSON."""
        order_counts = f',"orderCountInfo":"{";".join(self._order_counts)}"' if is_order else ""
        return (
            f'"invisibleTime":"{self.invisible_ms}","msgOffsetInfo":"{";".join(self._offsets)}",'
            f'"popTime":"{self.popped_ms}","restNum":"{self.rest}","reviveQid":"{self.revive_qid}",'
            f'"startOffsetInfo":"{";".join(self._starts)}"{order_counts}'
        ).encode()

    def _renamed(self, view: memoryview, key: Key, topic: str, start_offset: int) -> memoryview:
        record = decode_record(view)
        properties = decode_properties(record.properties)
        properties[p.POP_CK] = PopHandle(
            start_offset,
            self.popped_ms,
            self.invisible_ms,
            self.revive_qid,
            mark_of(key[1]),
            self._broker_name,
            key[2],
            record.queue_offset,
        ).encode()
        return memoryview(
            encode_moved(
                record,
                topic=topic,
                queue_id=record.queue_id,
                properties=encode_properties(properties),
                prepared_transaction_offset=0,
            )
        )

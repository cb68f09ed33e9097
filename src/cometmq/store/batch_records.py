"""Encode the records of a large batch one by one, so that they can be appended in one short piece.

The fields that depend on a record's place are known only then: its queue offset, its offset in the log,
and the time. These fields are filled in for all records at once, by numpy, in a millisecond for 16,384;
record by record it takes a hundred times as long to store them.
"""

from __future__ import annotations

from array import array

from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.record import encode_record
from cometmq.protocol.messages.record_layout import (
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    V4_HOST_SIZE,
)
from cometmq.store.queues.consume_queue import ConsumeQueue


def prepare() -> None:
    """Load what `BatchRecords.place` needs. Takes 0.1 s the first time; for any thread."""
    import numpy  # noqa: F401 - most brokers never need it


class BatchRecords:
    """Holds the records of one batch for `queue`, one behind the other in `data`.

    `starts` are their places there, `tags_codes` those of their units.
    """

    __slots__ = (
        "_born_host",
        "_born_timestamp",
        "_properties_lengths",
        "_reconsume_times",
        "_store_host",
        "_sys_flag",
        "_topic",
        "data",
        "queue",
        "starts",
        "tags_codes",
    )

    def __init__(
        self,
        queue: ConsumeQueue,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        *,
        sys_flag: int,
        reconsume_times: int,
    ) -> None:
        self.queue = queue
        self.data = bytearray()
        self.starts = array("q")
        self.tags_codes = array("q")
        self._properties_lengths = array("i")
        self._topic = queue.topic.encode()
        self._born_timestamp = born_timestamp
        self._born_host = born_host
        self._store_host = store_host
        self._sys_flag = sys_flag
        self._reconsume_times = reconsume_times

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, entry: BatchEntry, tags_code: int) -> None:
        """Encode one more record. Raises ProtocolError for properties of more than 32,767 bytes."""
        record = encode_record(
            topic=self._topic,
            body=entry.body,
            properties=entry.properties,
            queue_id=self.queue.queue_id,
            queue_offset=0,
            physical_offset=0,
            sys_flag=self._sys_flag,
            born_timestamp=self._born_timestamp,
            born_host=self._born_host,
            store_timestamp=0,
            store_host=self._store_host,
            flag=entry.flag,
            reconsume_times=self._reconsume_times,
        )
        self.starts.append(len(self.data))
        self.tags_codes.append(tags_code)
        self._properties_lengths.append(len(entry.properties))
        self.data += record

    def place(self, physical_offset: int, queue_offset: int, now_ms: int) -> bytes:
        """Write into all records where they will lie, from these offsets on, and when they were stored.
        Return their units for the queue. There must be a record.
        """
        import numpy as np

        starts = np.frombuffer(self.starts, dtype=np.int64)
        # One number for each place, most of which overlap.
        numbers = np.ndarray(len(self.data) - 7, dtype=">i8", buffer=self.data, strides=(1,))
        numbers[starts + QUEUE_OFFSET_AT] = np.arange(queue_offset, queue_offset + len(self))
        numbers[starts + PHYSICAL_OFFSET_AT] = starts + physical_offset
        wider = len(self._born_host) - V4_HOST_SIZE
        numbers[starts + (STORE_TIMESTAMP_AT + wider)] = now_ms
        # The layout of cometmq.store.queues.consume_queue.
        units = np.empty(len(self), dtype=[("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
        units["offset"] = starts + physical_offset
        units["size"] = np.diff(starts, append=len(self.data))
        units["tags"] = np.frombuffer(self.tags_codes, dtype=np.int64)
        return units.tobytes()

    def size(self, index: int) -> int:
        """Return how many bytes a record has."""
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.data)
        return end - self.starts[index]

    def properties(self, index: int) -> bytes:
        """Return the properties of a record: they are its end."""
        end = self.starts[index] + self.size(index)
        return bytes(self.data[end - self._properties_lengths[index] : end])

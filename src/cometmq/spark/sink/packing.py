"""Pack messages into requests: batches for each queue, encoded by columns (layout:
`cometmq.protocol.messages.batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.bulk.sending import Parcel
from cometmq.client.producing.selectors import queue_of_key
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.compression import CompressionType, compress
from cometmq.protocol.messages.record_columns import Ints

MAX_BATCH_MESSAGES: Final = 1024
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
assert _HEAD.itemsize == 20
_FIXED: Final = _HEAD.itemsize + 2

# Returns the queues of a topic among which keys choose.
QueuesOf = Callable[[str], Sequence[MessageQueue]]


class Packing:
    """Packs messages into parcels of at most `batch_bytes`, or of one message that is larger.

    A message goes alone if it is delayed or to be compressed, because its body has
    `compress_over_bytes` or more. Messages without a key are spread over the queues, a parcel each.
    """

    def __init__(
        self,
        queues_of: QueuesOf,
        batch_bytes: int,
        compression: CompressionType | None,
        compress_over_bytes: int,
    ) -> None:
        self._queues_of = queues_of
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._compress_over_bytes = compress_over_bytes
        self._turns: dict[str, int] = {}

    def parcels(self, messages: Any) -> Iterator[Parcel]:
        """Yield the parcels of a batch of OUTBOUND. Messages of one queue keep their order."""
        topics = messages.column("topic")
        for topic in pc.unique(topics).to_pylist():
            of_topic = messages
            if len(topics) and not pc.all(pc.equal(topics, topic)).as_py():
                of_topic = messages.filter(pc.equal(topics, topic))
            yield from self._of_topic(topic, of_topic)

    # Inside

    def _of_topic(self, topic: str, messages: Any) -> Iterator[Parcel]:
        queues = self._queues_of(topic)
        which = _places(messages.column("key"), queues)
        if (which != which[0]).any():
            order = np.argsort(which, kind="stable")
            which = which[order]
            messages = messages.take(pa.array(order))
        bounds = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(which)]
        entries = _Entries(messages, self._alone(messages), self._batch_bytes)
        for start, end in pairwise(bounds):
            place = int(which[start])
            for first, last in entries.cuts(start, end):
                queue = queues[place] if place >= 0 else self._next(topic, queues)
                yield self._parcel(entries, first, last, queue, ordered=place >= 0)

    def _alone(self, messages: Any) -> Any:
        alone = np.asarray(messages.column("delayed"))
        if self._compression is not None:
            lengths = np.asarray(pc.binary_length(messages.column("body")))
            alone = alone | (lengths >= self._compress_over_bytes)
        return alone

    def _next(self, topic: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return queues[turn % len(queues)]

    def _parcel(
        self, entries: _Entries, first: int, last: int, queue: MessageQueue, *, ordered: bool
    ) -> Parcel:
        if not entries.alone[first]:
            return Parcel(queue, entries.body(first, last), last - first, ordered)
        body, properties, flag = entries.single(first)
        sys_flag = 0
        if self._compression is not None and len(body) >= self._compress_over_bytes:
            packed = compress(body, self._compression)
            if len(packed) < len(body):
                body, sys_flag = packed, self._compression.sys_flag
        return Parcel(queue, body, 1, ordered, properties, flag, sys_flag)


class _Entries:
    """Messages encoded side by side as in the body of a batch."""

    def __init__(self, messages: Any, alone: Any, batch_bytes: int) -> None:
        self._messages = messages
        body, text = messages.column("body"), messages.column("text")
        body_lengths = np.asarray(pc.binary_length(body)).astype(np.int64)
        text_lengths = np.asarray(pc.binary_length(text)).astype(np.int64)
        sizes = body_lengths + text_lengths + _FIXED
        head = np.zeros(len(messages), _HEAD)
        head["size"] = sizes
        head["flag"] = np.asarray(messages.column("flag"))
        head["body"] = body_lengths
        length = text_lengths.astype(">u2")
        pieces = (_fixed(head), body, _fixed(length), text)
        joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))
        self._data = memoryview(joined.buffers()[2])
        self._bounds: Ints = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        self._batch_bytes = batch_bytes
        self.alone = alone | (sizes > batch_bytes)
        self._alone_at = np.flatnonzero(self.alone)

    def cuts(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of messages, from the first to behind the last, that make up
        requests.
        """
        at = start
        while at < end:
            if self.alone[at]:
                yield at, at + 1
                at += 1
                continue
            full = int(self._bounds[at]) + self._batch_bytes
            stop = int(np.searchsorted(self._bounds, full, side="right")) - 1
            following = np.searchsorted(self._alone_at, at)
            if following < len(self._alone_at):
                stop = min(stop, int(self._alone_at[following]))
            stop = min(stop, end, at + MAX_BATCH_MESSAGES)
            yield at, stop
            at = stop

    def body(self, first: int, last: int) -> bytes:
        return bytes(self._data[self._bounds[first] : self._bounds[last]])

    def single(self, at: int) -> tuple[bytes, str, int]:
        """Return body, properties string and flag of one message."""
        row = self._messages.slice(at, 1)
        body, text, flag = (row.column(name)[0].as_py() for name in ("body", "text", "flag"))
        return body, text.decode(), flag


def _fixed(values: Any) -> Any:
    """Return each value's bytes as a binary column."""
    type_ = pa.binary(values.dtype.itemsize)
    buffers = [None, pa.py_buffer(values.tobytes())]
    return pa.FixedSizeBinaryArray.from_buffers(type_, len(values), buffers).cast(pa.binary())


def _places(keys: Any, queues: Sequence[MessageQueue]) -> Ints:
    """Return the place of each key's queue in `queues`, -1 for no key."""
    if keys.null_count == len(keys):
        return np.full(len(keys), -1, np.int64)
    encoded = keys.dictionary_encode()
    at = {queue: place for place, queue in enumerate(queues)}
    places = [at[queue_of_key(queues, key)] for key in encoded.dictionary.to_pylist()]
    indices = np.asarray(pc.fill_null(encoded.indices, len(places)))
    found: Ints = np.array([*places, -1], np.int64)[indices]
    return found

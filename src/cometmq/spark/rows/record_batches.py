"""Turn records of the log into Arrow record batches, a column at a time (layout:
`cometmq.protocol.messages.record`).

Only compressed bodies become Python objects; no other field does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.errors import ProtocolError
from cometmq.model import properties as p
from cometmq.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    STORE_HOST_V6,
    TRANSACTION_MASK,
)
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.ids import unpack_host
from cometmq.protocol.messages.record_columns import Bools, Ints, RecordColumns, field
from cometmq.protocol.messages.record_layout import (
    BORN_HOST_AT,
    STORE_HOST_AT,
    V4_HOST_SIZE,
    V6_HOST_SIZE,
    V6_WIDER,
)
from cometmq.spark.rows.arrow_slices import slices
from cometmq.spark.rows.schema import arrow_schema
from cometmq.spark.rows.text_columns import TextColumns

MAX_BODY_BYTES: Final = 64 * 1024 * 1024

_MAX_MS: Final = (2**63 - 1) // 1000
_TIME: Final = pa.timestamp("us", tz="UTC")
_NUMBER: Final = r"^\d{1,18}$"
_LEVEL: Final = r"^\d{1,9}$"


# Values are made when they are first used: pyarrow imports pandas, where it is installed, before it makes
# one, and a process that only plans needs neither.
@cache
def _empty() -> Any:
    return pa.scalar("", pa.string())


@cache
def _transaction_types() -> Any:
    return pa.array([None, "prepared", "commit", "rollback"], pa.string())


class RecordBatches:
    """Makes record batches with the columns `names`.

    `broker` is the value of the column `broker`. `topic` is the value of the column `topic`, or
    None to take each record's own. With `decompress` False, bodies stay as stored.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        broker: str | None,
        topic: str | None = None,
        decompress: bool = True,
    ) -> None:
        self._schema = arrow_schema(names)
        self._makers = [_MAKERS[name] for name in names]
        self._broker = broker
        self._topic = topic
        self._decompress = decompress

    def batch(self, window: bytes | bytearray | memoryview, columns: RecordColumns) -> Any:
        """Return a batch of the records of `columns`, at least one, which lie in `window`."""
        records = _Records(window, columns, self._broker, self._topic, decompress=self._decompress)
        arrays = [
            _as(maker(records), field.type)
            for maker, field in zip(self._makers, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _as(array: Any, kind: Any) -> Any:
    return array if array.type.equals(kind) else array.cast(kind)


class _Records:
    """Makes the columns of one batch."""

    def __init__(
        self,
        window: bytes | bytearray | memoryview,
        columns: RecordColumns,
        broker: str | None,
        topic: str | None,
        *,
        decompress: bool,
    ) -> None:
        self._window = window
        self._buffer = pa.py_buffer(window)
        self._columns = columns
        self._broker = broker
        self._topic = topic
        self._decompress = decompress

    def __len__(self) -> int:
        return len(self._columns)

    def number(self, name: str) -> Ints:
        """Gather a field that stands in front of both hosts."""
        return field(self._window, name, self._columns.starts)

    def int32(self, name: str) -> Any:
        return pa.array(self.number(name).astype(np.int32))

    def int64(self, name: str) -> Any:
        return pa.array(self.number(name))

    def behind_hosts(self, name: str) -> Ints:
        """Gather a field that stands behind both hosts."""
        moved = self._store_hosts_end - (STORE_HOST_AT + V4_HOST_SIZE)
        return field(self._window, name, moved)

    @cached_property
    def texts(self) -> TextColumns:
        return TextColumns(self._window, self._columns)

    @cached_property
    def _store_hosts(self) -> Ints:
        wider = np.where(self._columns.sys_flags & BORN_HOST_V6, V6_WIDER, 0)
        return self._columns.starts + STORE_HOST_AT + wider

    @cached_property
    def _store_hosts_end(self) -> Ints:
        return self._store_hosts + np.where(
            self._columns.sys_flags & STORE_HOST_V6, V6_HOST_SIZE, V4_HOST_SIZE
        )

    @cached_property
    def _packed_store_hosts(self) -> Any:
        return slices(self._buffer, self._store_hosts, self._store_hosts_end).dictionary_encode()

    def topic(self) -> Any:
        if self._topic is None:
            return self.texts.topics
        return pa.repeat(pa.scalar(self._topic, pa.string()), len(self))

    def broker(self) -> Any:
        return pa.repeat(pa.scalar(self._broker, pa.string()), len(self))

    def born_host(self) -> Any:
        starts = self._columns.starts + BORN_HOST_AT
        ends = starts + np.where(self._columns.sys_flags & BORN_HOST_V6, V6_HOST_SIZE, V4_HOST_SIZE)
        return _by_value(slices(self._buffer, starts, ends).dictionary_encode(), unpack_host)

    def store_host(self) -> Any:
        return _by_value(self._packed_store_hosts, unpack_host)

    @cached_property
    def offset_ids(self) -> Any:
        hosts = _by_value(self._packed_store_hosts, _hex)
        offsets = self.number("physical_offset").astype(">i8").view(np.uint8)
        digits = _HEX_PAIRS[offsets].view(np.uint8)
        bounds = np.arange(0, 16 * len(self) + 1, 16, dtype=np.int32)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(digits)]
        texts = pa.Array.from_buffers(pa.string(), len(self), buffers)
        return pc.binary_join_element_wise(hosts, texts, _empty())

    def msg_id(self) -> Any:
        ids = self.texts.values(p.UNIQ_CLIENT_MESSAGE_ID)
        return pc.coalesce(ids, self.offset_ids) if ids.null_count else ids

    def keys(self) -> Any:
        texts = pc.fill_null(self.texts.values(p.KEYS), _empty())
        words = pc.split_pattern(texts, p.KEY_SEPARATOR)
        filled = pc.not_equal(words.flatten(), _empty())
        if pc.all(filled).as_py() is not False:
            return words
        counts = np.concatenate((np.zeros(1, np.int64), np.cumsum(filled.to_numpy(False))))
        bounds = counts[words.offsets.to_numpy()].astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), words.flatten().filter(filled))

    def store_time(self) -> Any:
        return _times(self._columns.store_timestamps)

    def transaction_type(self) -> Any:
        kinds = (self._columns.sys_flags & TRANSACTION_MASK) >> 2
        return _transaction_types().take(pa.array(kinds))

    def delay_level(self) -> Any:
        return _numbers(self.texts.values(p.DELAY_TIME_LEVEL), _LEVEL).cast(pa.int32())

    def deliver_time(self) -> Any:
        times = pc.coalesce(
            self.texts.values(p.TIMER_DELIVER_MS), self.texts.values(p.TIMER_OUT_MS)
        )
        numbers = _numbers(times, _NUMBER)
        mask = np.asarray(numbers.is_null())
        values = pc.fill_null(numbers, 0).to_numpy()
        return pa.array(np.minimum(values, _MAX_MS) * 1000, mask=mask).view(_TIME)

    # Bodies

    def body(self) -> Any:
        return self._bodies[0]

    def sys_flag(self) -> Any:
        flags = self._columns.sys_flags
        if self._decompress and (flags & COMPRESSED).any():
            flags = np.where(self._bodies[1], flags & ~COMPRESSED, flags)
        return pa.array(flags.astype(np.int32))

    @cached_property
    def _bodies(self) -> tuple[Any, Bools]:
        """Return the bodies, and which of them were decompressed."""
        starts, ends = self._columns.body_starts, self._columns.body_ends
        compressed = self._columns.sys_flags & COMPRESSED != 0
        if not self._decompress or not compressed.any():
            return slices(self._buffer, starts, ends), np.zeros(len(self), bool)
        bodies: list[bytes] = slices(self._buffer, starts, ends).to_pylist()
        done = compressed.copy()
        for at in np.flatnonzero(compressed).tolist():
            try:
                flags = int(self._columns.sys_flags[at])
                bodies[at] = decompress(
                    bodies[at], flags, max_length=MAX_BODY_BYTES, limit="MAX_BODY_BYTES"
                )
            except ProtocolError:
                # Consumers also get such a body as stored, with its flag set.
                done[at] = False
        return pa.array(bodies, pa.binary()), done


_HEX_PAIRS: Final = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)


def _hex(packed: bytes) -> str:
    return packed.hex().upper()


def _by_value(encoded: Any, text: Callable[[bytes], str]) -> Any:
    """Return a dictionary column of packed hosts, which has few values, as text."""
    texts = [text(packed) for packed in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _times(milliseconds: Ints) -> Any:
    return pa.array(np.clip(milliseconds, -_MAX_MS, _MAX_MS) * 1000).view(_TIME)


def _numbers(texts: Any, pattern: str) -> Any:
    """Return the numbers that match `pattern`, and null for other texts: a property may be any
    text.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.int64())
    fits = pc.match_substring_regex(texts, pattern)
    return pc.if_else(fits, texts, pa.scalar(None, pa.string())).cast(pa.int64())


_MAKERS: Final[dict[str, Callable[[_Records], Any]]] = {
    "topic": _Records.topic,
    "broker": _Records.broker,
    "queue_id": lambda records: records.int32("queue_id"),
    "queue_offset": lambda records: records.int64("queue_offset"),
    "commit_log_offset": lambda records: records.int64("physical_offset"),
    "msg_id": _Records.msg_id,
    "offset_msg_id": lambda records: records.offset_ids,
    "batch_msg_id": lambda records: records.texts.batch_ids(),
    "keys": _Records.keys,
    "tags": lambda records: records.texts.values(p.TAGS),
    "body": _Records.body,
    "properties": lambda records: records.texts.properties,
    "born_time": lambda records: _times(records.number("born_timestamp")),
    "store_time": _Records.store_time,
    "born_host": _Records.born_host,
    "store_host": _Records.store_host,
    "reconsume_times": lambda records: pa.array(
        records.behind_hosts("reconsume_times").astype(np.int32)
    ),
    "flag": lambda records: records.int32("flag"),
    "sys_flag": _Records.sys_flag,
    "body_crc": lambda records: records.int32("body_crc"),
    "transaction_type": _Records.transaction_type,
    "transaction_id": lambda records: records.texts.values(p.TRANSACTION_ID),
    "prepared_transaction_offset": lambda records: pa.array(
        records.behind_hosts("prepared_transaction_offset")
    ),
    "delay_level": _Records.delay_level,
    "deliver_time": _Records.deliver_time,
}

"""Store a message: as a record of the commit log and a unit of its consume queue.

Both are written in one call, so the next reader of the queue sees the message (Java writes the unit
a millisecond later, in another thread). Java: CommitLog.asyncPutMessage, MessageExtEncoder.

Longer than 500 lines: all ways to append share one log, its checks and its refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NoReturn, Protocol

from zlib_ng.zlib_ng import crc32

from cometmq.errors import (
    MessageIllegalError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreStarvedError,
)
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH
from cometmq.protocol.messages.record import CRC_MASK, encode_record
from cometmq.protocol.messages.record_layout import (
    BODY_AT,
    FIXED_V4,
    HOSTS_V6,
    V4_HOST_SIZE,
    record_struct,
)
from cometmq.store.batch_records import BatchRecords
from cometmq.store.config import StoreConfig
from cometmq.store.delivery_note import encode_note, note_size
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import ConsumeQueue, units_struct
from cometmq.store.refusals import PageCacheWatch, RefusalCause, Refusals

# Java allows this much beside the body for the other fields of a record.
_BEYOND_BODY: Final = 64 * 1024
# Flags that change a record's layout, or whether it is queued; a client may have set any of them.
_FLAGS_FOR_CARE: Final = TRANSACTION_MASK | HOSTS_V6

# The fields of a record that are the same for all messages of a batch, and all that stand before the body.
_SAME_NAMES: Final = (
    "sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times",
    "prepared_transaction_offset",
)  # fmt: skip
_SAME_IN_BATCH: Final = record_struct(*_SAME_NAMES)
_HEAD_IN_BATCH: Final = record_struct(
    "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset",
    _SAME_NAMES, "body_length",
)  # fmt: skip
assert _HEAD_IN_BATCH.size == BODY_AT

Arrival = Callable[[str, int, int, int, int, bytes], None]


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall time, in ms since the epoch."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never jumps."""

    def sleep(self, seconds: float, /) -> None:
        """Pause the calling thread, so that other threads run."""


class Appender:
    """Appends messages to one commit log. For the thread that owns the store.

    While `refusals` has a cause in force, the error of that cause is raised instead of appending.
    """

    __slots__ = (
        "_clock",
        "_is_awaited",
        "_log",
        "_max_body_size",
        "_on_arrival",
        "_refusal",
        "_store_host",
        "_v4",
        "_watch",
        "appended_count",
        "at_growth",
        "refusals",
    )

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        *,
        clock: Clock,
        store_host: bytes,
        on_arrival: Arrival | None,
        is_awaited: Callable[[str, int], bool],
    ) -> None:
        self._log = log
        self._clock = clock
        self._store_host = store_host
        self._v4 = len(store_host) == V4_HOST_SIZE
        self._on_arrival = on_arrival
        self._is_awaited = is_awaited
        self._refusal: StoreError | None = None
        self.refusals = Refusals(self._refusal_changed)
        self._watch = PageCacheWatch(
            config.os_page_cache_busy_time_out_mills, clock.monotonic, self.refusals
        )
        self.configure(config)
        self.appended_count = 0
        # Functions that are called once, when the log grows.
        self.at_growth: list[Callable[[], None]] = []

    def grew(self) -> None:
        """Call the functions that wait for the log to grow."""
        waiting, self.at_growth = self.at_growth, []
        for call in waiting:
            call()

    @property
    def page_cache_watch(self) -> PageCacheWatch:
        return self._watch

    def configure(self, config: StoreConfig) -> None:
        """Obey the limits of `config` from now on."""
        self._max_body_size = config.max_message_size
        self._watch.configure(config.os_page_cache_busy_time_out_mills)

    def _refusal_changed(self, refusal: StoreError | None) -> None:
        self._refusal = refusal

    def append(
        self,
        queue: ConsumeQueue,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        born_timestamp: int,
        born_host: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        now_ms: int = 0,
    ) -> tuple[int, int]:
        """Store one message; return its queue offset and its commit-log offset.

        `born_host` is packed (8 or 20 bytes). A caller that has just read the clock passes it as
        `now_ms`. Raises MessageIllegalError for a message that breaks a limit, StoreFullError if the
        next file cannot be made, StoreError if the store takes no messages; nothing is stored then.
        """
        log = self._log
        body_length, properties_length = len(body), len(properties)
        size = queue.record_overhead + body_length + properties_length
        physical_offset = log.end
        end = physical_offset + size
        if (
            self._refusal is not None
            or body_length > self._max_body_size
            or properties_length > MAX_PROPERTIES_LENGTH
            or end > log.limit
            or queue.needs_room
            or sys_flag & _FLAGS_FOR_CARE
            or not self._v4
            or len(born_host) != V4_HOST_SIZE
        ):
            return self._append_with_care(
                queue, body, properties, tags_code, born_timestamp, born_host,
                flag, sys_flag, reconsume_times, prepared_transaction_offset, now_ms,
            )  # fmt: skip
        now = now_ms or self._clock.now_ms()
        if now < log.last_store_timestamp:  # noqa: PLR1730 - max() takes longer
            now = log.last_store_timestamp
        queue_offset = queue.next_offset
        position = physical_offset - log.base
        target = log.map
        FIXED_V4.pack_into(
            target, position, size, queue.magic, crc32(body) & CRC_MASK, queue.queue_id, flag,
            queue_offset, physical_offset, sys_flag, born_timestamp, born_host, now,
            self._store_host, reconsume_times, prepared_transaction_offset, body_length,
        )  # fmt: skip
        start = position + BODY_AT
        place = start + body_length
        target[start:place] = body
        target[place : position + size] = (
            queue.sized_topic + properties_length.to_bytes(2, "big") + properties
        )
        log.last_store_timestamp = now
        log.end = end
        if self.at_growth:
            self.grew()
        queue.put(physical_offset, size, tags_code)
        totals = queue.totals
        totals.message_count += 1
        totals.byte_count += size
        self.appended_count += 1
        arrived = self._on_arrival
        if arrived is not None:
            arrived(queue.topic, queue.queue_id, queue_offset + 1, tags_code, now, properties)
        return queue_offset, physical_offset

    def append_batch(
        self,
        queue: ConsumeQueue,
        entries: list[BatchEntry],
        tags_codes: list[int],
        born_timestamp: int,
        born_host: bytes,
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        now_ms: int = 0,
    ) -> tuple[int, list[int]]:
        """Store messages with consecutive queue offsets, in one file, one record after the other.

        Returns the first queue offset and the commit-log offsets. Stores all messages or none;
        raises the errors of `append`.
        """
        if sys_flag & TRANSACTION_MASK:
            self._refuse_message("a batch cannot be part of a transaction")
        if not entries:
            self._refuse_message("a batch without messages")
        wider = len(born_host) + len(self._store_host) - 2 * V4_HOST_SIZE
        total = (queue.record_overhead + wider) * len(entries)
        for entry in entries:
            body_length, properties_length = len(entry.body), len(entry.properties)
            if (
                self._refusal is not None
                or body_length > self._max_body_size
                or properties_length > MAX_PROPERTIES_LENGTH
            ):
                self._check(body_length, properties_length)
            total += body_length + properties_length
        self._check_total(total)
        self._make_room(queue, len(entries), total)
        now = now_ms or self._clock.now_ms()
        first = queue.next_offset
        if not (wider or queue.extends or self._refusal is not None or sys_flag & _FLAGS_FOR_CARE):
            return first, self._append_plain(
                queue, entries, tags_codes, born_timestamp, born_host, sys_flag, reconsume_times,
                now, total,
            )  # fmt: skip
        physical_offsets = [
            self.append(
                queue, entry.body, entry.properties, tags_code, born_timestamp, born_host,
                flag=entry.flag, sys_flag=sys_flag, reconsume_times=reconsume_times, now_ms=now,
            )[1]
            for entry, tags_code in zip(entries, tags_codes, strict=True)
        ]  # fmt: skip
        queue.totals.batch_rest += len(entries) - 1
        return first, physical_offsets

    def _append_plain(
        self,
        queue: ConsumeQueue,
        entries: list[BatchEntry],
        tags_codes: list[int],
        born_timestamp: int,
        born_host: bytes,
        sys_flag: int,
        reconsume_times: int,
        now: int,
        total: int,
    ) -> list[int]:
        """Append a batch for which there is room, of records with IPv4 hosts, in one piece. Return their
        commit-log offsets.
        """
        log = self._log
        now = max(now, log.last_store_timestamp)
        same = _SAME_IN_BATCH.pack(
            sys_flag, born_timestamp, born_host, now, self._store_host, reconsume_times, 0
        )
        overhead, magic, queue_id = queue.record_overhead, queue.magic, queue.queue_id
        topic = queue.sized_topic
        queue_offset = queue.next_offset
        begin = physical_offset = log.end
        parts: list[bytes] = []
        units: list[int] = []
        offsets: list[int] = []
        for index, entry in enumerate(entries):
            body, properties = entry.body, entry.properties
            body_length, properties_length = len(body), len(properties)
            size = overhead + body_length + properties_length
            head = _HEAD_IN_BATCH.pack(
                size, magic, crc32(body) & CRC_MASK, queue_id, entry.flag, queue_offset,
                physical_offset, same, body_length,
            )  # fmt: skip
            parts += (head, body, topic, properties_length.to_bytes(2, "big"), properties)
            units += (physical_offset, size, tags_codes[index])
            offsets.append(physical_offset)
            queue_offset += 1
            physical_offset += size
        position = begin - log.base
        log.map[position : position + total] = b"".join(parts)
        log.last_store_timestamp = now
        log.end = physical_offset
        if self.at_growth:
            self.grew()
        count = len(offsets)
        queue.put_units(memoryview(units_struct(count).pack(*units)))
        totals = queue.totals
        totals.message_count += count
        totals.byte_count += total
        totals.batch_rest += count - 1
        self.appended_count += count
        arrived = self._on_arrival
        if arrived is not None and self._is_awaited(queue.topic, queue_id):
            first = queue_offset - count
            for index, entry in enumerate(entries):
                next_offset, tags_code = first + index + 1, tags_codes[index]
                arrived(queue.topic, queue_id, next_offset, tags_code, now, entry.properties)
        return offsets

    def batch_records(
        self,
        queue: ConsumeQueue,
        born_timestamp: int,
        born_host: bytes,
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> BatchRecords:
        """Begin a batch whose records are encoded one by one, before `append_records` stores them."""
        if sys_flag & TRANSACTION_MASK:
            self._refuse_message("a batch cannot be part of a transaction")
        return BatchRecords(
            queue, born_timestamp, born_host, self._store_host,
            sys_flag=sys_flag, reconsume_times=reconsume_times,
        )  # fmt: skip

    def append_records(self, batch: BatchRecords) -> tuple[int, int]:
        """Store a batch as `append_batch` does, in a hundredth of the time.

        Returns the first queue offset and the first commit-log offset. Take the steps of `announce`
        afterwards. The batch's queue must not have been removed meanwhile.
        """
        queue, size = batch.queue, len(batch.data)
        self._check_total(size)
        self._check(0, 0)
        self._make_room(queue, len(batch), size)
        # Making room may have taken so long that the store refuses messages now.
        self._check(0, 0)
        log = self._log
        now = max(self._clock.now_ms(), log.last_store_timestamp)
        physical_offset = log.end
        first = queue.next_offset
        units = batch.place(physical_offset, first, now)
        position = physical_offset - log.base
        log.map[position : position + size] = batch.data
        log.last_store_timestamp = now
        log.end = physical_offset + size
        if self.at_growth:
            self.grew()
        if queue.extends:
            for index, tags_code in enumerate(batch.tags_codes):
                place = physical_offset + batch.starts[index]
                properties = batch.properties(index)
                queue.put_message(place, batch.size(index), tags_code, now, properties)
        else:
            queue.put_units(memoryview(units))
        totals = queue.totals
        totals.message_count += len(batch)
        totals.byte_count += size
        totals.batch_rest += len(batch) - 1
        self.appended_count += len(batch)
        return first, physical_offset

    def announce(self, batch: BatchRecords, first: int) -> Iterator[None]:
        """Wake the requests that wait for the queue of an appended batch, one message with each
        step.
        """
        if self._on_arrival is None:
            return
        queue = batch.queue
        now = self._log.last_store_timestamp
        for index, tags_code in enumerate(batch.tags_codes):
            self._on_arrival(
                queue.topic,
                queue.queue_id,
                first + index + 1,
                tags_code,
                now,
                batch.properties(index),
            )
            yield

    def append_copy(
        self,
        origin: int,
        queue: ConsumeQueue,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        born_timestamp: int,
        born_host: bytes,
        *,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
    ) -> None:
        """Store a message that is a copy of the record at commit-log offset `origin`, and a note in
        front of it that says so.

        Stores both or none, in one file; raises the errors of `append`.
        """
        store_host = self._store_host
        size = note_size(1, store_host) + queue.record_overhead + len(body) + len(properties)
        self._check(len(body), len(properties))
        self._make_room(queue, 1, size + len(born_host) + len(store_host) - 2 * V4_HOST_SIZE)
        # Making room may have taken so long that the store refuses messages now.
        self._check(0, 0)
        log = self._log
        now = max(self._clock.now_ms(), log.last_store_timestamp)
        place = log.end
        note = encode_note([origin], physical_offset=place, now_ms=now, store_host=store_host)
        position = place - log.base
        log.map[position : position + len(note)] = note
        log.end = place + len(note)
        self.append(
            queue, body, properties, tags_code, born_timestamp, born_host,
            flag=flag, sys_flag=sys_flag, reconsume_times=reconsume_times, now_ms=now,
        )  # fmt: skip

    def _check_total(self, total: int) -> None:
        if total > self._max_body_size + _BEYOND_BODY:
            self._refuse_message(
                f"a batch of {total} bytes, the limit maxMessageSize is {self._max_body_size} "
                f"and {_BEYOND_BODY} more; divide it",
                limit="maxMessageSize",
            )

    def _check(self, body_length: int, properties_length: int) -> None:
        if self._refusal is not None:
            self._watch.look()
            if self._refusal is not None:
                self.refusals.refuse()
        if body_length > self._max_body_size:
            self._refuse_message(
                f"a body of {body_length} bytes, the limit maxMessageSize is {self._max_body_size}; "
                "send a smaller message, or raise it",
                limit="maxMessageSize",
            )
        if properties_length > MAX_PROPERTIES_LENGTH:
            self._refuse_message(
                f"properties of {properties_length} bytes, the limit MAX_PROPERTIES_LENGTH is "
                f"{MAX_PROPERTIES_LENGTH}; move large values into the body",
                limit="MAX_PROPERTIES_LENGTH",
            )

    def _refuse_message(self, reason: str, *, limit: str = "") -> NoReturn:
        self.refusals.count(RefusalCause.MESSAGE_ILLEGAL)
        raise MessageIllegalError(reason, limit=limit)

    def _make_room(self, queue: ConsumeQueue, unit_count: int, size: int) -> None:
        """Make room in both files first: a full disk then leaves no record without its unit."""
        began = self._clock.monotonic()
        try:
            if unit_count:
                queue.reserve(unit_count)
            self._log.make_room(size)
        except StoreFullError:
            self.refusals.count(RefusalCause.NO_SPACE)
            raise
        except StoreStarvedError:
            self.refusals.count(RefusalCause.NO_DESCRIPTOR)
            raise
        except StoreBusyError:
            self.refusals.count(RefusalCause.NO_BUFFER)
            raise
        self._watch.append_took(began)

    def _is_common(self, queue: ConsumeQueue, end: int, sys_flag: int, born_host: bytes) -> bool:
        """Say whether `append` stores a checked message that ends at `end` by itself."""
        return (
            self._refusal is None
            and end <= self._log.limit
            and not queue.needs_room
            and not sys_flag & _FLAGS_FOR_CARE
            and self._v4
            and len(born_host) == V4_HOST_SIZE
        )

    def _append_with_care(
        self,
        queue: ConsumeQueue,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        born_timestamp: int,
        born_host: bytes,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
        prepared_transaction_offset: int,
        now_ms: int,
    ) -> tuple[int, int]:
        """Append a message that is not the common case: near a limit, with a new file, a
        transaction, an IPv6 host or flags.
        """
        self._check(len(body), len(properties))
        log = self._log
        wider = len(born_host) + len(self._store_host) - 2 * V4_HOST_SIZE
        size = queue.record_overhead + wider + len(body) + len(properties)
        transaction = sys_flag & TRANSACTION_MASK
        queued = transaction in (TRANSACTION_NOT, TRANSACTION_COMMIT)
        self._make_room(queue, 1 if queued else 0, size)
        if self._is_common(queue, log.end + size, sys_flag, born_host):  # copies the body once less
            return self.append(
                queue, body, properties, tags_code, born_timestamp, born_host,
                flag=flag, sys_flag=sys_flag, reconsume_times=reconsume_times,
                prepared_transaction_offset=prepared_transaction_offset, now_ms=now_ms,
            )  # fmt: skip
        now = max(now_ms or self._clock.now_ms(), log.last_store_timestamp)
        physical_offset = log.end
        position = physical_offset - log.base
        queue_offset = queue.next_offset if queued else 0
        log.map[position : position + size] = encode_record(
            topic=queue.topic.encode(),
            body=body,
            properties=properties,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            sys_flag=sys_flag & ~HOSTS_V6,
            born_timestamp=born_timestamp,
            born_host=born_host,
            store_timestamp=now,
            store_host=self._store_host,
            flag=flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        log.last_store_timestamp = now
        log.end = physical_offset + size
        if self.at_growth:
            self.grew()
        self.appended_count += 1
        if queued:
            queue.put_message(physical_offset, size, tags_code, now, properties)
            totals = queue.totals
            totals.message_count += 1
            totals.byte_count += size
            if self._on_arrival is not None:
                self._on_arrival(
                    queue.topic, queue.queue_id, queue_offset + 1, tags_code, now, properties
                )
        return queue_offset, physical_offset

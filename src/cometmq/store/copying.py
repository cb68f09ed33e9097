"""Store many records once more, each in the topic that its properties name, behind a delivery note.

When a hundred thousand delayed messages fall due in one second, all of them are copied here, so
nothing is decoded. The fixed fields of a record are patched; body, checksum and properties are
copied as they lie. Only ordinary records are copied here. In front of any other record the work
stops, and the caller copies that one with care (`Appender.append`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.errors import StoreError
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.java.hashing import java_hash
from cometmq.model.sysflag import TRANSACTION_MASK
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH, find_property
from cometmq.protocol.messages.record import MAGIC_V1, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import BODY_AT, HOSTS_V6, V4_HOST_SIZE, record_struct
from cometmq.store.append import Appender, Arrival, Clock
from cometmq.store.config import StoreConfig
from cometmq.store.delivery_note import encode_note, note_size
from cometmq.store.files.disk import NO_MAPPING
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import ConsumeQueue

# The fixed fields as they are read and written here. Checksum, flag, born time with its host, and
# retries stay bytes. The original's queue, host and prepared offset are skipped.
_ORIGINAL: Final = record_struct(
    "size", "magic", ("body_crc",), ("flag",), "physical_offset", "sys_flag",
    ("born_timestamp", "born_host"), "store_timestamp", ("reconsume_times",), "body_length",
)  # fmt: skip
_COPY: Final = record_struct(
    "size", "magic", ("body_crc",), "queue_id", ("flag",), "queue_offset", "physical_offset",
    "sys_flag", ("born_timestamp", "born_host"), "store_timestamp", "store_host",
    ("reconsume_times",), "prepared_transaction_offset", "body_length",
)  # fmt: skip
assert (_ORIGINAL.size, _COPY.size) == (BODY_AT, BODY_AT)
_TOPIC_MARK: Final = b"\x02" + p.REAL_TOPIC.encode() + b"\x01"
_QUEUE_MARK: Final = b"\x02" + p.REAL_QUEUE_ID.encode() + b"\x01"
_TAGS_MARK: Final = b"\x02" + p.TAGS.encode() + b"\x01"
_TAGS_FIRST: Final = _TAGS_MARK[1:]
_SEPARATOR: Final = b"\x02"
# Flags that change a record's layout, or whether it is queued.
_FLAGS_FOR_CARE: Final = TRANSACTION_MASK | HOSTS_V6
# A longer number is no queue id.
_MAX_QUEUE_DIGITS: Final = 9


class RecordCopier:
    """Copies records. `queue_of` returns the queue to append to. For the store's thread."""

    __slots__ = (
        "_appender",
        "_clock",
        "_config",
        "_log",
        "_on_arrival",
        "_queue_of",
        "_store_host",
        "_v4",
    )

    def __init__(
        self,
        appender: Appender,
        log: CommitLog,
        queue_of: Callable[[str, int], ConsumeQueue],
        config: StoreConfig,
        *,
        clock: Clock,
        store_host: bytes,
        on_arrival: Arrival | None,
    ) -> None:
        self._appender = appender
        self._log = log
        self._queue_of = queue_of
        self._clock = clock
        self._store_host = store_host
        self._v4 = len(store_host) == V4_HOST_SIZE
        self._config = config
        self._on_arrival = on_arrival

    def append_copies(  # noqa: C901, PLR0915 - see below
        self, places: Sequence[tuple[int, int]], suffix: bytes = b""
    ) -> int:
        """Store the records at `places` (commit-log offset, size) in the topics and queues that
        their REAL_TOPIC and REAL_QID name; return how many were stored, from the first on.

        A note in front of the copies names the records. `suffix` is put behind the properties of
        each copy; a %d in it stands for the record's own store timestamp. The work stops in front
        of a record that is out of the ordinary, for whatever reason: nothing is raised here.

        Longer than 70 lines: each call that would split the loop costs a tenth of all.
        """
        if not places or not self._v4 or self._appender.refusals.current is not None:
            return 0
        log = self._log
        store_host = self._store_host
        max_body_size = self._config.max_message_size
        on_arrival = self._on_arrival
        now = max(self._clock.now_ms(), log.last_store_timestamp)
        routes: dict[bytes, ConsumeQueue] = {}
        codes: dict[bytes, int] = {}
        source, base, source_end = NO_MAPPING, 0, -1
        target, limit, target_base = log.map, log.limit, log.base
        note_place = log.end
        own_end = note_place + note_size(len(places), store_host)
        count = 0
        for place, size in places:
            if not (base <= place and place + size <= source_end):
                file = log.files.find(place)
                if file is None:
                    break
                source, base, source_end = file.map, file.base, min(file.end, log.readable_end)
            if place + size > source_end or size < MIN_RECORD_SIZE:
                break
            at = place - base
            (
                own_size, magic, crc, flag, own_place, sys_flag, born, stored, reconsume_times,
                body_length,
            ) = _ORIGINAL.unpack_from(source, at)  # fmt: skip
            body_at = at + BODY_AT
            body_end = body_at + body_length
            record_end = at + size
            if (
                own_place != place
                or own_size != size
                or magic != MAGIC_V1
                or sys_flag & _FLAGS_FOR_CARE
                or not 0 <= body_length <= max_body_size
                or body_end + 3 > record_end
            ):
                break
            properties = source[body_end + 3 + source[body_end] : record_end]
            queue = routes.get(properties[properties.rfind(_TOPIC_MARK) :])
            if queue is None:
                queue = self._route(properties, routes)
            tags_code = _tags_code(properties, codes)
            if queue is None or tags_code is None or queue.needs_room:
                break
            if suffix:
                properties = _closed(properties) + suffix % stored
            length = len(properties)
            new_size = queue.record_overhead + body_length + length
            if own_end + new_size > limit or length > MAX_PROPERTIES_LENGTH:
                break
            if not count:
                # Readers see the note together with the first copy, when the end of the log moves.
                target[note_place - target_base : own_end - target_base] = encode_note(
                    [place for place, _ in places],
                    physical_offset=note_place,
                    now_ms=now,
                    store_host=store_host,
                )
            position = own_end - target_base
            queue_offset = queue.next_offset
            _COPY.pack_into(
                target, position, new_size, queue.magic, crc, queue.queue_id, flag, queue_offset,
                own_end, sys_flag, born, now, store_host, reconsume_times, 0, body_length,
            )  # fmt: skip
            start = position + BODY_AT
            middle = start + body_length
            target[start:middle] = source[body_at:body_end]
            target[middle : position + new_size] = (
                queue.sized_topic + length.to_bytes(2, "big") + properties
            )
            log.last_store_timestamp = now
            log.end = own_end + new_size
            queue.put(own_end, new_size, tags_code)
            totals = queue.totals
            totals.message_count += 1
            totals.byte_count += new_size
            own_end += new_size
            count += 1
            if on_arrival is not None:
                on_arrival(
                    queue.topic, queue.queue_id, queue_offset + 1, tags_code, now, properties
                )
        self._appender.grew()
        self._appender.appended_count += count
        return count

    def _route(self, properties: bytes, routes: dict[bytes, ConsumeQueue]) -> ConsumeQueue | None:
        """Return the queue that a record is meant for; None if that needs a closer look."""
        at = properties.rfind(_TOPIC_MARK)
        text = properties.decode("utf-8", "replace")
        topic = find_property(text, p.REAL_TOPIC)
        queue_id = find_property(text, p.REAL_QUEUE_ID)
        if (
            at < 0
            or topic is None
            or topic == names.TRANS_HALF_TOPIC
            or queue_id is None
            or not queue_id.isdecimal()
            or len(queue_id) > _MAX_QUEUE_DIGITS
        ):
            return None
        try:
            queue = self._queue_of(topic, int(queue_id))
        except StoreError:  # an illegal topic, or one that is being deleted
            return None
        # These two properties mostly stand last. Then the text from there on is the same for all
        # records of one queue.
        key = properties[at:]
        if _QUEUE_MARK in key:
            routes[key] = queue
        return queue


def _closed(properties: bytes) -> bytes:
    return properties if properties.endswith(_SEPARATOR) else properties + _SEPARATOR


def _tags_code(properties: bytes, codes: dict[bytes, int]) -> int | None:
    """Return the hash of a record's tags, 0 without any; None if that needs a closer look."""
    at = properties.rfind(_TAGS_MARK)
    if at >= 0:
        at += len(_TAGS_MARK)
    elif properties.startswith(_TAGS_FIRST):
        at = len(_TAGS_FIRST)
    else:
        return 0
    end = properties.find(_SEPARATOR, at)
    tags = properties[at:] if end < 0 else properties[at:end]
    code = codes.get(tags)
    if code is None:
        if not tags:
            return None
        code = codes[tags] = java_hash(tags.decode("utf-8", "replace"))
    return code

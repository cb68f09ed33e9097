"""Dump the messages of a store that pass a filter, one by one, in the order of the log."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cometmq.errors import ProtocolError
from cometmq.model.properties import KEYS, TAGS, UNIQ_CLIENT_MESSAGE_ID
from cometmq.protocol.messages.ids import encode_offset_id, unpack_host
from cometmq.protocol.messages.properties import decode_properties, find_batch_id, find_property
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.log.scan import ScannedRecord, check_record
from cometmq.store.offline.store import LOST_TOPIC, Damage, OfflineStore, Progress

# Returns the body of a record as a consumer would see it; may raise ProtocolError.
BodyDecoder = Callable[[StoredRecord], bytes]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Selects messages. Ranges include their first value, not their last; None does not filter."""

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int = 0
    end_offset: int | None = None
    begin_ms: int = 0
    end_ms: int | None = None
    key: str | None = None

    def matches(self, record: ScannedRecord) -> bool:
        return (
            (record.topic == self.topic if self.topic else record.topic != LOST_TOPIC)
            and (self.queue_id is None or record.queue_id == self.queue_id)
            and record.queue_offset >= self.first_offset
            and (self.end_offset is None or record.queue_offset < self.end_offset)
            and record.store_timestamp >= self.begin_ms
            and (self.end_ms is None or record.store_timestamp < self.end_ms)
            and (self.key is None or self._has_key(record))
        )

    def _has_key(self, record: ScannedRecord) -> bool:
        properties = record.properties.decode("utf-8", "replace")
        unique_id = find_property(properties, UNIQ_CLIENT_MESSAGE_ID)
        if self.key in (unique_id, find_batch_id(properties)):
            return True
        return self.key in (find_property(properties, KEYS) or "").split(" ")


def dump(
    store: OfflineStore,
    wanted: Filter,
    *,
    decode_body: BodyDecoder,
    on_damage: Callable[[Damage], None],
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the messages as JSON-simple dicts. Report damaged parts to `on_damage`, skip them."""
    files = {file.base: file for file in store.log_files}
    _skip_older(store, wanted)
    size = store.config.mapped_file_size_commit_log
    for found in store.records(progress):
        if isinstance(found, Damage):
            on_damage(found)
        elif wanted.matches(found):
            file = files[found.offset - found.offset % size]
            position = found.offset - file.base
            try:
                message = _message(decode_record(file.view, position), decode_body)
            except ProtocolError as error:
                end = position + found.size
                on_damage(Damage(file.path, file.base, position, end, str(error)))
            else:
                yield message


def _skip_older(store: OfflineStore, wanted: Filter) -> None:
    """Leave out the oldest files whose messages are all older than the first wanted time."""
    while len(store.log_files) > 1 and _first_timestamp(store.log_files[1]) < wanted.begin_ms:
        store.log_files.pop(0)


def _first_timestamp(file: MappedFile) -> int:
    found = check_record(file.view, 0, file.base, check_crc=True)
    return found.store_timestamp if isinstance(found, ScannedRecord) else 1 << 62


def _message(record: StoredRecord, decode_body: BodyDecoder) -> dict[str, Any]:
    properties = decode_properties(record.properties)
    message: dict[str, Any] = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "storeTimestamp": record.store_timestamp,
        "bornTimestamp": record.born_timestamp,
        "bornHost": unpack_host(record.born_host),
        "storeHost": unpack_host(record.store_host),
        "msgId": properties.get(UNIQ_CLIENT_MESSAGE_ID),
        "batchMsgId": find_batch_id(record.properties),
        "offsetMsgId": encode_offset_id(record.store_host, record.physical_offset),
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS, "").split(),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "storeSize": record.total_size,
        "bodyCRC": record.body_crc,
        "properties": properties,
    }
    body = decode_body(record)
    try:
        message["body"] = body.decode()
    except UnicodeDecodeError:
        message["bodyBase64"] = base64.b64encode(body).decode()
    return message

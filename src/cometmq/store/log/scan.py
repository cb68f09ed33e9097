"""Read the commit log record by record, trusting nothing (Java: checkMessageAndReturnSize)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.record import (
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
)
from cometmq.protocol.messages.record_layout import (
    BODY_AT,
    HEAD_SIZE,
    MAGIC_AT,
    STORE_TIMESTAMP_AT,
    V6_WIDER,
    record_struct,
)
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.reading.layout import next_magic

_HEAD: Final = record_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag"
)
_STORE_TIMESTAMP: Final = record_struct("store_timestamp")
_BODY_LENGTH: Final = record_struct("body_length")
_INT64_MAX: Final = 2**63 - 1
_SECTOR: Final = 512


class ScannedRecord(NamedTuple):
    """Holds what dispatch needs of a record; `properties` are as stored."""

    offset: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: str
    properties: bytes


class BadRecord(NamedTuple):
    """Says why bytes at a place are no record; an empty reason says that nothing was written."""

    reason: str


BLANK: Final = BadRecord("blank")


def check_record(
    view: memoryview, position: int, offset: int, *, check_crc: bool
) -> ScannedRecord | BadRecord:
    """Return the record at `position` of a file's view, which is `offset` in the log.

    `BLANK` stands for the record that ends a file. Unlike in Java, the record's own physical offset
    must be `offset`: this distinguishes records from old bytes that survived a truncation.
    """
    left = len(view) - position
    if left < HEAD_SIZE:
        return BadRecord("too few bytes are left in the file")
    if int.from_bytes(view[position + MAGIC_AT : position + HEAD_SIZE], "big") == MAGIC_BLANK:
        return BLANK
    if left < MIN_RECORD_SIZE:
        unwritten = not any(view[position:])
        return BadRecord("" if unwritten else "too few bytes are left in the file")
    (
        size, magic, body_crc, queue_id, queue_offset, physical_offset, sys_flag,
    ) = _HEAD.unpack_from(view, position)  # fmt: skip
    if magic not in (MAGIC_V1, MAGIC_V2):
        return BadRecord("" if size == 0 and magic == 0 else f"magic {magic:#010x}")
    if not MIN_RECORD_SIZE <= size <= left:
        return BadRecord(f"a size of {size} where {left} bytes are left")
    if physical_offset != offset:
        return BadRecord(f"a record that says it belongs at {physical_offset}")
    wider = V6_WIDER if sys_flag & BORN_HOST_V6 else 0
    (store_timestamp,) = _STORE_TIMESTAMP.unpack_from(view, position + STORE_TIMESTAMP_AT + wider)
    wider += V6_WIDER if sys_flag & STORE_HOST_V6 else 0
    at = position + BODY_AT + wider
    end = position + size
    if at > end:
        return BadRecord(f"a size of {size}, less than the fixed fields take")
    (body_length,) = _BODY_LENGTH.unpack_from(view, at - _BODY_LENGTH.size)
    body_end = at + body_length
    width = 1 if magic == MAGIC_V1 else 2
    if body_length < 0 or body_end + width + 2 > end:
        return BadRecord(f"a body of {body_length} bytes in a record of {size}")
    if check_crc and body_length and crc32(view[at:body_end]) & CRC_MASK != body_crc:
        return BadRecord("a body that contradicts its CRC")
    topic_start = body_end + width
    topic_end = topic_start + int.from_bytes(view[body_end:topic_start], "big")
    properties_start = topic_end + 2
    properties_end = properties_start + int.from_bytes(view[topic_end:properties_start], "big")
    if properties_end != end:
        return BadRecord(f"fields of {properties_end - position} bytes in a record of {size}")
    topic = _topic_text(view[topic_start:topic_end])
    if topic is None:
        return BadRecord("a topic that is no text")
    return ScannedRecord(
        offset, size, queue_id, queue_offset, sys_flag, store_timestamp, topic,
        bytes(view[properties_start:end]),
    )  # fmt: skip


def read_record(
    files: MappedFileQueue, offset: int, *, check_crc: bool, end: int = _INT64_MAX
) -> ScannedRecord | None:
    """Return the record that begins at `offset` of the log and ends at `end` or before, if there is
    one.
    """
    file = files.find(offset)
    if file is None:
        return None
    view = file.view if file.end <= end else file.view[: max(end - file.base, 0)]
    found = check_record(view, offset - file.base, offset, check_crc=check_crc)
    return found if isinstance(found, ScannedRecord) else None


def _topic_text(encoded: memoryview) -> str | None:
    try:
        topic = str(encoded, "utf-8")
    except UnicodeDecodeError:
        return None
    # Zeros come from a sector that never reached the disk.
    return topic if topic and "\0" not in topic else None


class LogScan:
    """Reads the records from `start` on. After the iteration `end` is the offset of the first byte
    that belongs to no record, and `reason` says what is there ("" for nothing).

    `start` must be the offset of a record or of a file. A power loss may have torn records stored
    from `flushed_until` (ms) on. The CRC covers only their bodies, so their other parts are
    searched for sectors that never reached the disk.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        start: int,
        *,
        check_crc: bool,
        flushed_until: int = _INT64_MAX,
    ) -> None:
        self._files = files
        self._flushed_until = flushed_until
        self._check_crc = check_crc
        self.end = start
        self.reason = ""

    def __iter__(self) -> Iterator[ScannedRecord]:
        while (file := self._files.find(self.end)) is not None:
            view = file.view
            base = file.base
            position = self.end - base
            while True:
                found = check_record(view, position, self.end, check_crc=self._check_crc)
                if not isinstance(found, ScannedRecord):
                    break
                if found.store_timestamp >= self._flushed_until and is_torn(view, position, found):
                    self.reason = "zeros where the properties should be"
                    return
                yield found
                position += found.size
                self.end = base + position
            if found is not BLANK:
                self.reason = found.reason
                return
            self.end = file.end


def is_torn(view: memoryview, position: int, record: ScannedRecord) -> bool:
    """Say whether the properties contain a whole sector of zeros, or end with a part of one."""
    if b"\0" not in record.properties:
        return False
    end = position + record.size
    start = end - len(record.properties)
    first = -(-start // _SECTOR) * _SECTOR
    return any(
        not any(view[sector : min(sector + _SECTOR, end)]) for sector in range(first, end, _SECTOR)
    )


def find_record(files: MappedFileQueue, offset: int) -> ScannedRecord | None:
    """Return the first intact record that begins at `offset` or later, in whichever file."""
    for file in files.files:
        if (found := find_record_in(file, max(offset - file.base, 0))) is not None:
            return found
    return None


def find_record_in(
    file: MappedFile, position: int, limit: int | None = None
) -> ScannedRecord | None:
    """Return the first intact record of a file that begins at `position` or later, and below
    `limit`.
    """
    position += MAGIC_AT
    limit = file.size if limit is None else limit
    while (position := next_magic(file.map, position, limit)) >= 0:
        start = position - MAGIC_AT
        found = check_record(file.view, start, file.base + start, check_crc=True)
        if isinstance(found, ScannedRecord):
            return found
        position += 1
    return None

"""Read the files of a store from their bytes: commit log, consume queues, index, state files.

It shares no code with `cometmq.store`: the layouts are those of Java's classes (CommitLog,
MessageDecoder, ConsumeQueue, IndexFile, ConfigManager), so that a wrong idea of the broker's about its
own files is seen. All integers are big-endian.

A record of the commit log (IPv4 hosts, version 1):

    0   4  total size               56  8  store timestamp
    4   4  magic                    64  8  store host (20 with sysFlag & 32)
    8   4  CRC-32 of the body       72  4  reconsume times
    12  4  queue id                 76  8  offset of the half record of a commit
    16  4  flag                     84  4  size of the body, then the body
    20  8  queue offset             ..  1  size of the topic (2 in version 2), then the topic
    28  8  physical offset          ..  2  size of the properties, then the properties
    36  4  sysFlag
    40  8  born timestamp
    48  8  born host (20 with sysFlag & 16)
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import lz4.frame
from backports import zstd

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
# What stands in a consume queue for offsets before its first message.
PLACEHOLDER_SIZE: Final = 0x7FFFFFFF

_FIXED: Final = struct.Struct(">IIIiIqqIq")  # up to the born timestamp
_UNIT: Final = struct.Struct(">qiq")
_INDEX_HEADER: Final = struct.Struct(">qqqqii")
_INDEX_ENTRY: Final = struct.Struct(">iqii")
_COMPRESSED: Final = 1
_TRANSACTION: Final = 0b1100
_PREPARED: Final = 0b0100
_ROLLBACK: Final = 0b1100
# A text, or an integer key, which fastjson writes without quotes.
_INTEGER_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])\s*(-?\d+)\s*:')


class Record(NamedTuple):
    """One record of the commit log; `body` is decompressed. `fault` says what is wrong with it."""

    position: int
    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    store_ms: int
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: dict[str, str]
    fault: str | None
    store_host: str = ""  # as digits with dots, without the port; empty for IPv6

    @property
    def is_in_queue(self) -> bool:
        """Say whether the record has a place in a consume queue."""
        return self.sys_flag & _TRANSACTION not in (_PREPARED, _ROLLBACK)

    @property
    def is_commit(self) -> bool:
        return self.sys_flag & _TRANSACTION == 0b1000

    @property
    def end(self) -> int:
        return self.position + self.size


class Gap(NamedTuple):
    """Bytes of the log between two records that are no record."""

    start: int
    end: int


class Unit(NamedTuple):
    """One entry of a consume queue, at its queue offset."""

    offset: int
    position: int
    size: int
    tags_code: int


class Store:
    """Hold what the files of one store say. Paths are below the store's root, with slashes.

    `index_slots` is the broker's maxHashSlotNum, which no file says.
    """

    def __init__(self, files: Mapping[str, bytes], index_slots: int = 5000) -> None:
        self._files = files
        self._index_slots = index_slots

    # -- the commit log --

    @cached_property
    def _log_files(self) -> list[tuple[int, bytes]]:
        return _mapped(self._files, "commitlog")

    @property
    def min_position(self) -> int:
        """Return where the log begins; what lay before was retired."""
        return self._log_files[0][0] if self._log_files else 0

    @cached_property
    def _scanned(self) -> tuple[list[Record], list[Gap]]:
        records: list[Record] = []
        gaps: list[Gap] = []
        position = self.min_position
        for base, data in self._log_files:
            if base > position:
                gaps.append(Gap(position, base))
            position = base
            while (found := _record(data, base, position)) is not None:
                if isinstance(found, int):
                    gaps.append(Gap(position, found))
                    position = found
                    continue
                records.append(found)
                position = found.end
            rest = data[position - base :]
            if _is_blank(rest):
                position = base + len(data)
        if gaps and records and gaps[-1].start >= records[-1].end:
            gaps.pop()  # nothing follows it: there the log ends
        return records, gaps

    @property
    def records(self) -> list[Record]:
        """Return all records, in the order of the log."""
        return self._scanned[0]

    @property
    def gaps(self) -> list[Gap]:
        """Return where the log is unreadable though records follow."""
        return self._scanned[1]

    @cached_property
    def by_position(self) -> dict[int, Record]:
        return {record.position: record for record in self.records}

    @property
    def end(self) -> int:
        """Return the end of the last record."""
        return self.records[-1].end if self.records else self.min_position

    # -- consume queues --

    @cached_property
    def queues(self) -> dict[tuple[str, int], list[Unit]]:
        """Return the units of each queue, from its first to its last one, without placeholders."""
        found = {}
        for directory in _directories(self._files, "consumequeue"):
            topic, queue_id = directory.split("/")[1:3]
            found[topic, int(queue_id)] = list(_units(_mapped(self._files, directory)))
        return found

    # -- the index --

    @cached_property
    def index_files(self) -> list[IndexFile]:
        return [
            IndexFile(data, self._index_slots)
            for path, data in sorted(self._files.items())
            if path.startswith("index/") and len(data) > _INDEX_HEADER.size
        ]

    def look_up(self, topic: str, key: str) -> set[int]:
        """Return the positions that the index has for a key, with those whose hash is the same."""
        text = f"{topic}#{key}"
        return {position for each in self.index_files for position in each.look_up(text)}

    # -- state files --

    def state(self, name: str) -> Any:
        """Return the content of `config/<name>`; None if it is not there, was never written, or was
        damaged on purpose and not read since ("state files stay whole" judges what becomes of that).
        """
        data = self._files.get(f"config/{name}") or b""
        found = _CHECKSUM.search(data)
        if found is not None and zlib.crc32(data[: found.start()]) != int(found[1], 16):
            return None
        try:
            return parse_state(data.decode())
        except ValueError:
            return None

    def committed_offsets(self) -> dict[tuple[str, str, int], int]:
        """Return consumerOffset.json by group, topic and queue id."""
        found = {}
        table = (self.state("consumerOffset.json") or {}).get("offsetTable", {})
        for name, offsets in table.items():
            topic, _, group = name.partition("@")
            for queue_id, offset in offsets.items():
                found[group, topic, int(queue_id)] = offset
        return found


# The last key of a state file: of all in front of it, with its length.
_CHECKSUM: Final = re.compile(rb',\n\t"checksum":"crc32 ([0-9a-f]{8}) [0-9]+"\n}\Z')


class IndexFile:
    """Hold one file of the index, whose number of slots the configuration says."""

    def __init__(self, data: bytes, slots: int) -> None:
        self._data = data
        self._slots = slots
        header = _INDEX_HEADER.unpack_from(data)
        self.begin_ms, self.end_ms, self.begin, self.end, _, self.count = header

    def look_up(self, text: str) -> Iterator[int]:
        """Follow the chain of a key's slot, from the newest entry to the oldest."""
        wanted = index_hash(text)
        slot = wanted % self._slots
        (number,) = struct.unpack_from(">i", self._data, _INDEX_HEADER.size + 4 * slot)
        while 0 < number < self.count:
            at = _INDEX_HEADER.size + 4 * self._slots + 20 * number
            key_hash, position, _, previous = _INDEX_ENTRY.unpack_from(self._data, at)
            if key_hash == wanted:
                yield position
            if previous >= number:
                return
            number = previous


# A run parses state files again and again, and most have not changed since the last time.
@lru_cache(maxsize=64)
def parse_state(text: str) -> Any:
    """Parse fastjson's dialect, whose integer keys have no quotes. Callers must not change the result."""

    def quote(match: re.Match[str]) -> str:
        return match[0] if match[1] is None else f'"{match[1]}":'

    return json.loads(_INTEGER_KEY.sub(quote, text))


def parse_properties(data: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"\x01") for entry in data.split(b"\x02"))
    return {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, separator, value in pairs
        if separator
    }


def java_hash(text: str) -> int:
    """Return `String.hashCode`, over UTF-16 units."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def index_hash(text: str) -> int:
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def position_of(offset_msg_id: str) -> int:
    """Return the commit-log offset in an offset message id: its last 16 hexadecimal digits."""
    return int(offset_msg_id[-16:], 16)


def host_of(offset_msg_id: str) -> str | None:
    """Return the IPv4 address in an offset message id; None for another kind of address."""
    if len(offset_msg_id) != 32:
        return None
    return ".".join(str(each) for each in bytes.fromhex(offset_msg_id[:8]))


def _mapped(files: Mapping[str, bytes], directory: str) -> list[tuple[int, bytes]]:
    """Return the files of a directory that are named by their start, in order."""
    prefix = f"{directory}/"
    return sorted(
        (int(path[len(prefix) :]), data)
        for path, data in files.items()
        if path.startswith(prefix) and path[len(prefix) :].isdigit()
    )


def _directories(files: Mapping[str, bytes], root: str) -> list[str]:
    found = {path.rpartition("/")[0] for path in files if path.startswith(f"{root}/")}
    return sorted(each for each in found if each.count("/") == 2)


def _record(data: bytes, base: int, position: int) -> Record | int | None:
    """Return the record at a position, or where the next one begins if there is none, or None at the
    end of the file's data.
    """
    start = position - base
    found = _parsed(data, start, position)
    if found is not None:
        return found
    if _is_blank(data[start : start + 8]):
        return None
    return _next_record(data, base, start + 1)


def _next_record(data: bytes, base: int, start: int) -> int | None:
    """Find the next place at which a record stands that says that it stands there."""
    while (start := data.find(b"\xda\xa3\x20", start)) >= 0:
        position = base + start - 4
        found = _parsed(data, start - 4, position)
        if found is not None and found.physical_offset == position:
            return position
        start += 1
    return None


def _is_blank(data: bytes) -> bool:
    """Say whether a file's data ends here: a blank record, nothing, or fewer bytes than a head."""
    return len(data) < 8 or int.from_bytes(data[4:8]) == MAGIC_BLANK or not any(data[:4])


def _parsed(data: bytes, start: int, position: int) -> Record | None:
    try:
        return _unpacked(data, start, position)
    except (struct.error, IndexError):
        return None


def _unpacked(data: bytes, start: int, position: int) -> Record | None:
    (size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, born_ms) = _FIXED.unpack_from(
        data, start
    )
    if magic not in (MAGIC_V1, MAGIC_V2) or not 88 <= size <= len(data) - start:
        return None
    at = start + _FIXED.size + (20 if sys_flag & 16 else 8)
    (store_ms,) = struct.unpack_from(">q", data, at)
    store_host = "" if sys_flag & 32 else ".".join(str(each) for each in data[at + 8 : at + 12])
    at += 8 + (20 if sys_flag & 32 else 8)
    reconsume_times, prepared, body_size = struct.unpack_from(">iqi", data, at)
    at += 16
    if not 0 <= body_size <= size:
        return None
    body = data[at : at + body_size]
    at += body_size
    width = 1 if magic == MAGIC_V1 else 2
    topic_size = int.from_bytes(data[at : at + width])
    topic = data[at + width : at + width + topic_size]
    at += width + topic_size
    properties_size = int.from_bytes(data[at : at + 2])
    properties = data[at + 2 : at + 2 + properties_size]
    if at + 2 + properties_size - start != size:
        return None
    fault = None
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        fault = "its body has another CRC"
    elif physical != position:
        fault = f"it says that it stands at {physical}"
    elif sys_flag & _COMPRESSED:
        try:
            body = _decompressed(body, sys_flag)
        except (zlib.error, zstd.ZstdError, RuntimeError) as error:
            fault = f"its body is no compressed one: {error}"
    return Record(
        position,
        size,
        queue_id,
        queue_offset,
        physical,
        sys_flag,
        born_ms,
        store_ms,
        reconsume_times,
        prepared,
        body,
        topic.decode(errors="replace"),
        parse_properties(properties),
        fault,
        store_host,
    )


def _decompressed(body: bytes, sys_flag: int) -> bytes:
    kind = sys_flag & 0x700
    if kind == 0x100:
        return bytes(lz4.frame.decompress(body))
    if kind == 0x200:
        return zstd.decompress(body)
    return zlib.decompress(body)


def _units(files: list[tuple[int, bytes]]) -> Iterator[Unit]:
    for base, data in files:
        for start in range(0, len(data) - _UNIT.size + 1, _UNIT.size):
            position, size, tags_code = _UNIT.unpack_from(data, start)
            if size == PLACEHOLDER_SIZE:
                continue
            if position < 0 or size <= 0:
                return
            yield Unit((base + start) // _UNIT.size, position, size, tags_code)

"""The extension of a consume queue: data of a message that its unit there has no room for (Java:
ConsumeQueueExt).

It is written only with enableConsumeQueueExt. The unit of the consume queue then holds, instead of
the tags code, the address of an extension unit: its offset - 2^63. No tags code has such a value.

size    field
2       size of the unit, these 2 included
8       tags code
8       store timestamp, ms
2       n, length of the bit map
n       bit map: the subscriptions whose SQL92 expression the message matches

Units never cross a file's end. Where the next unit and 4 bytes do not fit, int16 -1 ends the file.

A message can be found without its extension unit. If the unit is lost, the broker hands the message
out unfiltered, and the client filters it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.errors import StoreCorruptError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.store.config import PAGE_SIZE
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue, PutTotals, Unit

log = get_logger(__name__)

_HEAD: Final = struct.Struct(">hqqh")
MIN_UNIT_SIZE: Final = 20
MAX_UNIT_SIZE: Final = 0x7FFF
assert _HEAD.size == MIN_UNIT_SIZE
_FILE_END: Final = struct.Struct(">h")
_FILE_END_SIZE: Final = 4
_RESERVE_BYTES: Final = 16 * PAGE_SIZE
# Position of the tags code in a unit of the consume queue.
_TAGS_CODE_OFFSET: Final = 12

# A tags code up to this is an address (Java: MAX_ADDR).
MAX_ADDRESS: Final = -(1 << 31) - 1
_ADDRESS_BASE: Final = -(1 << 63)
# The tags code of a recalled message is a negative time. Read as an address, it would give an
# offset beyond this one, which no file reaches.
_MAX_OFFSET: Final = 1 << 62

# Calculates the bit map of a message from its topic and its stored properties; None for no bit map.
BitMapOf = Callable[[str, bytes], bytes | None]


class ExtUnit(NamedTuple):
    """A unit of the extension; `bit_map` is empty if none was calculated."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes


def offset_at(tags_code: int) -> int | None:
    """Return the extension offset that a unit's tags code stands for; None if it is no address."""
    offset = tags_code - _ADDRESS_BASE
    return offset if tags_code <= MAX_ADDRESS and offset < _MAX_OFFSET else None


class ConsumeQueueExt:
    """Reads and writes the extension files of one queue. `end` is the offset of the next unit."""

    __slots__ = ("_reserved", "end", "files")

    def __init__(self, files: MappedFileQueue) -> None:
        self.files = files
        self.end = 0
        self._reserved = 0

    def put(self, unit: ExtUnit) -> int:
        """Append a unit, return its address. Raises StoreFullError; the next call tries again."""
        size = MIN_UNIT_SIZE + len(unit.bit_map)
        assert size <= MAX_UNIT_SIZE
        file = self.files.find(self.end)
        if file is not None and size > file.end - self.end - _FILE_END_SIZE:
            _FILE_END.pack_into(file.map, self.end - file.base, -1)
            self.end = file.end
            file = self.files.find(self.end)
        if file is None:
            if self.files.end != self.end:
                # A unit behind these files is lost (see `recover`): the next file cannot join them.
                self.files.remove_all()
            file = self.files.append_file(first_base=self.end)
        position = self.end - file.base
        if self.end + size + _FILE_END_SIZE > self._reserved:
            limit = min(position + max(size, _RESERVE_BYTES), file.size)
            file.reserve(position, limit)
            self._reserved = file.base + limit
        _HEAD.pack_into(
            file.map, position, size, unit.tags_code, unit.store_timestamp, len(unit.bit_map)
        )
        file.map[position + MIN_UNIT_SIZE : position + size] = unit.bit_map
        address = self.end + _ADDRESS_BASE
        self.end += size
        return address

    def get(self, tags_code: int) -> ExtUnit | None:
        """Return the unit at an address; None if `tags_code` is no address or no unit is there."""
        offset = offset_at(tags_code)
        found = None if offset is None or offset >= self.end else self._read(offset)
        return found[1] if found else None

    def _read(self, offset: int) -> tuple[int, ExtUnit] | None:
        """Return size and contents of the unit at `offset`; None if no valid unit is there."""
        file = self.files.find(offset)
        if file is None or file.end - offset < MIN_UNIT_SIZE:
            return None
        position = offset - file.base
        size, tags_code, store_timestamp, length = _HEAD.unpack_from(file.map, position)
        if length < 0 or size != MIN_UNIT_SIZE + length or offset + size > file.end:
            return None
        start = position + MIN_UNIT_SIZE
        return size, ExtUnit(tags_code, store_timestamp, bytes(file.map[start : start + length]))

    def recover(self, last_offset: int | None) -> None:
        """Set `end` behind the unit at `last_offset`, the last one that the queue points at.

        If that unit is lost, writing goes on in the next file: a new unit must never get an address
        that the queue points at already.
        """
        self._reserved = 0
        self.end = self.files.min_offset
        if last_offset is not None:
            found = self._read(last_offset)
            size = self.files.file_size
            self.end = last_offset + found[0] if found else (last_offset // size + 1) * size
        self.files.flushed = self.end

    def truncate(self, *, clear: bool) -> None:
        """Drop everything behind the end; with `clear` also zero the rest of the end's file."""
        if self.end <= self.files.end:
            self.files.truncate(self.end, clear=clear)

    def detach_below(self, offset: int) -> list[Path]:
        """Forget the files that end below `offset`, and return their paths: the caller must delete
        them now. The last file always stays.
        """
        detached = []
        while len(self.files.files) > 1 and self.files.files[0].end < offset:
            detached.append(self.files.detach_first())
        return detached

    def flush(self, least_pages: int) -> bool:
        """Sync if at least `least_pages` pages wait; see MappedFileQueue.flush."""
        return self.files.flush(self.end, least_pages)


class ExtendedConsumeQueue(ConsumeQueue):
    """A consume queue with an extension.

    With `writes` each new message gets an extension unit; `bit_map_of` calculates its bit map.
    """

    __slots__ = ("_bit_map_of", "_writes", "ext")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        files: MappedFileQueue,
        totals: PutTotals,
        ext: ConsumeQueueExt,
        *,
        writes: bool,
        bit_map_of: BitMapOf | None,
    ) -> None:
        super().__init__(topic, queue_id, files, totals)
        self.ext = ext
        self._writes = writes
        self._bit_map_of = bit_map_of

    # -- writing --

    @property
    def needs_room(self) -> bool:
        """Always true while the extension is written, so that appends go through `put_message`."""
        return self._writes or super().needs_room

    @property
    def extends(self) -> bool:
        return self._writes

    def put_message(
        self,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,
        properties: bytes,
    ) -> None:
        if self._writes:
            bit_map = self._bit_map_of(self.topic, properties) if self._bit_map_of else None
            try:
                tags_code = self.ext.put(ExtUnit(tags_code, store_timestamp, bit_map or b""))
            except StoreError as error:
                # As in Java: a message is queued even if its extension unit cannot be written.
                log.warning("a consume queue's extension is not written", reason=str(error))
        self.put(physical_offset, size, tags_code)

    def flush(self, least_pages: int) -> bool:
        # The extension first: a flushed address must never point at a unit that a crash took.
        flushed = self.ext.flush(least_pages)
        return super().flush(least_pages) or flushed

    # -- reading --

    def unit(self, queue_offset: int) -> Unit | None:
        unit = super().unit(queue_offset)
        if unit is None or unit.tags_code > MAX_ADDRESS:
            return unit
        return unit._replace(tags_code=self._tags_code(unit.tags_code))

    def units(self, queue_offset: int, count: int) -> Iterator[tuple[int, int, int]] | None:
        units = super().units(queue_offset, count)
        if units is None:
            return None
        return (
            (offset, size, code if code > MAX_ADDRESS else self._tags_code(code))
            for offset, size, code in units
        )

    def _tags_code(self, code: int) -> int:
        found = self.ext.get(code)
        return code if found is None else found.tags_code

    def matcher(
        self,
        matches: Callable[[int], bool | None] | None,
        matches_ext: Callable[[ExtUnit], bool | None] | None,
    ) -> Callable[[int], bool | None] | None:
        """Return a filter of stored tags codes, addresses among them, that asks both functions.

        `matches_ext` is asked only about messages that have an extension unit. A message whose unit
        is lost passes. If one of the functions answers None, so does the filter.
        """
        if matches is None and matches_ext is None:
            return None

        def passes(code: int) -> bool | None:
            if offset_at(code) is not None:
                found = self.ext.get(code)
                if found is None:
                    return True
                if matches_ext is not None and not (may_match := matches_ext(found)):
                    return may_match
                code = found.tags_code
            return matches is None or matches(code)

        return passes

    # -- recovering --

    def load(self, *, repair: bool) -> None:
        super().load(repair=repair)
        try:
            self.ext.files.load(repair=repair)
        except StoreCorruptError as error:
            if not repair:
                raise
            log.warning("a consume queue's extension is dropped", reason=str(error))
            self.ext.files.remove_all()

    def recover(self, log_end: int) -> None:
        super().recover(log_end)
        self.ext.recover(self._last_ext_offset())

    def _last_ext_offset(self) -> int | None:
        import numpy as np  # loaded only if a queue has an extension

        end = self.next_offset * UNIT_SIZE
        for file in reversed(self.files.files):
            count = max(0, min(end, file.end) - file.base) // UNIT_SIZE
            stride = (UNIT_SIZE,)
            codes = np.ndarray((count,), ">i8", file.view, _TAGS_CODE_OFFSET, stride)
            found = np.flatnonzero((codes <= MAX_ADDRESS) & (codes < _ADDRESS_BASE + _MAX_OFFSET))
            if len(found):
                return int(codes[found[-1]]) - _ADDRESS_BASE
        return None

    def truncate(self, log_end: int, *, clear: bool) -> None:
        super().truncate(log_end, clear=clear)
        self.ext.truncate(clear=clear)

    def detach_expired_ext(self) -> list[Path]:
        """Forget the extension files that no message from `min_offset` on needs; return their
        paths.
        """
        unit = super().unit(self.min_offset)
        offset = offset_at(unit.tags_code) if unit is not None else None
        return [] if offset is None else self.ext.detach_below(offset)

    def remove_files(self) -> None:
        super().remove_files()
        self.ext.files.remove_all()
        self.ext.recover(None)

    def release(self) -> None:
        super().release()
        self.ext.files.release()

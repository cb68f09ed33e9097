"""Check that the index agrees with the log: each entry points at a record with such a key, and each
key of a record that the index covers has its entry.

The entries of an index file stand in the order of the log. So the check compares whole columns: a
window of the log with a slice of the entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.index.index_file import ENTRY_SIZE, HEADER_SIZE
from cometmq.store.index.index_keys import find_keys, find_tags
from cometmq.store.log.scan import find_record_in
from cometmq.store.offline.check import Area, Finding, Report
from cometmq.store.offline.store import OfflineStore, Progress

_HEADER: Final = struct.Struct(">qqqqii")
_SLOT_SIZE: Final = 4
_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_FIRST_NUMBER: Final = 1
# Findings reported per file: one that does not belong to the log at all must not fill the screen.
_MOST_FINDINGS: Final = 5

Ints = npt.NDArray[np.int64]


class _Entries(NamedTuple):
    """The entries of one index file by their numbers: hashes and commit-log offsets."""

    path: Path
    first_at: int
    hashes: Ints
    offsets: Ints
    # By entry: the number of the entry before it in its slot.
    previous: Ints
    # By slot: the number of the newest entry.
    slots: Ints


class _Part(NamedTuple):
    """A part of the log, its records' keys in the order of the index, and its bytes."""

    start: int
    end: int
    hashes: Ints
    offsets: Ints
    window: bytearray

    def tags(self) -> set[tuple[int, int]]:
        """Return offset and hash of the entries that Java 5.5 has for tags, besides those of keys."""
        found = find_tags(self.window, self.start)
        return set(zip(found.offsets.tolist(), found.hashes.tolist(), strict=True))


def check_index(store: OfflineStore, report: Report, progress: Progress | None = None) -> None:
    """Add the index's findings to a report of the same store, whose log must have been checked."""
    paths = store.index_paths()
    report.index_file_count = len(paths)
    for number, path in enumerate(paths):
        entries = _load(store, path, report)
        if entries is not None:
            report.index_entry_count += len(entries.hashes)
            report.findings += _compare_chains(entries)
            report.findings += _compare(store, entries, report.min_offset)
        if progress is not None:
            progress(number + 1, len(paths))


def _load(store: OfflineStore, path: Path, report: Report) -> _Entries | None:
    sizes = store.index_sizes(path)
    if sizes is None and (size := store.disk.size(path) or 0) < HEADER_SIZE:
        text = f"{size} bytes are left of it, less than its header takes"
        report.findings.append(Finding(Area.INDEX, path, size, text, by_start=True))
        return None
    if sizes is None:
        report.notes.append(
            f"{path} was not looked at: it is not as large as maxHashSlotNum and maxIndexNum make "
            f"it; give the broker's settings with -c"
        )
        return None
    slot_count, entry_count = sizes
    first_at = HEADER_SIZE + _SLOT_SIZE * slot_count
    size = first_at + ENTRY_SIZE * entry_count
    file = MappedFile(store.disk, path, 0, size, writable=False, read_ahead=False)
    count = _HEADER.unpack_from(file.view)[5]
    if not 0 <= count <= entry_count:
        text = f"its header counts {count} entries, {entry_count} have room"
        report.findings.append(Finding(Area.INDEX, path, 36, text))
        return None
    table: npt.NDArray[Any] = np.frombuffer(file.view[first_at:size], _ENTRY)
    table = table[_FIRST_NUMBER : max(count, _FIRST_NUMBER)]
    slots = np.frombuffer(file.view[HEADER_SIZE:first_at], ">i4")
    return _Entries(
        path,
        first_at,
        hashes=table["hash"].astype(np.int64),
        offsets=table["offset"].astype(np.int64),
        previous=table["previous"].astype(np.int64),
        slots=slots.astype(np.int64),
    )


def _compare_chains(entries: _Entries) -> list[Finding]:
    """Compare the slots, and the chains of entries that begin there, with those that follow from
    the hashes.

    A query walks along these chains.
    """
    count = len(entries.hashes)
    numbers = np.arange(_FIRST_NUMBER, _FIRST_NUMBER + count)
    homes = entries.hashes % len(entries.slots)
    order = np.argsort(homes, kind="stable")
    same = np.zeros(count, bool)
    same[1:] = homes[order][1:] == homes[order][:-1]
    before = np.zeros(count, np.int64)
    before[order] = np.where(same, np.roll(numbers[order], 1), 0)
    wrong = np.flatnonzero(before != entries.previous)
    if len(wrong):
        text = f"it points back to entry {entries.previous[wrong[0]]}, not {before[wrong[0]]}"
        return [_finding(entries, int(wrong[0]), text)]
    newest = np.zeros(len(entries.slots), np.int64)
    # numpy keeps the last assignment to a slot, which is that of its newest entry.
    newest[homes] = numbers
    wrong = np.flatnonzero(newest != entries.slots)
    if not len(wrong):
        return []
    slot = int(wrong[0])
    text = f"slot {slot} points to entry {entries.slots[slot]}, not {newest[slot]}"
    return [Finding(Area.INDEX, entries.path, HEADER_SIZE + _SLOT_SIZE * slot, text)]


def _compare(store: OfflineStore, entries: _Entries, log_min_offset: int) -> list[Finding]:
    findings: list[Finding] = []
    negative = np.flatnonzero(entries.offsets < 0)
    if len(negative):
        number = int(negative[0])
        return [_finding(entries, number, f"its record is at {entries.offsets[number]}")]
    # Checked first, because all that follows takes the offsets to be sorted.
    falling = np.flatnonzero(np.diff(entries.offsets) < 0)
    if len(falling):
        number = int(falling[0]) + 1
        return [_finding(entries, number, "its record is before that of the entry in front of it")]
    # The index may still have entries of records that retention took from the log.
    known = int(np.searchsorted(entries.offsets, log_min_offset))
    if known == len(entries.offsets):
        return findings
    first, last = int(entries.offsets[known]), int(entries.offsets[-1])
    reached = known
    for part in _keys(store, first, last):
        stop = int(np.searchsorted(entries.offsets, part.end))
        findings += _compare_part(entries, reached, stop, part, first, last)
        reached = stop
        if len(findings) >= _MOST_FINDINGS:
            return findings[:_MOST_FINDINGS]
    if reached < len(entries.offsets):
        findings.append(_finding(entries, reached, "it points behind the end of the log"))
    return findings


def _compare_part(
    entries: _Entries, start: int, stop: int, part: _Part, first: int, last: int
) -> list[Finding]:
    """Compare entries `start` to `stop` with the keys of the records in that part of the log."""
    if np.array_equal(entries.hashes[start:stop], part.hashes) and np.array_equal(
        entries.offsets[start:stop], part.offsets
    ):
        return []
    expected = set(zip(part.offsets.tolist(), part.hashes.tolist(), strict=True))
    tags = part.tags()
    present = list(
        zip(entries.offsets[start:stop].tolist(), entries.hashes[start:stop].tolist(), strict=True)
    )
    findings = [
        _finding(entries, start + index, f"no record with such a key begins at {pair[0]}")
        for index, pair in enumerate(present)
        if pair not in expected and pair not in tags
    ]
    # The neighbouring index files may hold some keys of the first and the last record.
    missing = {pair for pair in expected - set(present) if first < pair[0] < last}
    findings += [
        Finding(Area.INDEX, entries.path, 0, f"a key of the record at {offset} has no entry")
        for offset in sorted({offset for offset, _ in missing})
    ]
    return findings


def _finding(entries: _Entries, index: int, text: str) -> Finding:
    number = index + _FIRST_NUMBER
    position = entries.first_at + number * ENTRY_SIZE
    return Finding(Area.INDEX, entries.path, position, f"entry {number}: {text}")


def _keys(store: OfflineStore, first: int, last: int) -> Iterator[_Part]:
    """Yield the parts of the log from the record at `first` to that at `last`."""
    for file in store.log_files:
        if file.end <= first or file.base > last:
            continue
        position = max(first - file.base, 0)
        while position < file.size and file.base + position <= last:
            found = _part(file, position, last + 1 - file.base)
            if found is None:
                break
            yield found
            position = found.end - file.base
        file.release()


def _part(file: MappedFile, position: int, limit: int) -> _Part | None:
    """Return a window of records from `position` on, with the keys of records below `limit`; None
    behind the file's last record.
    """
    window = bytearray(file.view[position : position + _WINDOW_BYTES])
    batch = find_keys(window, file.base + position)
    end = position + batch.consumed
    if not batch.consumed:
        following = find_record_in(file, position)
        if following is None:
            return None
        position = following.offset - file.base
        end = position + following.size
        window = bytearray(file.view[position:end])
        batch = find_keys(window, file.base + position)
    inside = batch.keys.offsets < file.base + limit
    return _Part(
        file.base + position,
        file.base + end,
        batch.keys.hashes[inside],
        batch.keys.offsets[inside],
        window,
    )

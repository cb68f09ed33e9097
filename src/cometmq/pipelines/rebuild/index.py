"""Third pass of a rebuild: make the index files from the keys of the parts.

An index file takes a fixed number of keys, and keys enter in the order of the log. So the pass
knows which key goes into which file before it makes any, and makes each file independently. The
store's own `IndexFile` writes them.

Where retention has deleted messages that the store's index still knows, the pass takes their keys
from that index, so that files begin and end at the same keys as the broker's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.pipelines.rebuild.scan import KEY, Part
from cometmq.pipelines.rebuild.work import INDEX, Work
from cometmq.protocol.messages.record_layout import STORE_TIME_LIMIT_MS
from cometmq.store.files.disk import Disk
from cometmq.store.index.index_file import ENTRY_SIZE, HEADER_SIZE, IndexFile, file_size
from cometmq.store.index.index_keys import IndexKeys

_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert _ENTRY.itemsize == ENTRY_SIZE
_NAME_LENGTH: Final = 17
_NAME_FORMAT: Final = "%Y%m%d%H%M%S%f"
# How many keys are read and put at once.
_CHUNK: Final = 1_000_000


class Seed(NamedTuple):
    """The store's own index file that knows messages from before the log's start, and how many of
    its keys those are.
    """

    path: str
    key_count: int


@dataclass(frozen=True)
class IndexPlan:
    """Which files the index will have.

    seed: may be None.
    ends: for each part, how many keys it and the parts before it have.
    names: of the files.
    """

    seed: Seed | None
    ends: tuple[int, ...]
    names: tuple[str, ...] = ()

    @property
    def seed_count(self) -> int:
        return self.seed.key_count if self.seed else 0

    @property
    def key_count(self) -> int:
        return self.seed_count + (self.ends[-1] if self.ends else 0)


def plan_index(work: Work, parts: Sequence[Part]) -> IndexPlan:
    """Decide which files there will be, and name each like the store's file with the same first
    message.
    """
    found = _store_files(work)
    unnamed = IndexPlan(
        _find_seed(work, found), tuple(accumulate(part.key_count for part in parts))
    )
    capacity = work.config.max_index_num - 1
    by_first = {file.begin_offset: file.path.name for file in found}
    names: list[str] = []
    for first in range(0, unnamed.key_count, capacity):
        key = next(_keys(work, unnamed, first, first + 1))
        offset, timestamp = int(key.offsets[0]), int(key.timestamps[0])
        # A broker names index files by local time.
        if not 0 <= timestamp < STORE_TIME_LIMIT_MS:
            timestamp = 0  # A damaged store time.
        made = datetime.fromtimestamp(timestamp / 1000)  # noqa: DTZ006 - Java names index files by local time
        name = by_first.get(offset, made.strftime(_NAME_FORMAT)[:_NAME_LENGTH])
        if names:
            name = max(name, f"{int(names[-1]) + 1:0{_NAME_LENGTH}d}")
        names.append(name)
    return IndexPlan(unnamed.seed, unnamed.ends, tuple(names))


def build_index_file(work: Work, plan: IndexPlan, number: int) -> None:
    """Make a file of the index, unless it exists."""
    place = work.target / INDEX / plan.names[number]
    if place.is_file():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    config = work.config
    capacity = config.max_index_num - 1
    first = number * capacity
    previous = None if number == 0 else _end_of(work, plan, first)
    disk = Disk()
    with work.making() as made:
        path = made / place.name
        file = IndexFile.create(
            disk, path, config.max_hash_slot_num, config.max_index_num, previous
        )
        if number == 0 and plan.seed is not None:
            file.begin_timestamp = _time_before(work, plan.seed)
        for keys in _keys(work, plan, first, min(first + capacity, plan.key_count)):
            file.put(keys)
        file.sync()
        file.release()
        disk.rename(path, place)
        disk.sync_directory(place.parent)


def last_offset(path: Path) -> int:
    """Return the log offset of the last message that an index file knows."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(HEADER_SIZE)[24:32], "big")


# -- keys --


def _keys(work: Work, plan: IndexPlan, start: int, end: int) -> Iterator[IndexKeys]:
    """Yield the keys from number `start` to below `end`, in pieces."""
    if start < plan.seed_count:
        assert plan.seed is not None
        yield _seed_keys(work, plan.seed, start, min(end, plan.seed_count))
    start, end = max(start - plan.seed_count, 0), end - plan.seed_count
    while start < end:
        part = bisect_right(plan.ends, start)
        low = plan.ends[part - 1] if part else 0
        count = min(end, plan.ends[part], start + _CHUNK) - start
        path = work.part(part) / "keys.bin"
        keys = np.fromfile(path, KEY, count, offset=(start - low) * KEY.itemsize)
        yield IndexKeys(*(keys[name].astype(np.int64) for name in ("hash", "offset", "timestamp")))
        start += count


def _end_of(work: Work, plan: IndexPlan, number: int) -> IndexFile:
    """Return the values of the file that ends before the key of that number, which the next file
    needs.
    """
    key = next(_keys(work, plan, number - 1, number))
    previous = IndexFile(Disk(), Path("unused"), 1, 2)
    previous.end_offset, previous.end_timestamp = int(key.offsets[0]), int(key.timestamps[0])
    return previous


# -- the store's own index --


def _load(work: Work, path: Path) -> IndexFile:
    config = work.config
    return IndexFile.load(Disk(), path, config.max_hash_slot_num, config.max_index_num)


def _store_files(work: Work) -> list[IndexFile]:
    """Return the store's index files that are not obviously damaged."""
    directory = work.store_directory(INDEX)
    size = file_size(work.config.max_hash_slot_num, work.config.max_index_num)
    files = [
        _load(work, path)
        for path in sorted(directory.iterdir() if directory.is_dir() else ())
        if len(path.name) == _NAME_LENGTH and path.name.isdecimal() and path.stat().st_size == size
    ]
    return [file for file in files if file.is_plausible and not file.is_empty]


def _find_seed(work: Work, files: Sequence[IndexFile]) -> Seed | None:
    older = [file for file in files if file.begin_offset < work.min_offset]
    if not older:
        return None
    offsets = _entries(work, older[-1].path)["offset"][: older[-1].count - 1]
    count = int(np.searchsorted(offsets, work.min_offset))
    if (np.diff(offsets[:count]) < 0).any():
        return None
    return Seed(str(older[-1].path), count)


def _entries(work: Work, path: Path) -> npt.NDArray[Any]:
    """Return the entries of an index file from number 1 on."""
    slots_end = file_size(work.config.max_hash_slot_num, 0)
    table: npt.NDArray[Any] = np.memmap(path, _ENTRY, "r", offset=slots_end)
    return table[1:]


def _seed_keys(work: Work, seed: Seed, start: int, end: int) -> IndexKeys:
    file = _load(work, Path(seed.path))
    entries = _entries(work, file.path)[start:end]
    timestamps = file.begin_timestamp + entries["seconds"].astype(np.int64) * 1000
    if start == 0:
        # The first entry's seconds count from the file before.
        timestamps[0] = file.begin_timestamp
    if end == file.count - 1:
        # Entries hold their times in whole seconds only; the header holds the last entry's in ms.
        timestamps[-1] = file.end_timestamp
    return IndexKeys(
        entries["hash"].astype(np.int64), entries["offset"].astype(np.int64), timestamps
    )


def _time_before(work: Work, seed: Seed) -> int:
    """Return the time from which the first entry counts its seconds, 0 if it counts none."""
    path = Path(seed.path)
    seconds = int(_entries(work, path)["seconds"][0])
    return _load(work, path).begin_timestamp - seconds * 1000 if seconds else 0

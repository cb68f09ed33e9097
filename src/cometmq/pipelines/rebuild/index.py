"""Third pass of a rebuild: the files of the index, out of the keys that the parts have.

A file takes a fixed number of keys, and keys enter in the order of the log: so which key goes into
which file is known before any of them is made, and each can be made by itself. The files are written
by the store's own `IndexFile`.

Where retention has taken messages that the store's index still knows, the keys of these are taken from
there: the cuts between files are then where the broker made them.
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
from cometmq.store.files.disk import Disk
from cometmq.store.index.index_file import ENTRY_SIZE, HEADER_SIZE, IndexFile, file_size
from cometmq.store.index.index_keys import IndexKeys

_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert _ENTRY.itemsize == ENTRY_SIZE
_NAME_LENGTH: Final = 17
_NAME_FORMAT: Final = "%Y%m%d%H%M%S%f"
# Keys that are read and put at once.
_CHUNK: Final = 1_000_000


class Seed(NamedTuple):
    """The store's own file that knows messages in front of the log, `key_count` keys of them."""

    path: str
    key_count: int


@dataclass(frozen=True)
class IndexPlan:
    """seed: may be None. ends: how many keys the parts up to each have. names: of the files."""

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
    """Which files there will be, under the names that the store has for them already."""
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
        # Local time, as a broker names them.
        made = datetime.fromtimestamp(timestamp / 1000)  # noqa: DTZ006 - Java names index files by local time
        name = by_first.get(offset, made.strftime(_NAME_FORMAT)[:_NAME_LENGTH])
        if names:
            name = max(name, f"{int(names[-1]) + 1:0{_NAME_LENGTH}d}")
        names.append(name)
    return IndexPlan(unnamed.seed, unnamed.ends, tuple(names))


def build_index_file(work: Work, plan: IndexPlan, number: int) -> None:
    """Make a file of the index, unless it is there."""
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
    """Of the last message that a file knows."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(HEADER_SIZE)[24:32], "big")


# -- keys --


def _keys(work: Work, plan: IndexPlan, start: int, end: int) -> Iterator[IndexKeys]:
    """The keys from number `start` to below `end`, in pieces."""
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
    """What the next file takes from the one that ends in front of the key of that number."""
    key = next(_keys(work, plan, number - 1, number))
    previous = IndexFile(Disk(), Path("unused"), 1, 2)
    previous.end_offset, previous.end_timestamp = int(key.offsets[0]), int(key.timestamps[0])
    return previous


# -- the store's own index --


def _load(work: Work, path: Path) -> IndexFile:
    config = work.config
    return IndexFile.load(Disk(), path, config.max_hash_slot_num, config.max_index_num)


def _store_files(work: Work) -> list[IndexFile]:
    """The index files of the store that are not damaged at first sight."""
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
    """From number 1 on."""
    slots_end = file_size(work.config.max_hash_slot_num, 0)
    table: npt.NDArray[Any] = np.memmap(path, _ENTRY, "r", offset=slots_end)
    return table[1:]


def _seed_keys(work: Work, seed: Seed, start: int, end: int) -> IndexKeys:
    file = _load(work, Path(seed.path))
    entries = _entries(work, file.path)[start:end]
    timestamps = file.begin_timestamp + entries["seconds"].astype(np.int64) * 1000
    if start == 0:
        # The first entry counts from the file before.
        timestamps[0] = file.begin_timestamp
    if end == file.count - 1:
        # Entries know their times to the second only, the header knows the last one's.
        timestamps[-1] = file.end_timestamp
    return IndexKeys(
        entries["hash"].astype(np.int64), entries["offset"].astype(np.int64), timestamps
    )


def _time_before(work: Work, seed: Seed) -> int:
    """A time from which the first entry counts its seconds; 0 for none."""
    path = Path(seed.path)
    seconds = int(_entries(work, path)["seconds"][0])
    return _load(work, path).begin_timestamp - seconds * 1000 if seconds else 0

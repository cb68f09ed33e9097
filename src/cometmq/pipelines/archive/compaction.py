"""Replace the many small files of an hour by few large ones.

The new files are written to staging, read back and compared with the old ones. Then a directory
with the new files is exchanged for the whole old directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.errors import StoreCorruptError
from cometmq.pipelines.archive.batches import staged_files, write_files
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.figures import Found, figures, summed
from cometmq.pipelines.archive.inventory import unreadable
from cometmq.pipelines.archive.layout import DataFile, Figures, Hour, Manifest, State, read_files

# The bounds of one job. Stopping the archive loses the work of at most one job.
_DIRECTORIES_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 8 << 30


class Compacted(NamedTuple):
    """The outcome of compaction. `suspects` are hours with files that differ from their proof;
    compaction leaves them alone.
    """

    directories: int = 0
    files_before: int = 0
    files_after: int = 0
    suspects: frozenset[Hour] = frozenset()

    def plus(self, other: Compacted) -> Compacted:
        return Compacted(
            self.directories + other.directories,
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.suspects | other.suspects,
        )


class Compaction:
    """Compacts hours that have at least `from_files` files smaller than half of `target_bytes`."""

    def __init__(self, spark: Any, archive: Archive, *, from_files: int, target_bytes: int) -> None:
        self._spark = spark
        self._archive = archive
        self._from_files = from_files
        self._target_bytes = target_bytes

    def due(self) -> list[Manifest]:
        """Return the manifests of the directories to compact now, ordered by topic and hour."""
        manifests = self._archive.manifests.values()
        return sorted(
            (
                one
                for one in manifests
                if not one.suspect and len(self._small(one)) >= self._from_files
            ),
            key=lambda one: one.key,
        )

    def run(self, due: Sequence[Manifest]) -> Iterator[Compacted]:
        """Compact in one job after the other, and yield what each has done."""
        for group in self._groups(due):
            yield self._compact(group)

    # Inside

    def _small(self, manifest: Manifest) -> list[DataFile]:
        return [file for file in manifest.files if file.bytes < self._target_bytes // 2]

    def _groups(self, due: Iterable[Manifest]) -> Iterator[list[Manifest]]:
        group: list[Manifest] = []
        size = 0
        for manifest in due:
            group.append(manifest)
            size += sum(file.bytes for file in self._small(manifest))
            if len(group) == _DIRECTORIES_AT_ONCE or size > _BYTES_AT_ONCE:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _compact(self, group: list[Manifest]) -> Compacted:
        before, suspects = self._looked_at(group)
        group = [one for one in group if one.key not in suspects]
        if not group:
            return Compacted(suspects=suspects)
        staged = self._archive.new_staging()
        write_files(self._by_bins(group), staged)
        number = self._archive.state.next_batch
        written = staged_files(staged, f"c{number:08d}", number)
        paths = [staged / hour.directory / file.name for hour in written for file in written[hour]]
        after = figures(read_files(self._spark, staged, paths), by_file=False)
        kept = ((hour, one) for hour, _, one in before if hour not in suspects)
        if summed(kept) != summed((hour, one) for hour, _, one in after):
            raise StoreCorruptError(
                f"compacted files of {self._archive.layout.data} are not what they were made of; "
                "nothing was changed. See that disk and memory of the workers are sound"
            )
        manifests = tuple(self._manifest_of(one, written[one.key], staged) for one in group)
        state = State(next_batch=number + 1, queues=self._archive.state.queues)
        self._archive.commit(Commit("directories", manifests, state, staged.name))
        return Compacted(
            len(group),
            sum(len(self._small(one)) for one in group),
            sum(map(len, written.values())),
            suspects,
        )

    def _looked_at(self, group: list[Manifest]) -> tuple[Found, frozenset[Hour]]:
        """Return the figures of all small files, and the hours whose files are not as they should
        be.
        """
        suspects = {one.key for one in group if not self._is_there(one)}
        there = [one for one in group if one.key not in suspects]
        if not there:
            return [], frozenset(suspects)
        try:
            found = figures(self._read(there), by_file=True)
        except Exception:  # Spark documents no exception type for a torn file
            torn = {path.parent for path in unreadable(self._paths(there))}
            if not torn:
                raise
            hours = {Hour.of(path) for path in torn}
            found, more = self._looked_at([one for one in there if one.key not in hours])
            return found, frozenset(suspects | hours | more)
        by_file: dict[str, set[Figures]] = {}
        for _, name, one in found:
            by_file.setdefault(str(name), set()).add(one)
        suspects |= {
            one.key
            for one in there
            for file in self._small(one)
            if file.queues and set(file.queues) != by_file.get(file.name)
        }
        return found, frozenset(suspects)

    def _is_there(self, manifest: Manifest) -> bool:
        directory = self._archive.layout.data_of(manifest.key)
        sizes = {path.name: path.stat().st_size for path in directory.glob("*.parquet")}
        return sizes == {file.name: file.bytes for file in manifest.files}

    def _read(self, group: Iterable[Manifest]) -> Any:
        return read_files(self._spark, self._archive.layout.data, self._paths(group))

    def _paths(self, group: Iterable[Manifest]) -> list[Path]:
        layout = self._archive.layout
        return [layout.data_of(one.key) / file.name for one in group for file in self._small(one)]

    def _by_bins(self, group: Iterable[Manifest]) -> Any:
        """Return the rows such that those of one new file are next to each other."""
        from pyspark.sql import functions as F

        bins = [
            [file.name for file in files]
            for manifest in group
            for files in packed(self._small(manifest), self._target_bytes)
        ]
        named = [(name, at) for at, names in enumerate(bins) for name in names]
        table = self._spark.createDataFrame(named, "file string, bin int")
        rows = self._read(group).join(F.broadcast(table), "file").drop("file")
        return rows.repartition(min(len(bins), 1000), "topic", "hour", "bin").drop("bin")

    def _manifest_of(
        self, before: Manifest, written: tuple[DataFile, ...], staged: Path
    ) -> Manifest:
        """Return the new manifest, and link the files that are kept beside the new ones."""
        small = {file.name for file in self._small(before)}
        kept = tuple(file for file in before.files if file.name not in small)
        here = self._archive.layout.data_of(before.key)
        for file in kept:
            _link(here / file.name, staged / before.key.directory / file.name)
        return Manifest(*before.key, kept + written, before.log, before.suspect)


def packed(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Divide the files, in their order, into bins of up to `target_bytes`."""
    bins: list[list[DataFile]] = []
    room = 0
    for file in files:
        if not bins or file.bytes > room:
            bins.append([])
            room = target_bytes
        bins[-1].append(file)
        room -= file.bytes
    return bins


def _link(from_: Path, to: Path) -> None:
    try:
        os.link(from_, to)
    except OSError:  # a file system without hard links
        shutil.copy2(from_, to)

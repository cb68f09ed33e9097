"""Replace the many small files of an hour by few large ones.

The new files are written to staging, read back and compared with the old ones. Then a directory
with the new files is exchanged for the whole old directory; where directories cannot be exchanged,
the new files move beside the old ones, which are then removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from cometmq.errors import StoreCorruptError
from cometmq.pipelines.archive.batches import write_files
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.division import packed
from cometmq.pipelines.archive.figures import Found, figures, summed
from cometmq.pipelines.archive.inventory import unreadable
from cometmq.pipelines.archive.layout import DataFile, Figures, Hour, Manifest, read_files
from cometmq.pipelines.archive.staging import staged_files
from cometmq.pipelines.locations import Location, RemotePath, sizes_below

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


class Due(NamedTuple):
    """A directory to compact, and the schema of the files that are made into larger ones."""

    hour: Hour
    form: int


class Compaction:
    """Compacts hours that have at least `from_files` files smaller than half of `target_bytes`."""

    def __init__(self, spark: Any, archive: Archive, *, from_files: int, target_bytes: int) -> None:
        self._spark = spark
        self._archive = archive
        self._from_files = from_files
        self._target_bytes = target_bytes

    def due(self) -> list[Due]:
        """Return the directories to compact now, ordered by schema, topic and hour."""
        manifests = sorted(self._archive.manifests.values(), key=lambda one: one.key)
        return [
            Due(one.key, form)
            for form in sorted(self._archive.schemas)
            for one in manifests
            if not one.suspect and len(self._small(one, form)) >= self._from_files
        ]

    def run(self, due: Sequence[Due]) -> Iterator[Compacted]:
        """Compact in one job after the other, and yield what each has done."""
        for form in sorted(self._archive.schemas):
            for hours in self._groups([one.hour for one in due if one.form == form], form):
                # As they are now: a job for another schema may have changed them.
                yield self._compact([self._archive.manifests[hour] for hour in hours], form)

    # Inside

    def _small(self, manifest: Manifest, form: int) -> list[DataFile]:
        least = self._target_bytes // 2
        return [file for file in manifest.files if file.bytes < least and file.form == form]

    def _groups(self, due: Iterable[Hour], form: int) -> Iterator[list[Hour]]:
        group: list[Hour] = []
        size = 0
        for hour in due:
            group.append(hour)
            small = self._small(self._archive.manifests[hour], form)
            size += sum(file.bytes for file in small)
            if len(group) == _DIRECTORIES_AT_ONCE or size > _BYTES_AT_ONCE:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _compact(self, group: list[Manifest], form: int) -> Compacted:
        before, suspects = self._looked_at(group, form)
        group = [one for one in group if one.key not in suspects]
        if not group:
            return Compacted(suspects=suspects)
        staged = self._archive.new_staging()
        schema = self._archive.schema(form)
        write_files(self._by_bins(group, form), staged, schema)
        number = self._archive.state.next_batch
        found = staged_files(staged, f"c{number:08d}", number, form)
        written = found.files
        paths = [
            staged / hour.directory / found.sources.get(file.name, file.name)
            for hour in written
            for file in written[hour]
        ]
        after = figures(read_files(self._spark, staged, paths, schema), schema, by_file=False)
        kept = ((hour, one) for hour, _, one in before if hour not in suspects)
        if summed(kept) != summed((hour, one) for hour, _, one in after):
            raise StoreCorruptError(
                f"compacted files of {self._archive.layout.data} are not what they were made of; "
                "nothing was changed. See that disk and memory of the workers are sound"
            )
        manifests = tuple(self._manifest_of(one, form, written[one.key], staged) for one in group)
        state = replace(self._archive.state, next_batch=number + 1)
        if isinstance(staged, RemotePath):
            old = tuple(tuple(file.name for file in self._small(one, form)) for one in group)
            commit = Commit(
                "replaced", manifests, state, staged.name, sources=found.sources, removed=old
            )
        else:
            commit = Commit("directories", manifests, state, staged.name)
        self._archive.commit(commit)
        return Compacted(
            len(group),
            sum(len(self._small(one, form)) for one in group),
            sum(map(len, written.values())),
            suspects,
        )

    def _looked_at(self, group: list[Manifest], form: int) -> tuple[Found, frozenset[Hour]]:
        """Return the figures of all small files, and the hours whose files are not as they should
        be.
        """
        suspects = {one.key for one in group if not self._is_there(one)}
        there = [one for one in group if one.key not in suspects]
        if not there:
            return [], frozenset(suspects)
        try:
            schema = self._archive.schema(form)
            found = figures(self._read(there, form), schema, by_file=True)
        except Exception:  # Spark documents no exception type for a torn file
            paths = self._paths(there, form)
            torn = {path.parent for path in unreadable(dict.fromkeys(paths, schema))}
            if not torn:
                raise
            hours = {Hour.of(path) for path in torn}
            found, more = self._looked_at([one for one in there if one.key not in hours], form)
            return found, frozenset(suspects | hours | more)
        by_file: dict[str, set[Figures]] = {}
        for _, name, one in found:
            by_file.setdefault(str(name), set()).add(one)
        suspects |= {
            one.key
            for one in there
            for file in self._small(one, form)
            if file.queues and set(file.queues) != by_file.get(file.name)
        }
        return found, frozenset(suspects)

    def _is_there(self, manifest: Manifest) -> bool:
        there = sizes_below(self._archive.layout.data_of(manifest.key)).items()
        sizes = {name: size for name, size in there if name.endswith(".parquet")}
        return sizes == {file.name: file.bytes for file in manifest.files}

    def _read(self, group: Iterable[Manifest], form: int) -> Any:
        data, schema = self._archive.layout.data, self._archive.schema(form)
        return read_files(self._spark, data, self._paths(group, form), schema)

    def _paths(self, group: Iterable[Manifest], form: int) -> list[Location]:
        layout = self._archive.layout
        return [
            layout.data_of(one.key) / file.name for one in group for file in self._small(one, form)
        ]

    def _by_bins(self, group: Iterable[Manifest], form: int) -> Any:
        """Return the rows such that those of one new file are next to each other."""
        from pyspark.sql import functions as F

        bins = [
            [file.name for file in files]
            for manifest in group
            for files in packed(self._small(manifest, form), self._target_bytes)
        ]
        named = [(name, at) for at, names in enumerate(bins) for name in names]
        table = self._spark.createDataFrame(named, "file string, bin int")
        rows = self._read(group, form).join(F.broadcast(table), "file").drop("file")
        if hasattr(rows, "repartitionById"):  # PySpark 4.1 and newer
            return rows.repartitionById(len(bins), "bin").drop("bin")
        # Bins of an hour whose hashes meet become one file.
        return rows.repartition(len(bins), "topic", "hour", "bin").drop("bin")

    def _manifest_of(
        self, before: Manifest, form: int, written: tuple[DataFile, ...], staged: Location
    ) -> Manifest:
        """Return the new manifest, and link the files that are kept beside the new ones if
        directories are to be exchanged.
        """
        small = {file.name for file in self._small(before, form)}
        kept = tuple(file for file in before.files if file.name not in small)
        here = self._archive.layout.data_of(before.key)
        if isinstance(here, Path) and isinstance(staged, Path):
            for file in kept:
                _link(here / file.name, staged / before.key.directory / file.name)
        return Manifest(*before.key, kept + written, before.log, before.suspect)


def _link(from_: Path, to: Path) -> None:
    try:
        os.link(from_, to)
    except OSError:  # a file system without hard links
        shutil.copy2(from_, to)

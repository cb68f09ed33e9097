"""Replace the many small files of an hour by few large ones.

The new files are written to staging, read back and compared with the old ones, and then committed:
the commit has the new files stand for the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from cometmq.errors import StoreCorruptError
from cometmq.pipelines.archive.batches import write_files
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.division import packed
from cometmq.pipelines.archive.layout import DataFile, Figures, Hour, Manifest, read_files
from cometmq.pipelines.archive.proving.figures import Found, Sum, figures, summed
from cometmq.pipelines.archive.proving.inventory import unreadable
from cometmq.pipelines.archive.schemas import Schema
from cometmq.pipelines.archive.staging import read_back, staged_files
from cometmq.pipelines.locations import Location

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


class _Written(NamedTuple):
    """New files, their names in staging as in `Staged`, and the figures of each as read back."""

    files: dict[Hour, tuple[DataFile, ...]]
    sources: dict[str, str]
    figures: dict[tuple[Hour, str], list[Figures]]


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
        """Compact in one job after the other, and yield the result of each."""
        for form in sorted(self._archive.schemas):
            for hours in self._groups([one.hour for one in due if one.form == form], form):
                # Read again, since a job for another schema may have changed them.
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
        suspects = {one.key for one in group if not self._is_there(one)}
        left = [one for one in group if one.key not in suspects]
        while left:
            staged = self._archive.new_staging()
            written = self._written(left, form, staged)
            if not isinstance(written, _Written):
                suspects |= written
                left = [one for one in left if one.key not in written]
                staged.remove()
                continue
            self._commit(left, form, staged, written)
            files = sum(map(len, written.files.values()))
            before = sum(len(self._small(one, form)) for one in left)
            return Compacted(len(left), before, files, frozenset(suspects))
        return Compacted(suspects=frozenset(suspects))

    def _written(
        self, group: Sequence[Manifest], form: int, staged: Location
    ) -> _Written | set[Hour]:
        """Write the new files, read them back and compare them with the old ones. Return the hours
        whose old files are not as they should be, if there are some.

        The figures of a proved file are in its manifest, so that only the other files are read for
        theirs; if a proved file has changed meanwhile, the sums show it.
        """
        schema = self._archive.schema(form)
        try:
            before = self._figures(group, form)
            write_files(self._by_bins(group, form), staged, schema)
        except Exception:  # Spark documents no exception type for a torn file
            torn = unreadable(dict.fromkeys(self._paths(group, form), schema))
            if not torn:
                raise
            return {Hour.of(path.parent) for path in torn}
        number = self._archive.state.next_batch
        found = staged_files(staged, f"c{number:08d}", number, form)
        of_file = read_back(self._figures_below, staged, found, schema)
        after: Found = [
            (hour, name, one) for (hour, name), parts in of_file.items() for one in parts
        ]
        if _sums(before) == _sums(after):
            return _Written(found.files, found.sources, of_file)
        if changed := self._changed(group, form):
            return changed
        raise StoreCorruptError(
            f"compacted files of {self._archive.layout.data} differ from the files that "
            "they were made of; nothing was changed. Check disk and memory of the workers"
        )

    def _commit(
        self, group: Sequence[Manifest], form: int, staged: Location, written: _Written
    ) -> None:
        number = self._archive.state.next_batch
        manifests = tuple(self._manifest_of(one, form, written) for one in group)
        state = replace(self._archive.state, next_batch=number + 1)
        old = tuple(tuple(file.name for file in self._small(one, form)) for one in group)
        self._archive.commit(
            Commit("replaced", manifests, state, staged.name, sources=written.sources, removed=old)
        )

    def _figures(self, group: Iterable[Manifest], form: int) -> Found:
        """Return the figures of all small files: those of their proofs, else as they are now."""
        found: Found = []
        unproved: list[Location] = []
        for one in group:
            directory = self._archive.layout.data_of(one.key)
            for file in self._small(one, form):
                found += [(one.key, file.name, part) for part in file.queues]
                if not file.queues:
                    unproved.append(directory / file.name)
        if unproved:
            found += self._figures_of(unproved, form)
        return found

    def _changed(self, group: Iterable[Manifest], form: int) -> set[Hour]:
        """Return the hours with a small file that differs from its proof."""
        now: dict[tuple[Hour, str], set[Figures]] = {}
        group = list(group)
        for hour, name, one in self._figures_of(self._paths(group, form), form):
            now.setdefault((hour, str(name)), set()).add(one)
        return {
            one.key
            for one in group
            for file in self._small(one, form)
            if file.queues and set(file.queues) != now.get((one.key, file.name))
        }

    def _is_there(self, manifest: Manifest) -> bool:
        there = self._archive.layout.data_of(manifest.key).sizes().items()
        sizes = {name: size for name, size in there if name.endswith(".parquet")}
        return sizes == {file.name: file.bytes for file in manifest.files}

    def _figures_below(self, base: Location, paths: Sequence[Location], schema: Schema) -> Found:
        return figures(read_files(self._spark, base, paths, schema), schema, by_file=True)

    def _figures_of(self, paths: Sequence[Location], form: int) -> Found:
        schema = self._archive.schema(form)
        return self._figures_below(self._archive.layout.data, paths, schema)

    def _read(self, paths: Sequence[Location], form: int) -> Any:
        data, schema = self._archive.layout.data, self._archive.schema(form)
        return read_files(self._spark, data, paths, schema)

    def _paths(self, group: Iterable[Manifest], form: int) -> list[Location]:
        layout = self._archive.layout
        return [
            layout.data_of(one.key) / file.name for one in group for file in self._small(one, form)
        ]

    def _by_bins(self, group: Sequence[Manifest], form: int) -> Any:
        """Return the rows such that those of one new file are next to each other."""
        from pyspark.sql import functions as F

        bins = [
            [file.name for file in files]
            for manifest in group
            for files in packed(self._small(manifest, form), self._target_bytes)
        ]
        named = [(name, at) for at, names in enumerate(bins) for name in names]
        table = self._spark.createDataFrame(named, "file string, bin int")
        rows = (
            self._read(self._paths(group, form), form).join(F.broadcast(table), "file").drop("file")
        )
        if hasattr(rows, "repartitionById"):  # PySpark 4.1 and newer
            return rows.repartitionById(len(bins), "bin").drop("bin")
        # Bins of an hour whose hashes meet become one file.
        return rows.repartition(len(bins), "topic", "hour", "bin").drop("bin")

    def _manifest_of(self, before: Manifest, form: int, written: _Written) -> Manifest:
        """Return the new manifest.

        A file made of proved files is proved: it has the sums of their figures, and was read back.
        """
        small = self._small(before, form)
        names = {file.name for file in small}
        kept = tuple(file for file in before.files if file.name not in names)
        new = written.files[before.key]
        if all(file.queues for file in small):
            of_file = written.figures
            new = tuple(
                replace(file, queues=tuple(sorted(of_file[before.key, file.name]))) for file in new
            )
        return Manifest(*before.key, kept + new, before.log, before.suspect)


def _sums(found: Found) -> dict[Sum, Figures]:
    return summed((hour, one) for hour, _, one in found)

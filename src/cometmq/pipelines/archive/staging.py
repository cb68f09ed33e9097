"""Name the files that a job has written to staging as they will be named in `data`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from cometmq.pipelines.archive.layout import DataFile, Figures, Hour
from cometmq.pipelines.archive.proving.figures import Found
from cometmq.pipelines.archive.schemas import Schema
from cometmq.pipelines.locations import Location

_WRITTEN: Final = "topic=*/hour=*/part-*.parquet"


class Staged(NamedTuple):
    """The files that a job has written, as they will be in `data`, and the names in staging of
    those that have another name there.
    """

    files: dict[Hour, tuple[DataFile, ...]]
    sources: dict[str, str]


def staged_files(staged: Location, prefix: str, number: int, form: int) -> Staged:
    """Give the files of the schema `form` that a job has written the names that they will have in `data`.

    Where a renaming may be a copy, they get them on their way there.
    """
    found: dict[Hour, list[DataFile]] = {}
    sources = {}
    names = [one for one in staged.sizes().items() if PurePath(one[0]).match(_WRITTEN)]
    for at, (below, size) in enumerate(names):
        path = PurePath(below)
        name = f"{prefix}-{at:04d}.parquet"
        now = staged.files.named(str(staged / path), name)
        if now != name:
            sources[name] = now
        found.setdefault(Hour.of(path.parent), []).append(DataFile(name, size, number, form=form))
    return Staged({hour: tuple(files) for hour, files in found.items()}, sources)


def read_back(
    figures_of: Callable[[Location, Sequence[Location], Schema], Found],
    staged: Location,
    found: Staged,
    schema: Schema,
) -> dict[tuple[Hour, str], list[Figures]]:
    """Return the figures of the staged files of a schema, as `figures_of` reads them below `staged`."""
    # By hour, because a task gives its files in all hours the same name.
    names = {
        (hour, found.sources.get(file.name, file.name)): file.name
        for hour, files in found.files.items()
        for file in files
        if file.form == schema.number
    }
    of_file: dict[tuple[Hour, str], list[Figures]] = {}
    if names:
        paths = [staged / hour.directory / name for hour, name in names]
        for hour, name, one in figures_of(staged, paths, schema):
            of_file.setdefault((hour, names[hour, str(name)]), []).append(one)
    return of_file

"""Name the files that a job has written to staging as they will be named in `data`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final, NamedTuple

from cometmq.pipelines.archive.layout import DataFile, Hour
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

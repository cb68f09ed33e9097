"""Compare the data directory of an archive with its manifests. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from cometmq.pipelines.archive.layout import Figures, Hour, Layout, Manifest
from cometmq.pipelines.archive.schemas import Schema, misfit_of
from cometmq.pipelines.locations import Location, readable_here


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something in the archive that does not fit. Offsets run from `first` to `last`, both
    included.

    kind: file missing, strange file, file changed, file unreadable, messages missing, messages twice,
        messages differ, strange messages, more differences (not listed one by one), offsets without
        messages, gone before the proof, or hour differs.
    """

    kind: str
    topic: str
    hour: str | None = None
    file: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    first: int | None = None
    last: int | None = None
    detail: str = ""


class Inventory(NamedTuple):
    """The contents of the data directory. `listed` are the existing files of each hour that its
    manifest names, `strange` the others.
    """

    problems: list[Problem]
    listed: dict[Hour, list[Location]]
    strange: dict[Hour, list[Location]]

    @property
    def suspects(self) -> set[Hour]:
        named = {Hour(one.topic, one.hour or "") for one in self.problems}
        return named | {hour for hour, paths in self.strange.items() if paths}


def take_inventory(layout: Layout, manifests: Mapping[Hour, Manifest]) -> Inventory:
    """Look at each directory of data: at names and sizes, not into the files."""
    found = Inventory([], {}, {})
    there = layout.data_files()
    for hour in sorted({*manifests, *there}):
        sizes = dict(there.get(hour, {}))
        _look(layout.data_of(hour), sizes, manifests.get(hour, Manifest(*hour)), found)
    return found


def _look(directory: Location, sizes: dict[str, int], manifest: Manifest, found: Inventory) -> None:
    hour = manifest.key
    found.listed[hour] = [directory / f.name for f in manifest.files if f.name in sizes]
    for file in manifest.files:
        size = sizes.pop(file.name, None)
        if size is None:
            said = f"it had {file.bytes:,} bytes"
            found.problems.extend(of_file("file missing", hour, file.name, file.queues, said))
        elif size != file.bytes:
            said = f"has {size:,} bytes, had {file.bytes:,}"
            found.problems.extend(of_file("file changed", hour, file.name, file.queues, said))
    found.strange[hour] = [directory / name for name in sorted(sizes)]


def of_file(
    kind: str, hour: Hour, name: str, queues: Iterable[Figures], detail: str
) -> list[Problem]:
    """Return one problem for each queue that the file is known to hold messages of, or one for the
    file.
    """
    of_queues = [
        Problem(kind, *hour, name, one.broker, one.queue_id, one.first, one.last, detail)
        for one in queues
    ]
    return of_queues or [Problem(kind, *hour, name, detail=detail)]


def unreadable(files: Mapping[Location, Schema]) -> dict[Location, str]:
    """Return the Parquet files that cannot be read to their end as files of their schema, each with
    the reason.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found: dict[Location, str] = {}
    for path, schema in files.items():
        try:
            with readable_here(path) as local, parquet.ParquetFile(local) as file:
                if said := misfit_of(file, schema):
                    found[path] = said
                    continue
                for _ in file.iter_batches():
                    pass
        except (OSError, pa.ArrowException) as error:
            found[path] = str(error).splitlines()[0][:200]
    return found

"""The work of decoded tables without Spark: the same decoder, and files as Spark would write them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.decoded.work import Ranges
from cometmq.pipelines.archive.layout import Figures, Hour
from cometmq.pipelines.archive.proving.figures import Found
from cometmq.pipelines.archive.schemas import Schema
from cometmq.pipelines.archive.tables.columns import TABLE
from cometmq.pipelines.locations import Location
from cometmq.spark.decoding.batches import BodyDecoder, FittingIds, Sample, SchemaIds, Wire
from cometmq.spark.decoding.columns import REASON
from cometmq.spark.decoding.kinds import arrow_type


def schema_of(columns: dict[str, str]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, arrow_type(kind)) for name, kind in columns.items() if name != "topic"]
    )


class ArrowWork:
    def __init__(self) -> None:
        self._files = count()

    def schema_ids(
        self, _base: Location, files: Sequence[Location], ranges: Ranges, wire: Wire, most: int
    ) -> list[int]:
        counts: Counter[int] = Counter()
        for file in files:
            for batch in SchemaIds(wire)(self._rows(file, ranges).to_batches()):
                for row in batch.to_pylist():
                    counts[row["id"]] += row["messages"]
        return sorted(counts, key=lambda one: (-counts[one], one))[:most]

    def reasons(
        self, _base: Location, files: Sequence[Location], ranges: Ranges, fitting: FittingIds
    ) -> list[tuple[int, str | None]]:
        found = [fitting(self._rows(file, ranges).to_batches()) for file in files]
        rows = [row for one in found for batch in one for row in batch.to_pylist()]
        return [(row["id"], row["reason"]) for row in rows]

    def sample(
        self, _base: Location, files: Sequence[Location], ranges: Ranges, count: int
    ) -> list[bytes]:
        bodies = [body for file in files for body in self._rows(file, ranges)["body"].to_pylist()]
        return list(Sample(count).taken(bodies))

    def write(
        self,
        _base: Location,
        files: Sequence[Location],
        ranges: Ranges,
        decoder: BodyDecoder,
        staged: Location,
        fits: tuple[str, Schema],
        others: tuple[str, Schema],
    ) -> None:
        for file in files:
            rows = self._rows(file, ranges)
            found = [row for one in decoder(rows.to_batches()) for row in one.to_pylist()]
            for name, schema in (fits, others):
                part = [row for row in found if (row[REASON] is None) == (name == fits[0])]
                hour = Hour(name, Hour.of(file.parent).hour)
                self._write(Path(str(staged / hour.directory)), next(self._files), part, schema)

    def figures(self, _base: Location, files: Sequence[Location], schema: Schema) -> Found:
        found: Found = []
        for file in files:
            rows = parquet.read_table(str(file), partitioning=None).to_pylist()
            offsets = [row["queue_offset"] for row in rows]
            total = sum(int(hashlib.md5(repr(row).encode()).hexdigest()[:8], 16) for row in rows)
            ends = (len(rows), min(offsets), max(offsets), f"{total:x}", schema.number)
            found.append((Hour.of(file.parent), file.name, Figures("broker-a", 0, *ends)))
        return found

    def compact(self, _archive: Archive) -> Iterator[None]:
        """Leave the files as they are: compaction has tests with Spark."""
        yield from ()

    def _rows(self, file: Location, ranges: Ranges) -> pa.Table:
        wanted = schema_of(TABLE)
        rows = parquet.read_table(str(file), partitioning=None).to_pylist()
        queue = MessageQueue(Hour.of(file.parent).topic, "broker-a", 0)
        low, high = ranges.get(queue, (0, 0))
        chosen = [row for row in rows if low <= row["queue_offset"] < high]
        return pa.Table.from_pylist(chosen, wanted)

    def _write(self, directory: Path, at: int, rows: list[dict[str, Any]], schema: Schema) -> None:
        if rows:
            directory.mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist(rows, schema_of(schema.columns))
            parquet.write_table(table, directory / f"part-{at:05d}.parquet")

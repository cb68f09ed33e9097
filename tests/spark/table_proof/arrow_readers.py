"""Read snapshots by PyIceberg or deltalake.

python -m tests.spark.table_proof.arrow_readers iceberg|delta ARCHIVE reads JSON from standard input: the snapshots,
and the snapshot from which it reads bodies. It prints JSON: for each snapshot a row for each queue, and the sums of
the bodies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from tests.spark.table_archives import iceberg_table
from tests.spark.table_proof.log import start_of_md5

_QUEUE: Final = ["topic", "broker", "queue_id"]
_SUMS: Final = [
    ("queue_offset", "count"),
    ("queue_offset", "min"),
    ("queue_offset", "max"),
    ("queue_offset", "sum"),
    ("body_crc", "sum"),
]
_COLUMNS: Final = (*_QUEUE, "queue_offset", "body_crc")
_BODIES: Final = ("body", "properties")

# Reads columns of a snapshot, as batches.
Reader = Callable[[int, tuple[str, ...]], Iterable[Any]]


def of_iceberg(archive: str) -> Reader:
    table = iceberg_table(archive)

    def read(snapshot: int, columns: tuple[str, ...]) -> Iterable[Any]:
        scan = table.scan(snapshot_id=snapshot, selected_fields=columns)
        batches: Iterable[Any] = scan.to_arrow_batch_reader()
        return batches

    return read


def of_delta(archive: str) -> Reader:
    from deltalake import DeltaTable

    def read(version: int, columns: tuple[str, ...]) -> Iterable[Any]:
        table = DeltaTable(f"{archive}/_tables/files", version=version)
        batches: Iterable[Any] = table.to_pyarrow_dataset().to_batches(columns=list(columns))
        return batches

    return read


def sums(batches: Iterable[Any]) -> list[list[Any]]:
    found = pa.Table.from_batches(batches).group_by(_QUEUE).aggregate(_SUMS)
    names = [*_QUEUE, *(f"{name}_{kind}" for name, kind in _SUMS)]
    return [list(row) for row in zip(*(found[name].to_pylist() for name in names), strict=True)]


def bodies(batches: Iterable[Any]) -> list[int]:
    rows = size = of_bodies = of_keys = 0
    for batch in batches:
        rows += batch.num_rows
        for body in batch.column("body"):
            content = body.as_buffer().to_pybytes()
            size += len(content)
            of_bodies += start_of_md5(content)
        properties = batch.column("properties")
        name = pa.scalar("KEYS", properties.type.key_type)
        for key in pc.map_lookup(properties, name, "first").to_pylist():
            of_keys += start_of_md5(key.encode())
    return [rows, size, of_bodies, of_keys]


def main(format_: str, archive: str) -> None:
    wanted = json.load(sys.stdin)
    read = (of_iceberg if format_ == "iceberg" else of_delta)(archive)
    json.dump(
        {
            "sums": [sums(read(one, _COLUMNS)) for one in wanted["snapshots"]],
            "bodies": bodies(read(wanted["newest"], _BODIES)),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

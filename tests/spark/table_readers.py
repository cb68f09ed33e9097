"""Reads published tables by DuckDB's extensions, which know nothing of CometMQ.

python table_readers.py ARCHIVE: a line of JSON: for each format, the rows of each topic and the sum of their
queue offsets at each snapshot, the oldest first.

python table_readers.py s3://BUCKET/ARCHIVE KEY SECRET HOST:PORT: the same of a server of S3.

python table_readers.py ARCHIVE PROGRAM: runs a program of docs/tables.md on the archive.

python table_readers.py --sql: runs the statements that standard input has as JSON: a line with the rows of all.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import duckdb

EXTENSIONS = ("avro", "icu", "httpfs", "iceberg", "delta")


def load_extensions() -> None:
    """Load those that lie beside DuckDB as packages: its own server of extensions is no registry."""
    for name in EXTENSIONS:
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        place = Path(spec.submodule_search_locations[0])
        for file in place.glob(f"extensions/*/{name}.duckdb_extension"):
            duckdb.sql(f"LOAD '{file}'")


def sums(source: str) -> dict[str, list[int]]:
    query = f"SELECT topic, count(*), sum(queue_offset) FROM {source} GROUP BY topic"
    return {topic: [int(count), int(total)] for topic, count, total in duckdb.sql(query).fetchall()}


def read(archive: str) -> dict[str, list[dict[str, list[int]]]]:
    iceberg, delta = f"{archive}/_tables/iceberg", f"{archive}/_tables/files"
    listed = f"SELECT snapshot_id FROM iceberg_snapshots('{iceberg}') ORDER BY sequence_number"
    snapshots = [one for (one,) in duckdb.sql(listed).fetchall()]
    logs = duckdb.sql(f"SELECT file FROM glob('{delta}/_delta_log/*.json')").fetchall()
    versions = sorted(int(Path(one).stem) for (one,) in logs)
    return {
        "iceberg": [
            sums(f"iceberg_scan('{iceberg}', snapshot_from_id = {one}::UBIGINT)")
            for one in snapshots
        ],
        "iceberg now": [sums(f"iceberg_scan('{iceberg}')")],
        "delta": [sums(f"delta_scan('{delta}', version = {one})") for one in versions],
        "delta now": [sums(f"delta_scan('{delta}')")],
    }


def reach(key: str, secret: str, endpoint: str) -> None:
    """Give DuckDB access to a server of S3 without TLS."""
    duckdb.sql(
        f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION 'us-east-1', "
        f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
    )


def run(statements: list[str]) -> list[list[object]]:
    """Return the rows of all statements, in their order."""
    duckdb.sql("SET memory_limit = '2GB'")
    return [list(row) for one in statements for row in duckdb.sql(one).fetchall()]


if __name__ == "__main__":
    load_extensions()
    if sys.argv[1] == "--sql":
        json.dump(run(json.load(sys.stdin)), sys.stdout, default=int)
    elif sys.argv[1].startswith("s3://"):
        reach(*sys.argv[2:])
        json.dump(read(sys.argv[1]), sys.stdout)
    elif len(sys.argv) > 2:
        program = sys.argv[2].replace("/data/archive", sys.argv[1])
        kept = [line for line in program.splitlines() if "INSTALL" not in line]
        exec("\n".join(kept))
    else:
        json.dump(read(sys.argv[1]), sys.stdout)

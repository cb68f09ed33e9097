"""Kills the decoding of an archive's topics at every so many of its steps, and lets another process go on.

python kill_decoding.py DIRECTORY SCHEMA: a line of JSON for each step: its number, whether the process was
killed, and the offsets of the rows of both tables in the end, as files and as the Delta tables have them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyarrow import parquet
from tests.spark.arrow_work import ArrowWork
from tests.spark.table_archives import LATER, ORDERS, MadeArchive
from tests.unit.pipelines.dying import die_at

from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.decoded.decoding import Decoding
from cometmq.pipelines.archive.schemas import COMPACT
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.configuration import Decode

SETTINGS = TableSettings(publish=["delta"])
TABLES = ("orders", "orders_undecodable")
EVERY = 7
MOST_STEPS = 1000


def body_of(offset: int) -> bytes:
    if offset % 5 == 4:
        return b"no JSON %d" % offset
    return json.dumps({"id": f"O-{offset}", "cents": offset * 100}).encode()


def decode_all(path: Path, schema: str) -> None:
    rules = {"orders": Decode(format="json", schema=schema)}
    with (
        Archive(path) as archive,
        Decoding(ArrowWork(), archive, rules, SETTINGS, max_messages=6) as tables,
    ):
        tables.catch_up()
        if any(not line.holds for line in tables.lines()) or tables.problems(everything=True):
            raise AssertionError(str(tables.lines()))


def offsets_of(path: Path) -> dict[str, Any]:
    from deltalake import DeltaTable

    found: dict[str, Any] = {}
    for table in TABLES:
        files = (path / "_decoded" / "data" / f"topic={table}").glob("*/*.parquet")
        rows = [parquet.read_table(file, partitioning=None).to_pylist() for file in files]
        found[table] = sorted(row["queue_offset"] for one in rows for row in one)
        delta = DeltaTable(str(path / "_decoded" / "_tables" / table / "files")).to_pyarrow_table()
        found[f"delta {table}"] = sorted(delta["queue_offset"].to_pylist())
    return found


def main(directory: Path, schema: str) -> None:
    for step in range(0, MOST_STEPS, EVERY):
        path = directory / str(step)
        with Archive(path) as archive:
            made = MadeArchive(archive, body_of)
            made.batch(COMPACT, {ORDERS: (0, 8)})
            made.batch(COMPACT, {ORDERS: (8, 2), LATER: (10, 3)})
        killed = die_at(step, path, lambda where=path: decode_all(where, schema))  # type: ignore[misc]  # mypy cannot infer it
        child = os.fork()
        if child == 0:
            try:
                decode_all(path, schema)
                (path / "found.json").write_text(json.dumps(offsets_of(path)))
            except BaseException as error:  # noqa: BLE001 - the child has no one to raise it to
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise SystemExit(f"step {step}: the next process failed")
        found = json.loads((path / "found.json").read_bytes())
        sys.stdout.write(json.dumps({"step": step, "killed": killed, **found}) + "\n")
        sys.stdout.flush()
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

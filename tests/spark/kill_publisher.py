"""Kills publications at every fifth of their steps, and lets another process go on.

python kill_publisher.py DIRECTORY: a line of JSON for each step: its number, whether the process was killed,
and for each format the snapshots that are there in the end, as [commit, rows, sum of queue offsets].

Each step is a process that is forked from one which has only imported what it needs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow
from tests.spark.table_archives import LATER, ORDERS, RETRIES, MadeArchive, tables_of

from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.schemas import ALL, COMPACT
from cometmq.pipelines.archive.tables import links
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.archive.tables.settings import TableSettings

SETTINGS = TableSettings(publish=["iceberg", "delta"])
MOST_STEPS = 60


def die_at(step: int) -> None:
    """Kill this process before or after one of the calls that change a table or a link."""
    count = 0

    def tick() -> None:
        nonlocal count
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tick()
            result = function(*args, **kwargs)
            tick()
            return result

        return call

    catalog: Any = pyiceberg.catalog.sql.SqlCatalog
    table: Any = deltalake.DeltaTable
    places: list[tuple[Any, str]] = [
        (links, "_link"),
        (catalog, "create_table"),
        (catalog, "commit_table"),
        (table, "create_write_transaction"),
    ]
    for owner, name in places:
        setattr(owner, name, wrapped(getattr(owner, name)))


def commits(path: Path) -> None:
    with Archive(path) as archive:
        publisher = Publisher(archive, SETTINGS)
        archive.after_commit = publisher.publish
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (0, 4), RETRIES: (0, 3)})
        made.batch(ALL, {ORDERS: (4, 2), LATER: (6, 2)})
        made.batch(ALL, {LATER: (8, 2)})
        made.compact(LATER)


def rest(path: Path) -> None:
    with Archive(path) as archive:
        Publisher(archive, SETTINGS).publish()
    with (path / "found.json").open("w") as file:
        json.dump(tables_of(path), file)


def in_a_process(work: Callable[[], None]) -> bool:
    """Return whether the process was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the child has no one to raise it to
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def main(directory: Path) -> None:
    # Calls are steps before and after them, so that every fifth one is now this and now that.
    for step in range(0, MOST_STEPS, 5):
        path = directory / str(step)

        def killed_work(at: int = step, where: Path = path) -> None:
            die_at(at)
            commits(where)

        def rest_of_it(where: Path = path) -> None:
            rest(where)

        killed = in_a_process(killed_work)
        in_a_process(rest_of_it)
        found = json.loads((path / "found.json").read_bytes())
        sys.stdout.write(json.dumps({"step": step, "killed": killed, **found}) + "\n")
        sys.stdout.flush()
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))

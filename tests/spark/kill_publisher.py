"""Kill publications at some of their steps, and let another process go on.

python kill_publisher.py DIRECTORY EVERY: a line of JSON for each step of so many: its number, whether the
process was killed, and for each format the snapshots that are there in the end, as [commit, rows, sum of queue
offsets].

python kill_publisher.py s3://BUCKET EVERY ENDPOINT: the same in S3.

Each step is a process that is forked from one which has only imported what it needs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow
from tests.spark.bucket import PACKAGES, Bucket, access_to
from tests.spark.table_archives import LATER, ORDERS, RETRIES, MadeArchive, tables_of

from cometmq.pipelines.archive import lease
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.schemas import ALL, COMPACT
from cometmq.pipelines.archive.tables import links
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.s3_access import S3Access

SETTINGS = TableSettings(publish=["iceberg", "delta"])
MOST_STEPS = 100


class Killer:
    """Kills this process before or after one of the calls that change a table or a link."""

    def __init__(self, step: int) -> None:
        self._left = step

    def tick(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def of_path(self, path: str) -> None:
        """Count only changes of tables: test_archive_remote.py kills at changes of the archive."""
        if "/_tables/" in path:
            self.tick()

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            result = function(*args, **kwargs)
            self.tick()
            return result

        return call

    def lie_in_wait(self) -> None:
        catalog: Any = pyiceberg.catalog.sql.SqlCatalog
        table: Any = deltalake.DeltaTable
        places: list[tuple[Any, str]] = [
            (links, "_link"),
            (catalog, "create_table"),
            (catalog, "commit_table"),
            (table, "create_write_transaction"),
        ]
        for owner, name in places:
            setattr(owner, name, self.wrapped(getattr(owner, name)))
        reach: Any = S3Access
        of_arrow = reach.of_arrow
        reach.of_arrow = lambda access: Counted(of_arrow(access), self)


class Counted:
    """Arrow's file system of S3; each copy counts as a step."""

    def __init__(self, files: Any, killer: Killer) -> None:
        self._files = files
        self.copy_file = killer.wrapped(files.copy_file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class Store(NamedTuple):
    """The place of archives: below a directory, or in a bucket of the server at `endpoint`."""

    root: str
    endpoint: str | None

    def archive(self, name: str, killer: Killer | None = None) -> Archive:
        path = f"{self.root}/{name}"
        if self.endpoint is None:
            return Archive(path)
        step = killer.of_path if killer else lambda _path: None
        return Archive(Bucket(self.endpoint, step).at(path))

    def tables(self, name: str) -> dict[str, list[list[int]]]:
        return tables_of(f"{self.root}/{name}", access_to(self.endpoint) if self.endpoint else None)


def commits(archive: Archive) -> None:
    with archive:
        publisher = Publisher(archive, SETTINGS)
        archive.after_commit = publisher.publish
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (0, 4), RETRIES: (0, 3)})
        made.batch(ALL, {ORDERS: (4, 2), LATER: (6, 2)})
        made.batch(ALL, {LATER: (8, 2)})
        made.compact(LATER)


def rest(store: Store, name: str, found: Path) -> None:
    with store.archive(name) as archive:
        Publisher(archive, SETTINGS).publish()
    with found.open("w") as file:
        json.dump(store.tables(name), file)


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


def main(store: Store, every: int) -> None:
    vars(lease)["PATIENCE_S"] = 0.1
    found = Path(tempfile.mkdtemp(), "found.json")
    # Each call is two steps, before and after it, so an odd distance kills alternately before and after.
    for step in range(0, MOST_STEPS, every):
        name = f"killed-{step}"

        def killed_work(at: int = step, where: str = name) -> None:
            killer = Killer(at)
            killer.lie_in_wait()
            commits(store.archive(where, killer))

        def rest_of_it(where: str = name) -> None:
            rest(store, where, found)

        killed = in_a_process(killed_work)
        in_a_process(rest_of_it)
        line = {"step": step, "killed": killed, **json.loads(found.read_bytes())}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if not killed:
            break
    found.unlink()
    found.parent.rmdir()


if __name__ == "__main__":
    sys.path.append(str(PACKAGES))  # boto3
    main(Store(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None), int(sys.argv[2]))

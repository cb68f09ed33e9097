"""Measure the reading of one large store with very many queues: time, memory, and files that are open.

    python -m benchmarks.spark_stores 50000000 10000                 # needs 12 GB of disk for a while
    python -m benchmarks.spark_stores 5000000 1000 --readers python --by log

Needs the extra `spark` and a Java for it. The store is written here, record after record of 200 bytes, as a
broker would leave it, and removed at the end. Each reader reads it by the log and by its queues; with --archive the
store is archived, too. To read by queues needs memory for the whole log in the page cache. Each line has the columns of `benchmarks.spark_sizes`. The line below it says how many files of
the store were open at once at most.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.counted_python import counted_python, stats_below
from benchmarks.spark_sizes import Memory, readers, session, write_store
from benchmarks.spark_tables import thrown_away
from cometmq.pipelines import archive
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Progress

_LOOK_S: Final = 0.5


class OpenFiles:
    """Watches how many files below a directory a process and all below it have open or mapped."""

    def __init__(self, process: int, directory: Path) -> None:
        self._process = process
        self._directory = str(directory)
        self._stopped = threading.Event()
        self.most_open = self.most_mapped = 0

    def during(self, work: Callable[[], Any]) -> None:
        """Do the work, and print the largest numbers that were seen."""
        self.most_open = self.most_mapped = 0
        self._stopped.clear()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            work()
        finally:
            self._stopped.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            processes = list(stats_below(self._process))
            self.most_open = max(self.most_open, sum(map(self._open, processes)))
            self.most_mapped = max(self.most_mapped, sum(map(self._mapped, processes)))

    def _open(self, process: int) -> int:
        count = 0
        try:
            for path in Path(f"/proc/{process}/fd").iterdir():
                try:
                    count += str(path.readlink()).startswith(self._directory)
                except OSError:
                    continue  # closed in between
        except OSError:
            return 0  # ended in between
        return count

    def _mapped(self, process: int) -> int:
        try:
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        except OSError:
            return 0
        return len({line[line.index("/") :] for line in lines if self._directory in line})


def measure(directory: Path, given: argparse.Namespace) -> None:
    """Write the store, read it by each reader, by the log and by the queues, and archive it if asked."""
    messages, queues = given.messages, given.queues
    root = directory / "store"
    began = time.perf_counter()
    topics = write_store(root, messages, queues)
    files = [path for path in root.rglob("*") if path.is_file()]
    on_disk = sum(path.stat().st_blocks for path in files) * 512
    print(
        f"{messages:,} messages in {queues:,} queues of {len(topics)} topics: {len(files):,} files, "
        f"{on_disk / 1e9:.1f} GB on disk, written in {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    spark = session()
    memory = Memory(spark)
    opened = OpenFiles(memory.jvm, root)

    def show(name: str, work: Callable[[], Any]) -> None:
        memory.show(name, partial(opened.during, work), messages)
        print(
            f"    files of the store at once: {opened.most_open:,} open, {opened.most_mapped:,} mapped",
            flush=True,
        )

    for reader in given.readers:
        source = spark.read.format("rocketmq-store").options(reader=reader)
        by_queue = source.option("subscribe", ",".join(topics)).load(str(root))
        by_log = spark.read.format("rocketmq-store").options(reader=reader).load(str(root))
        frames = {"log": by_log, "queue": by_queue}
        for name in given.by:
            show(f"{reader}, by {name}", thrown_away(frames[name]))
        counted = (
            frames[given.by[-1]]
            .selectExpr("count(*)", "count(distinct topic, queue_id)")
            .collect()[0]
        )
        print(f"    {counted[0]:,} messages of {counted[1]:,} queues came out", flush=True)
    if given.archive:
        kept = archive.Config(
            topics=topics, path=str(directory / "archive"), store=str(root), broker="broker-a",
        )  # fmt: skip
        context = Context(spark, ClusterConfig(), Progress())
        show("archive", lambda: print(archive.run(kept, context).summary, flush=True))
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("messages", type=int)
    parser.add_argument("queues", type=int)
    parser.add_argument("--readers", nargs="*", choices=["jvm", "python"], default=list(readers()))
    parser.add_argument("--by", nargs="+", choices=["log", "queue"], default=["log", "queue"])
    parser.add_argument("--archive", action="store_true", help="archive the store, too")
    parser.add_argument("--directory", help="where the store is written; must not be in memory")
    given = parser.parse_args()
    print(f"Python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="cometmq-stores-", dir=given.directory) as directory:
        os.environ["PYSPARK_PYTHON"] = counted_python(Path(directory))
        measure(Path(directory), given)


if __name__ == "__main__":
    main()

"""Run an older commit's Spark code and today's by turns, over the same messages on the same machine.

    git worktree add --detach /tmp/older 527f9549      # the last one before the reader of stores in the JVM
    python -m benchmarks.spark_beside /tmp/older pipelines 1000000      # archive and audit of a store
    python -m benchmarks.spark_beside /tmp/older sources 300000         # reads, beside Parquet

Each tree has a JVM of its own, and both are there for the whole time: one waits while the other works. Of
every round, the same piece of work runs in the older one, then in today's; of the next round, the other way
round. A line says the processor time of each (driver, JVM, workers) for a message. At the end come median,
lowest and highest of all but the first round, and how many times less time today's code took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.counted_python import counted_python, processor_seconds

OLDER, TODAY = "older", "today"
_ANSWER = "answer: "
_BROKER = "broker-a"
_BODY_BYTES = {"pipelines": 232, "sources": 1024}
_CORES = {"pipelines": 2, "sources": 1}
# The columns that sources give by default today.
_DEFAULT_COLUMNS = (
    "topic string, broker string, queue_id int, queue_offset bigint, store_time timestamp, born_time timestamp, "
    "keys array<string>, tags string, body binary, properties map<string, string>, msg_id string"
)
# Name, schema for code without the option `columns`, that option for other code.
KINDS = (
    ("default columns", _DEFAULT_COLUMNS, "default"),
    ("all columns", None, "all"),
    ("body and tags", "body binary, tags string", "body,tags"),
)


# ---- what one tree does, of which only this much is imported ----------------------------------------------


def work(cores: int) -> None:
    """Do what lines of the input say, with the tree that is first in PYTHONPATH, and say what each took."""
    import cometmq
    from cometmq.spark.session import spark_session

    config = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        # On a machine that others use, too, Python workers come up slowly.
        "spark.python.authenticate.socketTimeout": "600s",
    }
    spark = spark_session(f"local[{cores}]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - there is no other way to it
    names_columns = find_spec("cometmq.spark.rows.columns") is not None
    about = {"cometmq": str(Path(cometmq.__file__).parent), "spark": spark.version}
    answer({**about, "names_columns": names_columns})
    for line in sys.stdin:
        task = json.loads(line)
        run = (
            pipeline(spark, task) if task["what"] in ("archive", "audit") else reading(spark, task)
        )
        used = processor_seconds(jvm) + time.process_time()
        outcome = run()
        answer({"cpu": processor_seconds(jvm) + time.process_time() - used, "outcome": outcome})
    spark.stop()


def answer(said: dict[str, Any]) -> None:
    print(f"{_ANSWER}{json.dumps(said)}", flush=True)


def pipeline(spark: Any, task: dict[str, Any]) -> Callable[[], Any]:
    from cometmq.pipelines import archive, audit
    from cometmq.pipelines.configuration import ClusterConfig
    from cometmq.pipelines.context import Context
    from cometmq.pipelines.progress import Progress

    context = Context(spark, ClusterConfig(), Progress())
    topics, store, path = [task["topic"]], task["store"], task["archive"]
    if task["what"] == "archive":
        kept = archive.Config(topics=topics, path=path, store=store, broker=_BROKER)
        return lambda: archive.run(kept, context).holds
    asked = audit.Config(topics=topics, stores={_BROKER: store}, archive=path)
    return lambda: audit.run(asked, context).holds


def reading(spark: Any, task: dict[str, Any]) -> Callable[[], Any]:
    reader = spark.read.format(task["format"]).options(**task.get("options", {}))
    if "schema" in task:
        reader = reader.schema(task["schema"])
    frame = reader.load(task["path"]) if "path" in task else reader.load()
    if "select" in task:
        frame = frame.select(*task["select"])

    def run() -> None:
        writer = frame.write.mode("overwrite")
        writer.parquet(task["to"]) if "to" in task else writer.format("noop").save()

    return run


# ---- and who has both of them work ------------------------------------------------------------------------


class Tree:
    """The code of one tree, in a process of its own."""

    def __init__(self, name: str, source: Path, cores: int, directory: Path) -> None:
        self.name = name
        path = f"{source}:{Path(__file__).parents[1]}"
        python = counted_python(directory)
        command = [sys.executable, "-m", "benchmarks.spark_beside", "--work", str(cores)]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": python}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        about = self._answer()
        if Path(about["cometmq"]) != source / "cometmq":
            raise RuntimeError(f"{name} ran {about['cometmq']}, and not {source}")
        # Whether the sources of this tree have the option `columns`, and do not give all by themselves.
        self.names_columns: bool = about["names_columns"]
        print(f"{name}: {source}, Spark {about['spark']}", flush=True)

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                said: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                return said
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}")


class Costs:
    """Collects the processor time of each piece of work in each tree, and prints it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: dict[str, dict[str, list[float]]] = {}

    def add(self, what: str, tree: Tree, task: dict[str, Any]) -> None:
        done = tree.run(task)
        each = done["cpu"] / self._count * 1e6
        self._found.setdefault(what, {}).setdefault(tree.name, []).append(each)
        loads = os.getloadavg()[0]
        outcome = "" if done["outcome"] is None else f", holds: {done['outcome']}"
        print(f"{what:32} {tree.name:6} {each:7.2f} µs each, load {loads:.1f}{outcome}", flush=True)

    def show(self) -> None:
        for what, found in self._found.items():
            later = {name: each[1:] or each for name, each in found.items()}
            for name, each in later.items():
                middle = statistics.median(each)
                print(
                    f"{what:32} {name:6} first {found[name][0]:7.2f} µs, then {middle:7.2f} "
                    f"({min(each):.2f} to {max(each):.2f}) of {len(each)}: {1e6 / middle:11,.0f} a core's second "
                    f"({1e6 / max(each):,.0f} to {1e6 / min(each):,.0f})",
                    flush=True,
                )
            if len(later) > 1:
                ratios = [a / b for a, b in zip(later[OLDER], later[TODAY], strict=True)]
                first = found[OLDER][0] / found[TODAY][0]
                print(
                    f"{what:32} times less: first {first:.2f}, then {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})",
                    flush=True,
                )


def by_turns(older: Tree, today: Tree, at: int) -> tuple[Tree, Tree]:
    return (today, older) if at % 2 else (older, today)


def pipelines(directory: Path, older: Tree, today: Tree, count: int, rounds: int) -> None:
    from benchmarks.spark_sizes import write_store

    store = directory / "store"
    (topic,) = write_store(store, count, 8, _BODY_BYTES["pipelines"])
    costs = Costs(count)
    for at in range(rounds + 1):
        archives = {tree: str(directory / f"archive-{tree.name}") for tree in (older, today)}
        for what in ("archive", "audit"):
            for tree in by_turns(older, today, at):
                task = {
                    "what": what,
                    "topic": topic,
                    "store": str(store),
                    "archive": archives[tree],
                }
                costs.add(what, tree, task)
        for path in archives.values():
            shutil.rmtree(path)
    costs.show()


def sources(directory: Path, older: Tree, today: Tree, count: int, rounds: int) -> None:
    from benchmarks.spark_tables import TOPIC, serve

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stores = directory / "stores"
    server = context.Process(target=serve, args=(stores, count, _BODY_BYTES["sources"], theirs))
    server.start()
    namesrv = ours.recv()
    costs = Costs(count)
    given = {"namesrv": namesrv, "subscribe": TOPIC}
    live = {"what": "read", "format": "rocketmq", "options": given}
    parquet = str(directory / "parquet")
    kept = {"what": "read", "format": "parquet", "path": parquet}
    today.run({**live, "options": {**given, "columns": "all"}, "to": parquet})
    for at in range(rounds + 1):
        for name, schema, columns in KINDS[:2]:
            for tree in by_turns(older, today, at):
                costs.add(f"live, {name}", tree, asked(live, tree, schema, columns))
    ours.send("stop")
    server.join()
    stored = {
        "what": "read", "format": "rocketmq-store", "path": str(stores / _BROKER),
        "options": {"subscribe": TOPIC},
    }  # fmt: skip
    for at in range(rounds + 1):
        for name, schema, columns in KINDS:
            for tree in by_turns(older, today, at):
                costs.add(f"store, {name}", tree, asked(stored, tree, schema, columns))
        costs.add("Parquet, all columns", today, kept)
        costs.add("Parquet, body and tags", today, {**kept, "select": ["body", "tags"]})
    costs.show()


def asked(read: dict[str, Any], tree: Tree, schema: str | None, columns: str) -> dict[str, Any]:
    """Ask for the same columns: of code that gives all by itself, by a schema."""
    if not tree.names_columns:
        return read if schema is None else {**read, "schema": schema}
    return {**read, "options": {**read["options"], "columns": columns}}


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("older", type=Path, help="a work tree of the older commit")
    parser.add_argument("what", choices=("pipelines", "sources"))
    parser.add_argument("count", type=int, help="of messages")
    parser.add_argument("--rounds", type=int, default=3, help="after a first one")
    given = parser.parse_args()
    cores = _CORES[given.what]
    with tempfile.TemporaryDirectory(prefix="cometmq-beside-") as name:
        directory = Path(name)
        older = Tree(OLDER, given.older.resolve() / "src", cores, directory)
        today = Tree(TODAY, Path(__file__).parents[1] / "src", cores, directory)
        run = pipelines if given.what == "pipelines" else sources
        run(directory, older, today, given.count, given.rounds)
        older.end()
        today.end()


if __name__ == "__main__":
    main()

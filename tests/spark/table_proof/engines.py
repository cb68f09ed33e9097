"""Run the readers of published tables. Each is a program of its own that knows nothing of CometMQ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.spark import trino
from tests.spark.hadoop_aws import ROOT
from tests.spark.table_archives import iceberg_table
from tests.spark.table_proof.log import Bodies, Queue, QueueSums

_SPARK: Final = ROOT / ".venv-spark-4.1"
_DUCKDB: Final = ROOT / ".venv-spark-tables"

Sums = dict[Queue, QueueSums]


class Snapshot(NamedTuple):
    """Names a commit of the archive by the snapshot of the Iceberg table and the version of the Delta table."""

    commit: int
    iceberg: int
    delta: int
    written_ms: int


class Found(NamedTuple):
    """Holds what a reader read: the queues of each snapshot, and the bodies of the newest."""

    sums: list[Sums]
    bodies: Bodies


class Dialect(NamedTuple):
    """Holds an engine's expressions: the size of a body, the first 32 bits of an MD5, and the keys."""

    length: str
    md5: str
    keys: str

    def statements(self, sources: Sequence[str]) -> list[str]:
        """Return a statement for the sums of each source, and one for the bodies of the last."""
        wanted = [
            f"SELECT {at} AS place, topic, broker, queue_id, count(*) AS n, min(queue_offset) AS low, "
            "max(queue_offset) AS high, sum(queue_offset) AS offsets, sum(body_crc) AS crcs "
            f"FROM {source} GROUP BY topic, broker, queue_id"
            for at, source in enumerate(sources)
        ]
        bodies, keys = self.md5.format("body"), self.md5.format(self.keys)
        return [
            *wanted,
            (
                f"SELECT {len(sources)} AS place, count(*) AS n, sum({self.length}) AS size, "
                f"sum({bodies}) AS bodies, sum({keys}) AS names FROM {sources[-1]}"
            ),
        ]


_OF_DUCKDB: Final = Dialect(
    "octet_length(body)", "('0x' || substr(md5({}), 1, 8))::UBIGINT", "properties['KEYS']"
)
_OF_SPARK: Final = Dialect(
    "octet_length(body)",
    "CAST(conv(substr(md5({}), 1, 8), 16, 10) AS BIGINT)",
    "CAST(properties['KEYS'] AS BINARY)",
)
_OF_TRINO: Final = Dialect(
    "length(body)",
    "from_base(substr(to_hex(md5({})), 1, 8), 16)",
    "to_utf8(properties['KEYS'])",
)

# Runs statements, and returns the rows of all of them, each with its `place` in front.
Engine = Callable[[Path, list[str]], list[list[Any]]]


class Reader(NamedTuple):
    name: str
    read: Callable[[Path, Sequence[Snapshot]], Found]


def snapshots_of(archive: Path) -> list[Snapshot]:
    """Return the snapshots that both tables have, the oldest first."""
    from deltalake import DeltaTable

    versions = {
        int(one["cometmq-commit"]): one["version"]
        for one in DeltaTable(str(archive / "_tables" / "files")).history()
        if "cometmq-commit" in one
    }
    found = []
    for snapshot in iceberg_table(archive).metadata.snapshots:
        assert snapshot.summary is not None
        commit = int(snapshot.summary["cometmq-commit"] or -1)
        if commit in versions:
            place = (snapshot.snapshot_id, versions[commit], snapshot.timestamp_ms)
            found.append(Snapshot(commit, *place))
    return sorted(found)


def readers(*, with_trino: bool) -> list[Reader]:
    found = [
        Reader("pyiceberg", _by_arrow("iceberg")),
        Reader("duckdb-iceberg", _by(_by_duckdb, _OF_DUCKDB, _iceberg_of_duckdb)),
        Reader("spark-iceberg", _by(_by_spark, _OF_SPARK, _iceberg_of_spark)),
        Reader("deltalake", _by_arrow("delta")),
        Reader("duckdb-delta", _by(_by_duckdb, _OF_DUCKDB, _delta_of_duckdb)),
        Reader("spark-delta", _by(_by_spark, _OF_SPARK, _delta_of_spark)),
    ]
    if with_trino:
        found.insert(3, Reader("trino-iceberg", _by(trino.run, _OF_TRINO, _iceberg_of_trino)))
    return found


def _iceberg_of_duckdb(archive: Path, one: Snapshot) -> str:
    return f"iceberg_scan('{archive}/_tables/iceberg', snapshot_from_id = {one.iceberg}::UBIGINT)"


def _delta_of_duckdb(archive: Path, one: Snapshot) -> str:
    return f"delta_scan('{archive}/_tables/files', version = {one.delta})"


def _iceberg_of_spark(_archive: Path, one: Snapshot) -> str:
    return f"cometmq.cometmq.messages VERSION AS OF {one.iceberg}"


def _delta_of_spark(archive: Path, one: Snapshot) -> str:
    return f"delta.`{archive}/_tables/files` VERSION AS OF {one.delta}"


def _iceberg_of_trino(_archive: Path, one: Snapshot) -> str:
    return f"messages FOR VERSION AS OF {one.iceberg}"


def _by(
    engine: Engine, dialect: Dialect, source: Callable[[Path, Snapshot], str]
) -> Callable[[Path, Sequence[Snapshot]], Found]:
    def read(archive: Path, snapshots: Sequence[Snapshot]) -> Found:
        statements = dialect.statements([source(archive, one) for one in snapshots])
        sums: list[Sums] = [{} for _ in snapshots]
        bodies: list[int] = []
        for place, *row in engine(archive, statements):
            if place == len(snapshots):
                bodies = row
            else:
                topic, broker, queue_id, *numbers = row
                sums[place][topic, broker, queue_id] = QueueSums(*map(int, numbers))
        return Found(sums, Bodies(*map(int, bodies)))

    return read


def _by_arrow(format_: str) -> Callable[[Path, Sequence[Snapshot]], Found]:
    def read(archive: Path, snapshots: Sequence[Snapshot]) -> Found:
        names = [one.iceberg if format_ == "iceberg" else one.delta for one in snapshots]
        asked = {"snapshots": names, "newest": names[-1]}
        module = "tests.spark.table_proof.arrow_readers"
        found = json.loads(
            program(["-m", module, format_, str(archive)], json.dumps(asked), dict(os.environ))
        )
        sums: list[Sums] = [
            {
                (topic, broker, queue_id): QueueSums(*numbers)
                for topic, broker, queue_id, *numbers in rows
            }
            for rows in found["sums"]
        ]
        return Found(sums, Bodies(*found["bodies"]))

    return read


def _by_duckdb(_archive: Path, statements: list[str]) -> list[list[Any]]:
    script = str(Path(trino.__file__).with_name("table_readers.py"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_DUCKDB)}
    rows: list[list[Any]] = json.loads(
        program([script, "--sql"], json.dumps(statements), environment)
    )
    return rows


def _by_spark(archive: Path, statements: list[str]) -> list[list[Any]]:
    environment = {**os.environ, "PYTHONPATH": f"{_SPARK}{os.pathsep}{ROOT}"}
    environment.pop("SPARK_HOME", None)
    words = ["-m", "tests.spark.spark_tables", str(archive), "--sql"]
    rows: list[list[Any]] = json.loads(program(words, json.dumps(statements), environment))
    return rows


def program(words: Sequence[str], given: str, environment: dict[str, str]) -> str:
    """Run a program of Python, and return what it printed. Raise RuntimeError if it fails."""
    # In a group of its own, so that a JVM ends with it, whatever happens.
    running = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        said, errors = running.communicate(given)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    if running.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {running.returncode}: {errors[-6000:]}")
    return said

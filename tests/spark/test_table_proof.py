"""The proof of tables (`make table-proof`) sees what differs: on a small archive, by the readers that need no JVM."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.spark.bucket import PACKAGES, require
from tests.spark.table_archives import LATER, ORDERS, RETRIES, MadeArchive, rows_of
from tests.spark.table_proof.__main__ import SHARES, expire, kinds_of, spread
from tests.spark.table_proof.comparing import Comparison
from tests.spark.table_proof.engines import Found, Reader, Snapshot, readers, snapshots_of
from tests.spark.table_proof.load import Sent
from tests.spark.table_proof.log import Bodies, Log, Queue, QueueLog, start_of_md5
from tests.spark.test_published_tables import published

NAMES = ("pyiceberg", "duckdb-iceberg", "deltalake", "duckdb-delta")
ROWS = {"orders": 24, "%RETRY%g": 5}


def changes(made: MadeArchive) -> None:
    made.batch(1, {ORDERS: (0, 10), RETRIES: (0, 5)})
    made.batch(1, {ORDERS: (10, 10)})
    made.compact(ORDERS)
    made.batch(1, {LATER: (20, 4)})


def log_of(rows: dict[str, int], more_crc: int = 0, last_body: bytes | None = None) -> Log:
    """Return the log that the archive should have come from; the last message of each queue may have another body."""
    queues: dict[Queue, QueueLog] = {}
    for topic, count in rows.items():
        messages = rows_of(ORDERS, 0, count)
        found = [row["body"] for row in messages]
        if last_body is not None:
            found[-1] = last_body
        bodies = Bodies(
            count,
            sum(map(len, found)),
            sum(map(start_of_md5, found)),
            sum(start_of_md5(dict(row["properties"])["KEYS"].encode()) for row in messages),
        )
        crcs = [0, *(row["body_crc"] for row in messages)]
        crcs[-1] += more_crc
        numbers = {"O": np.arange(count)}
        queues[topic, "broker-a", 0] = QueueLog(np.cumsum(crcs), bodies, numbers)
    return Log(queues)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require(PACKAGES.is_dir(), "needs DuckDB, which `make spark` gets")
    path = tmp_path_factory.mktemp("proof") / "archive"
    published(path, changes)
    return path


def compared(archive: Path, log: Log, names: Sequence[str] = NAMES) -> list[str]:
    comparison = Comparison("now", log, snapshots_of(archive))
    comparison.read(archive, [one for one in readers(with_trino=False) if one.name in names])
    return comparison.faults


def test_every_snapshot_is_a_beginning_of_the_log(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = Comparison("now", log_of(ROWS), snapshots_of(archive))
    comparison.read(archive, [one for one in readers(with_trino=False) if one.name in NAMES])
    comparison.show()
    assert comparison.faults == []
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert [line[1] for line in lines[2:]] == ["15", "25", "25", "29", "29"]
    assert all(line[4:] == ["="] * len(NAMES) for line in lines[2:])


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (log_of(ROWS | {"orders": 25}), "the newest snapshot has 29 messages, and the log 30"),
        (log_of(ROWS | {"orders": 23}), "duckdb-delta differs at commit 4"),
        (log_of(ROWS, more_crc=1), "pyiceberg differs at commit 4"),
        (log_of(ROWS, last_body=b"another"), "deltalake has other bodies or keys"),
        (log_of({"orders": 24}), "duckdb-iceberg differs at commit 1"),
    ],
)
def test_what_differs_is_a_fault(archive: Path, log: Log, said: str) -> None:
    assert said in "\n".join(compared(archive, log))


def test_a_reader_that_fails_or_lacks_a_queue_is_a_fault(archive: Path) -> None:
    def fail(_archive: Path, _snapshots: Sequence[Snapshot]) -> Found:
        raise RuntimeError("no such table")

    def lack(path: Path, snapshots: Sequence[Snapshot]) -> Found:
        found = readers(with_trino=False)[0].read(path, snapshots)
        del found.sums[0]["%RETRY%g", "broker-a", 0]
        return found

    first = readers(with_trino=False)[0]
    comparison = Comparison("now", log_of(ROWS), snapshots_of(archive))
    comparison.read(archive, [first, Reader("bad", fail), Reader("less", lack)])
    assert [fault.partition(": ")[2][:30] for fault in comparison.faults] == [
        "bad failed: no such table",
        "less differs at commit 1: [\"('",
    ]


def test_acknowledged_messages_are_in_the_log_and_rolled_back_ones_are_not() -> None:
    log = log_of(ROWS)
    sent = Sent()
    sent.add("O", 0, 24)
    assert list(log.faults_of(sent)) == []
    sent.add("O", 24, 2)
    sent.add_rolled_back("O", 3)
    assert [fault.partition(":")[0] for fault in log.faults_of(sent)] == [
        "2 acknowledged messages O are not in the log",
        "1 messages O were rolled back, and are in the log",
    ]


def test_kills_and_snapshots_are_spread(archive: Path) -> None:
    kinds = kinds_of(random.Random(1), 25)
    assert {kind: kinds[:10].count(kind) for kind in SHARES} == SHARES
    assert len(kinds) == 25
    many = [Snapshot(at, at, at, at) for at in range(101)]
    chosen = spread(many)
    assert (len(chosen), chosen[0], chosen[-1]) == (20, many[0], many[-1])
    assert spread(many[:3]) == many[:3]


def test_snapshots_expire_but_twenty(tmp_path: Path) -> None:
    def batches(made: MadeArchive) -> None:
        for at in range(24):
            made.batch(1, {ORDERS: (at, 1)})

    path = tmp_path / "archive"
    published(path, batches)
    assert expire(path) == (24, 20)
    assert compared(path, log_of({"orders": 24}), ("pyiceberg", "deltalake")) == []

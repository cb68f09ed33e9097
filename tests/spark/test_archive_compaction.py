"""Compaction makes of many small files a few of the size that is asked for, in order."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from tests.spark.archives import archived_rows, places, run, sent_rows
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.pipelines.archive import batches
from cometmq.testing import Cluster

# A machine that is ten times slower is to come to an end, too.
pytestmark = [
    pytest.mark.timeout(2 * JVM_WAIT_S),
    pytest.mark.cluster(brokers=2, properties={"defaultTopicQueueNums": "1"}),
]

TOPIC = "small"
MESSAGES, BODY_BYTES, AT_ONCE = 1600, 2000, 20
TARGET_BYTES = 1 << 20
PLACE = ["broker", "queue_id", "queue_offset"]


def send_what_nothing_makes_smaller(namesrv: str) -> None:
    bodies = random.Random(18)
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        queues = producer.queues(TOPIC)
        for at in range(MESSAGES // AT_ONCE):
            producer.send_batch(
                [Message(TOPIC, bodies.randbytes(BODY_BYTES)) for _ in range(AT_ONCE)],
                queue=queues[at % len(queues)],
            )


def places_in(file: parquet.ParquetFile, group: int) -> list[tuple[Any, ...]]:
    columns = file.read_row_group(group, PLACE).to_pydict()
    return list(zip(*(columns[name] for name in PLACE), strict=True))


def test_many_small_files_become_few_of_the_right_size_in_order(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups are made small, so that a file of a megabyte has several; Parquet makes none of
    fewer than 100 rows.
    """
    monkeypatch.setattr(batches, "ROW_GROUP_BYTES", 128 << 10)
    path = tmp_path / "archive"
    send_what_nothing_makes_smaller(cluster.namesrv)
    settings: dict[str, Any] = {"topics": [TOPIC], "max_messages": MESSAGES // 8}
    small = run(spark, cluster.namesrv, path, **settings, compact_files=0)
    assert small.holds
    many = {file: file.stat().st_size for file in (path / "data").rglob("*.parquet")}
    assert len(many) >= 8
    assert max(many.values()) < TARGET_BYTES // 2
    done = run(spark, cluster.namesrv, path, **settings, compact_files=2, target_file_mb=1)
    assert done.holds
    assert done.compacted_files_before == len(many)
    left = list((path / "data").rglob("*.parquet"))
    assert done.compacted_files_after == len(left)
    for directory in {file.parent for file in left}:
        here = [file for file in left if file.parent == directory]
        total = sum(size for file, size in many.items() if file.parent == directory)
        count = -(-total // TARGET_BYTES)
        assert len(here) == count, "the fewest that the size allows"
        sizes = [file.stat().st_size for file in here]
        # All alike, so that none is small again; what a file has once is not in all that it was made of.
        assert min(sizes) > 0.5 * total / count
        assert max(sizes) < 1.25 * TARGET_BYTES
        spans: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for name in here:
            file = parquet.ParquetFile(name)
            groups = [places_in(file, at) for at in range(file.num_row_groups)]
            assert all(group == sorted(group) for group in groups)
            assert all(one[-1] < other[0] for one, other in pairwise(groups))
            rows = [place for group in groups for place in group]
            assert len(groups) >= len(rows) // 250, "a reader can pass over parts of a file"
            for queue in {place[:2] for place in rows}:
                offsets = [place[2] for place in rows if place[:2] == queue]
                spans.setdefault(queue, []).append((offsets[0], offsets[-1]))
        # A range of offsets lies in one file, or in neighbours.
        for of_queue in spans.values():
            assert all(one[1] < other[0] for one, other in pairwise(sorted(of_queue)))
    assert set(places(path).values()) == {1}
    assert archived_rows(spark, path) == sent_rows(cluster.namesrv, [TOPIC])
    again = run(
        spark, cluster.namesrv, path, **settings, compact_files=2, verify="all", target_file_mb=1
    )
    assert (again.holds, again.compacted_files_before) == (True, 0)

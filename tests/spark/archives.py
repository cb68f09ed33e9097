"""Helpers for tests of pipelines on archives: messages sent, an archive run, its rows looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyarrow import dataset
from tests.spark.rows import pulled_rows, rows_of
from tests.waits import SEND_WAIT_MS

from cometmq import Message, MessageQueue, Producer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.pipelines import archive
from cometmq.pipelines.archive.layout import Layout
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Progress
from cometmq.spark.rows.columns import COLUMNS


def send(namesrv: str, topic: str, count: int) -> int:
    """Messages with bodies large and small, keys, tags and properties; how many."""
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        # Those of all brokers, also when the topic is made by the first sends.
        queues = producer.queues(topic)
        for at in range(count):
            producer.send(
                Message(
                    topic,
                    b"body %d " % at * (at % 7 * 200 + 1),
                    tags=("paid", "open", None)[at % 3],
                    keys=[f"O-{at}", f"C-{at % 10}"][: at % 3],
                    properties={"color": "röt"} if at % 5 == 0 else {},
                    flag=at,
                ),
                queue=queues[at % len(queues)],
            )
    return count


def context_of(spark: Any, namesrv: str | None) -> Context:
    return Context(spark, ClusterConfig(namesrv=namesrv), Progress())


def run(spark: Any, namesrv: str | None, path: Path | str, **settings: Any) -> archive.Report:
    return archive.run(archive.Config(path=str(path), **settings), context_of(spark, namesrv))


def by_place(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("topic", "broker", "queue_id", "queue_offset")
    return sorted(rows, key=lambda row: tuple(row[name] for name in names))


def archived_rows(spark: Any, path: Path) -> list[dict[str, Any]]:
    return by_place(rows_of(archive.read(spark, path).select(*COLUMNS).toArrow()))


def sent_rows(namesrv: str, topics: Iterable[str]) -> list[dict[str, Any]]:
    """The topics' messages as brokers give them, one by one."""
    with BlockingRangeReader(namesrv=namesrv) as reader:
        queues = [MessageQueue(*queue) for topic in topics for queue in reader.queues(topic)]
    return by_place([row for queue in queues for row in pulled_rows(namesrv, queue)])


def places(path: Path) -> Counter[tuple[Any, ...]]:
    """Where the messages of the archive come from, as a tool sees it that knows nothing of it."""
    columns = ["topic", "broker", "queue_id", "queue_offset"]
    found = dataset.dataset(Layout(path).data.local, format="parquet", partitioning="hive")
    table = found.to_table(columns=columns)
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))

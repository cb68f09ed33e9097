"""Whatever of Spark and of the brokers is killed, at random and under load: nothing is lost, and where
exactly-once is promised nothing comes twice.

COMETMQ_SPARK_KILLS says how many kills there are (default 50), COMETMQ_SPARK_SEED what is drawn.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.spark.killing import (
    CONFIG,
    BrokerProcess,
    Driver,
    Load,
    Victims,
    eventually,
    stored,
    written,
)
from tests.spark.standalone import StandaloneCluster

from cometmq.testing.cluster import Cluster

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("COMETMQ_SPARK_KILLS", "50"))
SEED = int(os.environ.get("COMETMQ_SPARK_SEED", str(random.SystemRandom().randrange(10**6))))
TOPIC = "orders"
# Of fifty; drivers take longest to come back.
SHARES = {"worker": 20, "planner": 10, "executor": 8, "broker": 6, "driver": 6}
# Of these the next one waits until a batch was finished since the last one.
SLOW = ("planner", "executor", "driver")


def drawn(rng: random.Random, count: int) -> Iterator[str]:
    """Kinds of kills, shuffled among each fifty."""
    while count > 0:
        kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
        rng.shuffle(kinds)
        yield from kinds[:count]
        count -= len(kinds)


class Progress:
    """Whether queries have got on, by their checkpoints."""

    def __init__(self, checkpoints: list[Path]) -> None:
        self._commits = [checkpoint / "commits" for checkpoint in checkpoints]
        self._seen = self._finished()

    def _finished(self) -> list[int]:
        """The number of the last batch of each query."""
        return [
            max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)
            for commits in self._commits
        ]

    def made(self) -> bool:
        return all(now > then for now, then in zip(self._finished(), self._seen, strict=True))

    def mark(self) -> None:
        self._seen = self._finished()


class Plan:
    """The pipelines of the driver, all with checkpoints and outputs below `directory`."""

    def __init__(self, directory: Path, master: str, namesrv: str) -> None:
        self.directory = directory
        self.finish = directory / "finish"
        source = {
            "namesrv": namesrv,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": "400",
        }
        self.pipelines: dict[str, dict[str, Any]] = {
            "parquet": {
                "source": source,
                "columns": ["broker", "queue_id", "queue_offset", "body"],
                "format": "parquet",
                "sink": {"path": str(directory / "parquet")},
                "checkpoint": str(directory / "checkpoint-parquet"),
            }
        }
        self.path = directory / "plan.json"
        plan = {
            "master": master,
            "config": CONFIG,
            "finish": str(self.finish),
            "pipelines": self.pipelines,
        }
        self.path.write_text(json.dumps(plan))

    def checkpoints(self) -> list[Path]:
        return [Path(pipeline["checkpoint"]) for pipeline in self.pipelines.values()]


def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    told = f"COMETMQ_SPARK_SEED={SEED} COMETMQ_SPARK_KILLS={KILLS}"
    counts: Counter[str] = Counter()
    with (
        StandaloneCluster(tmp_path) as cluster,
        Cluster(brokers=0) as name_server,
    ):
        namesrv = name_server.namesrv
        plan = Plan(tmp_path, cluster.url, namesrv)
        broker = BrokerProcess(tmp_path, namesrv)
        try:
            with Load(namesrv, TOPIC, SEED) as load:
                eventually(lambda: load.acknowledged, "the first message")
                driver = Driver(plan.path, tmp_path / "driver.log")
                try:
                    victims = Victims(cluster, driver, broker, rng)
                    progress = Progress(plan.checkpoints())
                    for kind in drawn(rng, KILLS):
                        if kind in SLOW:
                            eventually(progress.made, f"a batch after kills ({told})")
                            progress.mark()
                        time.sleep(rng.uniform(0, 0.8))
                        eventually(partial(victims.kill, kind), f"a {kind} ({told})")
                        counts[kind] += 1
                    load.__exit__()
                    plan.finish.touch()
                    eventually(lambda: driver.ended is not None, f"the end ({told})")
                    assert driver.ended == 0, driver.log.read_text()[-3000:]
                finally:
                    driver.kill()
            wanted = {message.place: message.body for message in stored(namesrv, TOPIC)}
        finally:
            broker.kill()
    print(f"{told}: {dict(counts)}, {len(wanted)} messages, {load.failed} sends failed")  # noqa: T201
    assert load.acknowledged.items() <= wanted.items(), told
    rows = written(tmp_path / "parquet")
    found = {(row["broker"], row["queue_id"], row["queue_offset"]): row["body"] for row in rows}
    assert len(rows) == len(found), f"{len(rows) - len(found)} rows twice ({told})"
    assert found == wanted, f"{len(wanted) - len(found)} rows missing ({told})"

"""Whatever of Spark and of the brokers is killed, at random and under load: nothing is lost, and where
exactly-once is promised nothing comes twice.

One driver has three queries that read the same topic, one after the other: into Parquet, and into topics
with each delivery of the sink. Behind them it reads copies of the store of a killed broker by the JVM's
reader. COMETMQ_SPARK_KILLS says how many kills there are (default 50), COMETMQ_SPARK_SEED what is drawn
(`tests.seeds`; `fresh` for what no run had before). Ten kills meet whatever can be killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.seeds import seed_of
from tests.spark.killing import (
    BROKER,
    CONFIG,
    BrokerProcess,
    Driver,
    Load,
    Place,
    Stored,
    Victims,
    read_from_stores,
    stored,
    written,
)
from tests.spark.standalone import StandaloneCluster
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.testing.cluster import Cluster

KILLS = int(os.environ.get("COMETMQ_SPARK_KILLS", "50"))
# Ten kills from this seed meet every kind before stores are read: worker, executor, broker and driver
# under the exactly-once delivery, planners under the two others.
FIXED_SEED = 33
SEED = seed_of("COMETMQ_SPARK_SEED", FIXED_SEED)
TOLD = f"COMETMQ_SPARK_SEED={SEED} COMETMQ_SPARK_KILLS={KILLS}"
TOPIC, ONCE, LEAST = "orders", "orders-once", "orders-at-least-once"
STORE = "store"
# Without delays, which exactly-once refuses.
COLUMNS = [
    *("topic", "broker", "queue_id", "queue_offset", "msg_id", "born_time", "store_time"),
    *("body", "keys", "tags", "properties", "keys[0] AS sharding_key"),
]
# Made together with the topics; of no interest.
MADE = b"made"
# Whose turn it is to be killed at, for a tenth of the kills each.
TURNS = ("parquet",) * 2 + (ONCE,) * 4 + (LEAST,) * 2 + (STORE,) * 2
# Of ten; drivers take longest to come back.
SHARES = {"worker": 4, "planner": 2, "executor": 2, "broker": 1, "driver": 1}
# The JVM reads stores without any Python in its tasks.
NOT_OF_STORES = ("worker", "planner")
# In front of these a batch is waited for.
SLOW = ("planner", "executor", "driver")


def kills_of(seed: int, count: int) -> list[tuple[str, str]]:
    """Return the turn and the kind of each kill; kinds are shuffled among each ten.

    They depend on nothing but the seed: which process of a kind is killed, and when, is drawn apart.
    """
    rng = random.Random(f"{seed}-kinds")
    kills: list[tuple[str, str]] = []
    while len(kills) < count:
        kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
        rng.shuffle(kinds)
        for kind in kinds[: count - len(kills)]:
            turn = TURNS[len(kills) * len(TURNS) // count]
            java = turn == STORE and kind in NOT_OF_STORES
            kills.append((turn, "executor" if java else kind))
    return kills


class Progress:
    """Whether the reads of stores have got on, by the directory that they write to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = self._finished(directory)

    def _finished(self, directory: Path) -> int:
        return len(list(directory.glob("*/_SUCCESS")))

    def made(self) -> bool:
        """Whether a read, or a batch, has ended since the mark."""
        return self._finished(self._directory) > self._seen

    def mark(self) -> None:
        self._seen = self._finished(self._directory)


class BatchProgress(Progress):
    """Whether a query has got on, by its checkpoint."""

    def _finished(self, directory: Path) -> int:
        """The number of its last batch."""
        return max((int(path.name) for path in directory.glob("commits/[0-9]*")), default=-1)


class Plan:
    """The pipelines of the driver, all with checkpoints and outputs below `directory`."""

    def __init__(self, directory: Path, master: str, namesrv: str) -> None:
        self.finish = directory / "finish"
        self.parquet = directory / "parquet"
        self.reads = directory / "reads"
        # By the number of a copy, what was acknowledged before it was made.
        self.copies: list[dict[Place, bytes]] = []
        self._stores = directory / "stores"
        self._stores.mkdir()
        self._turn = directory / "turn"
        self._directory = directory
        self._namesrv = namesrv
        self.pipelines = {
            "parquet": self._pipeline("parquet", "parquet", {"path": str(self.parquet)}),
            ONCE: self._to_topic(ONCE, "exactly-once"),
            LEAST: self._to_topic(LEAST, "at-least-once"),
        }
        self.path = directory / "plan.json"
        plan = {
            "master": master,
            "config": CONFIG,
            "finish": str(self.finish),
            "turn": str(self._turn),
            "pipelines": self.pipelines,
            "reads": {
                "name": STORE,
                "stores": str(self._stores),
                "output": str(self.reads),
                "slow_rows": f"queue_offset % {max(1, KILLS // 50)} = 0",
                "source": {"subscribe": TOPIC, "brokerName": BROKER, "reader": "jvm"},
            },
        }
        self.path.write_text(json.dumps(plan))
        self.choose("parquet")

    def choose(self, name: str) -> Progress:
        """Have this one run; returns what it has got on with."""
        aside = self._turn.with_suffix(".new")
        aside.write_text(name)
        aside.replace(self._turn)
        return Progress(self.reads) if name == STORE else BatchProgress(self._checkpoint(name))

    def copy_store(self, store: Path, acknowledged: dict[Place, bytes]) -> None:
        """Have the driver read a copy of this store from now on."""
        aside = self._stores / "new"
        shutil.copytree(store, aside)
        aside.rename(self._stores / str(len(self.copies)))
        self.copies.append(acknowledged)

    def _checkpoint(self, name: str) -> Path:
        return self._directory / f"checkpoint-{name}"

    def _to_topic(self, topic: str, delivery: str) -> dict[str, Any]:
        sink = {"namesrv": self._namesrv, "topic": topic, "delivery": delivery}
        return self._pipeline(topic, "rocketmq", sink | {"keepOrigin": "true"})

    def _pipeline(self, name: str, format_: str, sink: dict[str, str]) -> dict[str, Any]:
        return {
            "source": {
                "namesrv": self._namesrv,
                "subscribe": TOPIC,
                "startingOffsets": "earliest",
                "maxMessagesPerTrigger": "400",
            },
            "columns": COLUMNS,
            "format": format_,
            "sink": sink | {"checkpointLocation": str(self._checkpoint(name))},
        }


def origin_of(message: Stored) -> Place:
    found = message.properties
    return (
        found["ORIGIN_BROKER"],
        int(found["ORIGIN_QUEUE_ID"]),
        int(found["ORIGIN_QUEUE_OFFSET"]),
    )


def resent(namesrv: str, topic: str, wanted: dict[Place, bytes]) -> Counter[Place]:
    """How often each message of the source has come to `topic`, with its body."""
    counts: Counter[Place] = Counter()
    for message in stored(namesrv, topic):
        if message.body == MADE:
            continue
        place = origin_of(message)
        assert message.body == wanted[place], TOLD
        counts[place] += 1
    return counts


def check_order(namesrv: str) -> None:
    """Messages of one key and one source queue are in one queue, in their order."""
    last: dict[tuple[str, Any], tuple[Any, int]] = {}
    for message in stored(namesrv, ONCE):
        if message.body == MADE:
            continue
        broker, queue_id, offset = origin_of(message)
        source = (message.properties["KEYS"], (broker, queue_id))
        queue, before = last.get(source, (message.place[:2], -1))
        assert queue == message.place[:2], f"a key in two queues ({TOLD})"
        assert before < offset, f"a key out of order ({TOLD})"
        last[source] = (queue, offset)


def check_reads(plan: Plan, wanted: dict[Place, bytes]) -> int:
    """Each read of a store has all that was acknowledged before, and nothing twice or left out.

    Return how many there were.
    """
    number = -1
    for count, (number, rows) in enumerate(read_from_stores(plan.reads), start=1):
        note = f"read {count}, of store {number} ({TOLD})"
        found = {(row["broker"], row["queue_id"], row["queue_offset"]): row["body"] for row in rows}
        assert len(rows) == len(found), f"{len(rows) - len(found)} rows twice: {note}"
        assert found.items() <= wanted.items(), f"bodies of others: {note}"
        assert plan.copies[number].items() <= found.items(), f"rows missing: {note}"
        ends: dict[int, int] = {}
        for _, queue_id, offset in found:
            ends[queue_id] = max(ends.get(queue_id, 0), offset + 1)
        assert sum(ends.values()) == len(found), f"gaps: {note}"
    assert number == len(plan.copies) - 1, f"the last store was not read ({TOLD})"
    return count


def verify(plan: Plan, namesrv: str, acknowledged: dict[Place, bytes]) -> dict[str, int]:
    """Returns the facts to report."""
    wanted = {message.place: message.body for message in stored(namesrv, TOPIC)}
    assert acknowledged.items() <= wanted.items(), TOLD
    reads = check_reads(plan, wanted)
    wanted = {place: body for place, body in wanted.items() if body != MADE}
    rows = [row for row in written(plan.parquet) if row["body"] != MADE]
    found = {(row["broker"], row["queue_id"], row["queue_offset"]): row["body"] for row in rows}
    assert len(rows) == len(found), f"{len(rows) - len(found)} rows twice ({TOLD})"
    assert found == wanted, f"{len(wanted) - len(found)} rows missing ({TOLD})"
    once = resent(namesrv, ONCE, wanted)
    assert once.keys() == wanted.keys(), f"{len(wanted) - len(once)} not sent once ({TOLD})"
    assert once.total() == len(wanted), f"{once.total() - len(wanted)} sent twice ({TOLD})"
    check_order(namesrv)
    least = resent(namesrv, LEAST, wanted)
    assert least.keys() == wanted.keys(), f"{len(wanted) - len(least)} not sent at all ({TOLD})"
    return {
        "messages": len(wanted),
        "sent again at least once": least.total() - len(wanted),
        "stores": len(plan.copies),
        "reads of them": reads,
    }


def run_kills(plan: Plan, load: Load, victims: Victims, rng: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    turn = ""
    for whose, kind in kills_of(SEED, KILLS):
        if whose != turn:
            turn = whose
            if turn == STORE:
                victims.with_store = lambda store: plan.copy_store(store, dict(load.acknowledged))
                victims.kill("broker")
            progress = plan.choose(turn)
        if kind in SLOW:
            eventually(
                progress.made,
                note=f"a batch of {turn} after {dict(counts)} ({TOLD})",
                wait_s=JVM_WAIT_S,
            )
            progress.mark()
        time.sleep(rng.uniform(0, 0.8))
        eventually(partial(victims.kill, kind), note=f"a {kind} ({TOLD})", wait_s=JVM_WAIT_S)
        counts[kind] += 1
    plan.finish.touch()
    return counts


def make_topics(namesrv: str) -> None:
    with Producer("maker", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for topic in (TOPIC, ONCE, LEAST):
            producer.send(Message(topic, MADE, keys=["none"]))


def test_the_fixed_kills_meet_whatever_can_be_killed() -> None:
    kills = kills_of(FIXED_SEED, 10)
    assert {turn for turn, _ in kills} == set(TURNS)
    assert {kind for turn, kind in kills if turn != STORE} == SHARES.keys()
    assert {kind for turn, kind in kills if turn == ONCE} == SHARES.keys() - {"planner"}


@pytest.mark.crash
@pytest.mark.timeout(0)
def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with StandaloneCluster(tmp_path) as cluster, Cluster(brokers=0) as name_server:
        namesrv = name_server.namesrv
        plan = Plan(tmp_path, cluster.url, namesrv)
        broker = BrokerProcess(tmp_path, namesrv)
        try:
            make_topics(namesrv)
            driver = Driver(plan.path, tmp_path / "driver.log")
            try:
                with Load(namesrv, TOPIC, SEED, most=100 * KILLS) as load:
                    victims = Victims(cluster, driver, broker, rng)
                    counts = run_kills(plan, load, victims, rng)
                eventually(
                    lambda: driver.ended is not None, note=f"the end ({TOLD})", wait_s=JVM_WAIT_S
                )
                assert driver.ended == 0, driver.log.read_text()[-3000:]
            finally:
                driver.kill()
            found = verify(plan, namesrv, load.acknowledged)
        finally:
            broker.close()
    print(f"{TOLD}: {dict(counts)}, {load.failed} sends failed, {found}")  # noqa: T201 - shown when the test fails

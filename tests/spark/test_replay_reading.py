"""The pipeline `replay` in chunks: what it reads does not grow with the number of chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.archives import context_of
from tests.spark.archives import run as run_archive
from tests.spark.dead_letters import stored_count
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, MessageQueue, Producer
from cometmq.pipelines import replay
from cometmq.spark.jvm import jar_path
from cometmq.testing.cluster import Cluster

MESSAGES = 8000
CHUNKS = 8
SOURCES = ("archive", "store") if jar_path() else ("archive",)


@pytest.fixture(scope="module")
def origins(
    spark: Any, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """A store and its archive, whose files have a chunk's messages each. One queue has most of them."""
    root = tmp_path_factory.mktemp("long")
    message = Message("long", b"x" * 20)
    with (
        Cluster(directory=root / "stores") as old,
        AdminClient(namesrv=old.namesrv) as admin,
        Producer("filler", namesrv=old.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer,
    ):
        admin.topics.create("long", read_queues=2, write_queues=2)
        for queue_id, count in ((0, MESSAGES * 3 // 4), (1, MESSAGES // 4)):
            queue = MessageQueue("long", "broker-a", queue_id)
            for _ in range(count // 100):
                producer.send_batch([message] * 100, queue=queue)
        eventually(lambda: stored_count(old.namesrv, "long") == MESSAGES, wait_s=JVM_WAIT_S)
    with AdminClient(namesrv=cluster.namesrv) as admin:
        admin.topics.create("again", read_queues=2, write_queues=2)
    store = {"store": str(root / "stores" / "broker-a"), "broker": "broker-a"}
    run_archive(
        spark, None, root / "archive", topics=["long"],
        max_messages=MESSAGES // CHUNKS, compact_files=0, **store,
    )  # fmt: skip
    return {"archive": {"archive": str(root / "archive")}, "store": store}


@pytest.mark.parametrize("source", SOURCES)
def test_a_chunk_of_a_replay_does_not_read_the_other_chunks(
    spark: Any, cluster: Cluster, origins: dict[str, dict[str, Any]], tmp_path: Path, source: str
) -> None:
    last = max(stage.stageId() for stage in stages(spark))
    report = replay.run(
        replay.Config(
            topics=["long"], to="again", id=source, state=str(tmp_path),
            chunk_messages=MESSAGES // CHUNKS, **origins[source],
        ),
        context_of(spark, cluster.namesrv),
    )  # fmt: skip
    assert report.holds, report.summary
    assert (report.chosen, report.sent) == (MESSAGES, MESSAGES)
    assert report.chunks >= CHUNKS
    # They are read twice to be counted. Files and ranges end elsewhere than chunks, so some messages
    # are read by two of them.
    read = sum(stage.inputRecords() for stage in stages(spark) if stage.stageId() > last)
    assert 3 * MESSAGES <= read <= 5 * MESSAGES


def stages(spark: Any) -> list[Any]:
    """Spark's records of this session's stages."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    no_quantiles = spark.sparkContext._gateway.new_array(spark.sparkContext._jvm.double, 0)
    store = spark.sparkContext._jsc.sc().statusStore()
    found = store.stageList(None, False, False, no_quantiles, None)
    return [found.apply(at) for at in range(found.size())]

"""A stream whose topic a Java broker deleted and made again behind its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.raw_client import RawClient
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.spark.changing_cluster import ChangingCluster
from tests.spark.micro_batches import Place
from tests.spark.test_topics_made_again import TOPIC, checkpoint_of, delete, fill, options_of
from tests.waits import JVM_WAIT_S, eventually

from cometmq.admin import AdminClient
from cometmq.errors import DataLossError

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_MAX_OFFSET = 30


def make(cluster: ChangingCluster) -> None:
    async def create() -> None:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create(TOPIC, read_queues=1, write_queues=1)

    cluster.run(create())


def make_again(cluster: ChangingCluster, address: str, count: int) -> list[Place]:
    """Delete the topic, create it again and send so many messages, which are in their queue then."""
    delete(cluster, TOPIC)
    make(cluster)
    return filled(cluster, address, count)


def filled(cluster: ChangingCluster, address: str, count: int) -> list[Place]:
    places = fill(cluster, count)
    assert [offset for *_, offset in places] == list(range(count))

    def end() -> int:
        with RawClient(address) as client:
            answer = client.ask(_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
        return int(answer.ext.get("offset", -1))

    # A Java broker puts messages into their queues behind the answers.
    eventually(end, lambda offset: offset == count, wait_s=JVM_WAIT_S)
    return places


def test_a_topic_that_a_java_broker_made_again_is_data_loss_by_name_or_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    need("java", "mvn")
    gaps = {"failOnDataLoss": "false", "gapLog": str(tmp_path / "gaps")}
    with (
        ChangingCluster(brokers=0) as cluster,
        # Java deletes no topic without its timers.
        JavaBroker(cluster.namesrv, conf={"timerWheelEnable": "true"}) as broker,
    ):
        make(cluster)
        old = filled(cluster, broker.address, 49)
        query = checkpoint_of(cluster)
        for count in (60, 49, 12):
            make_again(cluster, broker.address, count)
            query.start(options_of(cluster))
            with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
                query.trigger()
        make_again(cluster, broker.address, 0)
        query.start(options_of(cluster, timeoutMs="1000"))
        with pytest.raises(DataLossError, match=rf"offsets 0 to 48 of {TOPIC}@broker-a:0"):
            query.trigger()
        new = make_again(cluster, broker.address, 60)
        query.start(options_of(cluster, **gaps))
        while query.trigger():
            pass
        query.stop()
        read = [place for places in query.output.values() for place in places]
        assert sorted(read) == sorted(old + new)

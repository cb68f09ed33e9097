"""Where reading starts and how much a batch takes, by the options that Kafka's connector has too, without
a JVM.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.spark.test_live_options import read
from tests.spark.test_stream_outages import fill, options_of, query_of
from tests.waits import CLOCKS_APART_MS, SEND_WAIT_MS, eventually

from cometmq import Message, MessageQueue, Producer
from cometmq.errors import IllegalArgumentError
from cometmq.spark.live.admission import Least
from cometmq.spark.live.source import RocketMQSource
from cometmq.testing.cluster import Cluster


@pytest.fixture(scope="module")
def moment_ms(cluster: Cluster) -> int:
    """Send 4 messages to queue 0 and 2 to queue 1 of `placed`, and later 3 more to queue 0; return a
    time in between.
    """
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:

        def send(queue_id: int, count: int, body: bytes) -> None:
            for _ in range(count):
                producer.send(
                    Message("placed", body), queue=MessageQueue("placed", "broker-a", queue_id)
                )

        producer.queues("placed")
        send(0, 4, b"before")
        send(1, 2, b"before")
        moment = int(time.time() * 1000) + 2 * CLOCKS_APART_MS
        eventually(lambda: time.time() * 1000 > moment + 2 * CLOCKS_APART_MS)
        send(0, 3, b"behind")
    return moment


def bodies(cluster: Cluster, **options: str) -> list[bytes]:
    return sorted(row["body"] for row in read(cluster, "placed", None, **options))


def test_times_by_queue(cluster: Cluster, moment_ms: int) -> None:
    queues = {"0": moment_ms, "1": 0, "2": moment_ms, "3": moment_ms}
    table = json.dumps({"placed": {"broker-a": queues}})
    found = bodies(cluster, startingOffsetsByTimestamp=table)
    assert found == [b"before"] * 2 + [b"behind"] * 3
    found = bodies(cluster, endingOffsetsByTimestamp=table)
    assert found == [b"before"] * 4
    whole = json.dumps({"placed": moment_ms})
    assert bodies(cluster, startingOffsetsByTimestamp=whole) == [b"behind"] * 3
    assert bodies(cluster, endingOffsetsByTimestamp=whole) == [b"before"] * 6


def test_a_queue_without_a_message_as_new(cluster: Cluster, moment_ms: int) -> None:
    late = {"startingTimestamp": str(moment_ms)}
    assert bodies(cluster, **late) == [b"behind"] * 3
    with pytest.raises(IllegalArgumentError, match=r"placed@broker-a:1, .*Strategy is error"):
        bodies(cluster, **late, startingOffsetsByTimestampStrategy="error")
    table = json.dumps({"placed": {"broker-a": {"0": moment_ms}}})
    with pytest.raises(IllegalArgumentError, match="says nothing of placed@broker-a:1"):
        bodies(cluster, startingOffsetsByTimestamp=table)


def test_positions_by_topic_and_broker(cluster: Cluster, moment_ms: int) -> None:
    assert len(bodies(cluster, startingOffsets='{"placed": "earliest"}')) == 9
    table = '{"placed": {"broker-a": {"0": 6, "1": -1}}}'
    mixed = '{"placed": {"broker-a": -1}}'
    assert bodies(cluster, startingOffsets=mixed) == []
    with pytest.raises(IllegalArgumentError, match="says nothing of placed@broker-a:2"):
        bodies(cluster, startingOffsets=table)
    with pytest.raises(IllegalArgumentError, match="names place, which are not among"):
        bodies(cluster, startingOffsets='{"place": -1, "placed": -2}')


def test_tasks_of_at_most_so_many_messages(cluster: Cluster, moment_ms: int) -> None:
    given = {"namesrv": cluster.namesrv, "subscribe": "placed", "maxRecordsPerPartition": "3"}
    source = RocketMQSource(given)
    parts: list[Any] = source.reader(source.schema()).partitions()
    assert [(part.queue.queue_id, part.end - part.start) for part in parts] == [
        (0, 2),
        (0, 2),
        (0, 3),
        (1, 2),
    ]


def test_what_load_refuses(cluster: Cluster) -> None:
    given = {"namesrv": cluster.namesrv, "subscribe": "placed"}
    for wrong, words in (
        ({"maxTriggerDelay": "1m"}, "is for minMessagesPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "must be a duration such as"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "2d"}, "must not be above 86400s"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "must not be above max"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "is for startingTimestamp and"),
        ({"delivery": "exactly-once"}, "the source rocketmq has no option delivery"),
        ({"startingTimestamp": "noon"}, "a time such as"),
    ):
        with pytest.raises(IllegalArgumentError, match=words):
            RocketMQSource({**given, **wrong}).schema()
    with pytest.raises(IllegalArgumentError, match="source or sink rocketmq has no option topik"):
        RocketMQSource({**given, "topik": "orders"})


def test_a_batch_waits_for_enough_messages(cluster: Cluster) -> None:
    fill(cluster, 8)
    query = query_of(options_of(cluster, minMessagesPerTrigger="20", maxTriggerDelay="1h"))
    assert not query.trigger()
    fill(cluster, 12)
    assert query.trigger()
    assert sum(map(len, query.output.values())) >= 20
    query.stop()


class HandClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def sleep(self, seconds: float, /) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s


def test_no_message_waits_longer_than_the_delay() -> None:
    clock = HandClock()
    least = Least(10, 60_000, clock)
    clock.now_s = 5000.0
    assert not least.waits(0)
    assert least.waits(1)
    clock.now_s += 59
    assert least.waits(9)
    clock.now_s += 1
    assert not least.waits(9)
    assert least.waits(1)  # the next wait begins anew
    assert not least.waits(10)
    assert not Least(None, 60_000, clock).waits(1)

"""The sending side of replay and redrive, on a cluster and without Spark: once, in order, whoever
is killed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.waits import SEND_WAIT_MS

from cometmq.aio import LitePullConsumer, Producer
from cometmq.bulk.range_reader import RangeReader
from cometmq.errors import CometMQError, DataLossError
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.resending.client import LaneClient, Parcel, Tally
from cometmq.pipelines.resending.marks import REPLAY, Marks, Place
from cometmq.pipelines.resending.pacing import Pacer
from cometmq.pipelines.targets import connecting_to, first_offsets
from cometmq.testing import Cluster

TOPIC = "copy"
MARKS = Marks(REPLAY, "r1")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    properties = {"defaultTopicQueueNums": "2", "mappedFileSizeCommitLog": str(1024 * 1024)}
    async with Cluster(properties=properties) as cluster:
        async with Producer(
            "maker", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS
        ) as producer:
            await producer.send(Message(TOPIC, b"makes the topic"))
        yield cluster


def parcels(count: int, size: int = 1) -> list[Parcel]:
    """Messages made from those of a queue `orders`."""
    made = []
    for offset in range(count):
        place = Place("orders", "broker-a", 0, offset)
        properties = MARKS.of(place, f"ID-{offset}", 1, 2)
        made.append(Parcel(Message(TOPIC, b"%d " % offset * size, properties=properties), place))
    return made


async def targets_of(cluster: Cluster) -> tuple[list[MessageQueue], list[int]]:
    connecting = connecting_to(ClusterConfig(namesrv=cluster.namesrv))
    async with RangeReader(**connecting.parameters()) as reader:
        queues = await reader.writable_queues(TOPIC)
        return queues, await first_offsets(reader, queues, None)


def lane(
    cluster: Cluster,
    queues: Sequence[MessageQueue],
    bases: Sequence[int],
    *,
    marks: Marks = MARKS,
    exactly_once: bool = True,
) -> LaneClient:
    connecting = connecting_to(ClusterConfig(namesrv=cluster.namesrv))
    parameters = connecting.parameters()
    return LaneClient(parameters, marks, queues, bases, Pacer(None), exactly_once=exactly_once)


async def lying(cluster: Cluster, queue: MessageQueue) -> list[MessageExt]:
    """The replayed messages of a queue."""
    found: list[MessageExt] = []
    async with LitePullConsumer("looker", namesrv=cluster.namesrv) as consumer:
        offset = 0
        while True:
            answer = await consumer.pull(queue, offset, 32)
            if answer.status is PullStatus.NO_NEW_MSG:
                return [message for message in found if "REPLAY_ID" in message.properties]
            found += answer.messages
            offset = answer.next_begin_offset


async def until_sent(client: LaneClient, count: int) -> None:
    for _ in range(100_000):
        if client.tallies[0].sent >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(client.tallies)


def origins(messages: Sequence[MessageExt]) -> list[int]:
    return [int(message.properties["ORIGIN_QUEUE_OFFSET"]) for message in messages]


async def test_all_of_them_in_order_and_what_they_were_made_from(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    # Small ones in batches, large ones (compressed) alone between them.
    sent = parcels(300)
    for at in range(0, 300, 37):
        place = sent[at].place
        body = random.Random(at).randbytes(5000) + b"x" * 5000
        sent[at] = Parcel(Message(TOPIC, body, properties=sent[at].message.properties), place)
    async with lane(cluster, queues, bases) as client:
        await client.send(1, sent)
        assert client.tallies == [Tally(), Tally(sent=300)]
    there = await lying(cluster, queues[1])
    assert [message.body for message in there] == [parcel.message.body for parcel in sent]
    assert {
        name: value for name, value in there[7].properties.items() if "ORIGIN" in name
    } == {
        "ORIGIN_TOPIC": "orders",
        "ORIGIN_BROKER": "broker-a",
        "ORIGIN_QUEUE_ID": "0",
        "ORIGIN_QUEUE_OFFSET": "7",
        "ORIGIN_MSG_ID": "ID-7",
        "ORIGIN_BORN_TIME": "1",
        "ORIGIN_STORE_TIME": "2",
    }  # fmt: skip
    assert await lying(cluster, queues[0]) == []


async def test_who_comes_later_sends_what_is_missing(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    sent = parcels(500)
    async with lane(cluster, queues, bases) as client:
        await client.send(0, sent[:217])
    async with lane(cluster, queues, bases) as client:
        await client.send(0, sent)
        assert client.tallies[0] == Tally(sent=283, already_there=217)
    assert origins(await lying(cluster, queues[0])) == list(range(500))
    # Another replay has nothing to do with it.
    other = lane(cluster, queues, bases, marks=Marks(REPLAY, "r10"))
    async with other as client:
        await client.send(0, sent[:3])
        assert client.tallies[0] == Tally(sent=3)


async def test_two_at_once_send_everything_once(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    sent = parcels(700)

    async def attempt() -> Tally:
        async with lane(cluster, queues, bases) as client:
            await client.send(0, sent)
            return client.tallies[0]

    tallies = await asyncio.gather(*(attempt() for _ in range(3)))
    assert sum(tally.sent for tally in tallies) == 700
    assert sum(tally.already_there for tally in tallies) == 1400
    assert origins(await lying(cluster, queues[0])) == list(range(700))


async def test_it_was_sent_to_another_queue_of_the_lane(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    async with lane(cluster, queues, bases) as client:
        await client.send(0, parcels(10))
    async with lane(cluster, queues, bases) as client:
        await client.look_everywhere()
        await client.send(1, parcels(12))
        assert client.tallies[1] == Tally(sent=2, already_there=10)


async def test_a_broker_that_restarts_again_and_again_gets_each_once(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    sent = parcels(6000)

    async def restarts() -> None:
        for _ in range(2):
            await until_sent(client, client.tallies[0].sent + 500)
            await cluster.restart_broker(0)

    async with lane(cluster, queues, bases) as client:
        restarting = asyncio.create_task(restarts())
        await client.send(0, sent)
        await restarting
        assert client.tallies[0].sent + client.tallies[0].already_there == 6000
    assert origins(await lying(cluster, queues[0])) == list(range(6000))


async def test_what_can_never_be_sent_keeps_nobody_else_from_it(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    sent = parcels(40)
    sent[11].message.properties["large"] = "x" * 40_000
    for again in (False, True):
        async with lane(cluster, queues, bases) as client:
            await client.send(0, sent)
            tally = client.tallies[0]
            assert (tally.sent, tally.already_there) == ((0, 39) if again else (39, 0))
            assert tally.refused == 1
            assert "queue_offset=11" in tally.reason
            assert "limit is 32767" in tally.reason
    assert origins(await lying(cluster, queues[0])) == [at for at in range(40) if at != 11]


async def test_a_log_that_lost_its_beginning_tells_nobody_what_was_sent(cluster: Cluster) -> None:
    queues, bases = await targets_of(cluster)
    sent = parcels(1000, size=900)
    async with lane(cluster, queues, bases) as client:
        await client.send(0, sent[:990])
    await cluster.stop_broker(0)
    for file in sorted((cluster.directory / "broker-a" / "commitlog").iterdir())[:2]:
        file.unlink()
    await cluster.start_broker(0)
    async with lane(cluster, queues, bases) as client:
        with pytest.raises(DataLossError, match="nobody can know which of them replay r1 had sent"):
            await client.send(0, sent)
    async with lane(cluster, queues, bases, exactly_once=False) as client:
        await client.send(0, sent)
        assert client.tallies[0].sent + client.tallies[0].already_there == 1000
        assert client.tallies[0].sent > 10


async def test_somebody_else_holds_the_lock_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.pipelines.resending.client.PATIENCE_S", 1.0)
    queues, bases = await targets_of(cluster)
    async with lane(cluster, queues, bases) as holder:
        await holder.send(0, parcels(1))
        async with lane(cluster, queues, bases) as client:
            with pytest.raises(CometMQError, match="replay r1 is being run by somebody else"):
                await client.send(0, parcels(2))
    assert len(await lying(cluster, queues[0])) == 1

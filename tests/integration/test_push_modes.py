"""Push consumers of two brokers in virtual time: the mode that an operator chooses, and what they say of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waits import until

from cometmq.aio import AdminClient, Producer, PushConsumer
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere, ConsumeResult
from cometmq.testing import Cluster

TOPIC, GROUP = "orders", "billing"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, clock="virtual", seed=38) as cluster:
        yield cluster


class Member:
    def __init__(self, cluster: Cluster, number: int = 0, **options: Any) -> None:
        self.heard: list[bytes] = []
        self.consumer = PushConsumer(
            GROUP,
            self._listen,
            namesrv=cluster.namesrv,
            instance_name=f"member-{number}",
            consume_from=ConsumeFromWhere.FIRST_OFFSET,
            **options,
        )
        self.consumer.subscribe(TOPIC)

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.heard += [message.body for message in messages]
        return ConsumeResult.SUCCESS

    def ids(self) -> set[tuple[str, int]]:
        """Return broker and number of the topic's queues."""
        queues: list[MessageQueue] = self.consumer.assigned_queues()
        return {(each.broker_name, each.queue_id) for each in queues if each.topic == TOPIC}


class Stuck(Member):
    """Has a listener that works until `ends`."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.ends = asyncio.Event()
        self.queues: list[MessageQueue] = []
        short = {"pop_invisible_ms": 5_000, "close_timeout_ms": 0}
        super().__init__(cluster, 1, mode="pop", **short, **options)

    async def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.queues += [MessageQueue(m.topic, m.broker_name, m.queue_id) for m in messages]
        self.heard += [message.body for message in messages]
        await self.ends.wait()
        return ConsumeResult.SUCCESS


async def prepare(cluster: Cluster) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create(TOPIC, read_queues=2, write_queues=2, cluster="DefaultCluster")


async def send(cluster: Cluster, first: int, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body))
    return bodies


def test_members_that_ask_follow_an_operator_from_pulls_to_pops_and_back(cluster: Cluster) -> None:
    async def scenario() -> None:
        await prepare(cluster)
        names = [broker.config.broker_name for broker in cluster.brokers]
        members = [Member(cluster, number, client_rebalance=False) for number in range(2)]
        every = {(name, number) for name in names for number in range(2)}
        for member in members:
            await member.consumer.start()
        sent = await send(cluster, 0, 20)

        def heard() -> list[bytes]:
            return [body for member in members for body in member.heard]

        await until(lambda: sorted(heard()) == sorted(sent))
        assert members[0].ids() | members[1].ids() == every
        assert not members[0].ids() & members[1].ids()
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.groups.set_request_mode(GROUP, TOPIC, "POP", cluster="DefaultCluster")
            await until(lambda: all(m.ids() == {(name, -1) for name in names} for m in members))
            sent += await send(cluster, 20, 20)
            await until(lambda: set(heard()) == set(sent))
            await admin.groups.set_request_mode(GROUP, TOPIC, "PULL", cluster="DefaultCluster")
            await until(lambda: members[0].ids() | members[1].ids() == every)
            sent += await send(cluster, 40, 20)
            await until(lambda: set(heard()) == set(sent))
        for member in members:
            await member.consumer.close()

    cluster.run(scenario())


def test_a_member_says_whether_it_pops(cluster: Cluster) -> None:
    async def scenario() -> None:
        await prepare(cluster)
        member = Member(cluster, mode="pop", pop_batch_size=8)
        await member.consumer.start()
        sent = await send(cluster, 0, 8)
        await until(lambda: sorted(member.heard) == sorted(sent))
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            info = await admin.groups.running_info(GROUP, member.consumer.client_id)
        properties = info.properties
        assert properties["messageRequestMode"] == "POP"
        assert properties["popBatchNums"] == "8"
        assert properties["popFailures"] == ""
        await member.consumer.close()

    cluster.run(scenario())


def test_pops_go_on_over_a_broker_that_is_away(cluster: Cluster) -> None:
    async def scenario() -> None:
        await prepare(cluster)
        member = Member(cluster, mode="pop")
        await member.consumer.start()
        sent = await send(cluster, 0, 8)
        await until(lambda: sorted(member.heard) == sorted(sent))
        await cluster.stop_broker(0)
        sent += await send(cluster, 8, 8)
        await until(lambda: sorted(member.heard) == sorted(sent))
        await cluster.restart_broker(0)
        await asyncio.sleep(60)
        sent += await send(cluster, 16, 8)
        await until(lambda: sorted(member.heard) == sorted(sent))
        await member.consumer.close()

    cluster.run(scenario())


def test_a_listener_that_takes_too_long_loses_its_message(cluster: Cluster) -> None:
    """The time is renewed while the listener works, for up to consume_timeout_ms."""

    async def scenario() -> None:
        await prepare(cluster)
        stuck = Stuck(cluster, consume_timeout_ms=20_000)
        await stuck.consumer.start()
        sent = await send(cluster, 0, 1)
        await until(lambda: stuck.heard == sent)
        second = Member(cluster, 2, mode="pop")
        await second.consumer.start()
        await asyncio.sleep(15)
        assert stuck.heard + second.heard == sent
        await asyncio.sleep(60)
        assert (stuck.heard + second.heard).count(sent[0]) > 1
        stuck.ends.set()
        await stuck.consumer.close()
        await second.consumer.close()

    cluster.run(scenario())


def test_messages_that_cannot_be_hidden_for_longer_go_to_another_member(cluster: Cluster) -> None:
    """A result that comes too late does not count."""

    async def scenario() -> None:
        await prepare(cluster)
        stuck = Stuck(cluster)
        await stuck.consumer.start()
        sent = await send(cluster, 0, 1)
        await until(lambda: stuck.heard == sent)
        (held,) = (q.broker_name for q in stuck.queues)
        number = [broker.config.broker_name for broker in cluster.brokers].index(held)
        await cluster.stop_broker(number)
        await asyncio.sleep(20)
        stuck.ends.set()
        await cluster.restart_broker(number)
        second = Member(cluster, 2, mode="pop")
        await second.consumer.start()
        await until(lambda: len(stuck.heard + second.heard) == 2)
        assert stuck.heard + second.heard == 2 * sent
        await asyncio.sleep(120)
        assert len(stuck.heard + second.heard) == 2
        await stuck.consumer.close()
        await second.consumer.close()

    cluster.run(scenario())

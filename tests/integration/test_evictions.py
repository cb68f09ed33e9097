"""Members of a group that die without a word: their queues go to the others, again and again.

In virtual time, because a broker counts a member as gone only after two minutes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.waits import until

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, MessageQueue
from cometmq.aio import Producer, PushConsumer
from cometmq.testing import Cluster

TOPIC, GROUP = "orders", "billing"
QUEUES = 8
# A broker takes two minutes to miss a member, looks every ten seconds, and tells the others.
EVICTED_WITHIN_S = 150.0


class Group:
    """Starts members on nodes of their own, and knows what each consumes."""

    def __init__(self, cluster: Cluster, *, orderly: bool) -> None:
        self._cluster = cluster
        self._orderly = orderly
        self._inside: dict[int, str] = {}
        self.members: dict[str, PushConsumer] = {}
        self.consumed: list[bytes] = []
        self.overlaps: list[str] = []

    async def join(self, name: str) -> None:
        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            queue = messages[0].queue_id
            if self._orderly and (other := self._inside.setdefault(queue, name)) != name:
                self.overlaps.append(f"{name} and {other} in queue {queue}")
            await asyncio.sleep(0.05)
            self._inside.pop(queue, None)
            self.consumed += [message.body for message in messages]
            return ConsumeResult.SUCCESS

        async def start() -> None:
            self.members[name] = consumer = PushConsumer(
                GROUP,
                listen,
                namesrv=self._cluster.namesrv,
                consume_from=ConsumeFromWhere.FIRST_OFFSET,
                orderly=self._orderly,
                instance_name=name,
            )
            consumer.subscribe(TOPIC)
            await consumer.start()

        await self._cluster.node(name).run_in(start())

    def die(self, name: str) -> None:
        """End a member's machine: nobody hears of it."""
        self._cluster.power_off(name)
        del self.members[name]
        for queue in [queue for queue, inside in self._inside.items() if inside == name]:
            del self._inside[queue]

    async def leave(self) -> None:
        for name, member in self.members.items():
            await self._cluster.node(name).run_in(member.close())

    def shares(self) -> list[int]:
        """Return how many of the topic's queues each member has."""
        return sorted(
            sum(queue.topic == TOPIC for queue in member.assigned_queues())
            for member in self.members.values()
        )


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("orderly", [False, True])
def test_queues_of_members_that_died_are_consumed_by_the_others(seed: int, orderly: bool) -> None:
    chance = random.Random(seed)
    sent: list[bytes] = []

    async def main() -> None:
        group = Group(cluster, orderly=orderly)
        async with Producer(
            "shop", namesrv=cluster.namesrv, default_topic_queue_nums=QUEUES
        ) as producer:

            async def send(count: int) -> None:
                for _ in range(count):
                    queue = MessageQueue(TOPIC, "broker-a", chance.randrange(QUEUES))
                    sent.append(b"%d" % len(sent))
                    await producer.send(Message(TOPIC, sent[-1]), queue=queue)

            await producer.send(Message(TOPIC, b"makes the topic"))
            for number in range(4):
                await group.join(f"app-{number}")
            await until(shared(group, [2] * 4))
            for number in range(4, 8):
                await send(20)
                group.die(chance.choice(sorted(group.members)))
                await send(20)
                # The three that are left share what the dead member had.
                await until(shared(group, [2, 3, 3]), wait_s=EVICTED_WITHIN_S, pause_s=0.5)
                await until(lambda: set(sent) <= set(group.consumed), pause_s=0.5)
                await group.join(f"app-{number}")
                await until(shared(group, [2] * 4), pause_s=0.5)
            await group.leave()
        assert group.overlaps == []

    with Cluster(clock="virtual", seed=seed) as cluster:
        cluster.run(main())


def shared(group: Group, shares: list[int]) -> Callable[[], bool]:
    return lambda: group.shares() == shares

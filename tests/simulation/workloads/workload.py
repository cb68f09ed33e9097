"""Is the base of the workloads: clients on nodes of their own that join, send, consume and leave."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import Any, ClassVar, Final

from tests.simulation import history as h
from tests.simulation.schedule import Life, WorkloadPlan, generator, lives_of
from tests.simulation.workloads.recording import Listener, Sends
from tests.simulation.workloads.stage import Stage

from cometmq.aio import Producer, PushConsumer
from cometmq.client.lifecycle import AsyncClient
from cometmq.errors import CometMQError
from cometmq.model.results import ConsumeFromWhere, MessageModel
from cometmq.testing.virtual.errors import NodeKilledError

# A client that is told to leave has so long to close, then it is killed.
_CLOSE_S: Final = 180.0
# How long to wait before what a fault kept from being done is tried again.
_AGAIN_S: Final = 5.0
# What is due in a delayed message's topic is consumed within this time.
_PICKED_UP_S: Final = 30.0


class Client:
    """Is a client in one of its lives, a process of its own. It closes when `leaves` is set."""

    def __init__(self, stage: Stage, life: Life, rng: Random) -> None:
        self.name = life.name
        self.stage = stage
        self.life = life
        self.rng = rng
        self.leaves = asyncio.Event()

    async def rest(self, seconds: float) -> bool:
        """Wait, but no longer than the client stays. Return whether it still stays."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.leaves.wait()
        except TimeoutError:
            return True
        return False


class Workload:
    """Has `plan.messages` messages sent to a topic of its own and consumed by a group of its own.

    A kind of workload overrides what differs. `acknowledged`, `delivered` and `finished` have numbers
    of messages: those that are stored, those that a listener was given (also if their producer got an
    error), and those that need nothing more. A run for liveness waits until the third holds the others;
    the checker has an opinion of its own.
    """

    kind: ClassVar[str]
    is_orderly: ClassVar[bool] = False
    # Whether members pop, some or all of them.
    pops: ClassVar[bool] = False
    message_model: ClassVar[MessageModel] = MessageModel.CLUSTERING
    # How long the group of a run for liveness has a member at least: members share out their queues
    # every 20 s.
    settles_for_s: ClassVar[float] = 30.0

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        self.plan = plan
        self.stage = stage
        self.rng = generator(plan.seed, plan.kind)
        self.topic = plan.name
        self.group = f"{plan.name}-group"
        self.queues = self.rng.choice((1, 2, 4))
        self.max_reconsume_times = 16
        self.filters: dict[str, h.Filter] = {self.group: h.Filter()}
        self.acknowledged: set[int] = set()
        self.delivered: set[int] = set()
        # When the last delayed message comes to its topic, if it was stored.
        self.due_s = 0.0
        self.finished: set[int] = set()
        self.lives = lives_of(plan)

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    # -- what the run calls --

    async def run(self) -> None:
        """Have all clients live their lives."""
        async with asyncio.TaskGroup() as tasks:
            for life in self.lives:
                tasks.create_task(self._live(life))

    def settling(self, until_s: float) -> Client:
        """Return a client, to be given to `stay`, that consumes what is left."""
        life = Life(f"{self.plan.name}-settling", self.stage.elapsed_s, until_s, 0, False)
        return Client(self.stage, life, self.rng)

    def is_settled_after(self, stayed_s: float) -> bool:
        """Say whether nothing is left to be done, as far as the clients know."""
        is_over = self.stage.elapsed_s >= self.due_s + _PICKED_UP_S
        return is_over and stayed_s >= self.settles_for_s and self.is_settled()

    def is_settled(self) -> bool:
        """Say whether all messages that are known to be stored need nothing more."""
        return self.acknowledged | self.delivered <= self.finished

    # -- lives --

    async def _live(self, life: Life) -> None:
        await self.stage.sleep_until(life.joins_s)
        client = Client(self.stage, life, generator(self.plan.seed, life.name))
        async with asyncio.TaskGroup() as tasks:
            staying = tasks.create_task(self.stay(client))
            await self.stage.sleep_until(life.leaves_s)
            if not life.is_killed:
                client.leaves.set()
                await asyncio.wait([staying], timeout=_CLOSE_S)
            if not staying.done():
                self.stage.kill(life.name)

    async def stay(self, client: Client) -> None:
        """Run the client's program in its own process."""
        try:
            await self.stage.node(client.name).run_in(self.program(client))
        except NodeKilledError:
            for group in self.filters:
                self._member_stopped(client, group, clean=False)

    async def program(self, client: Client) -> None:
        """Do what the client does while it lives."""
        async with AsyncExitStack() as closing:
            for group in self.filters:
                await self.consume(client, group, closing)
            await self.produce(client, closing)
            await client.leaves.wait()

    async def start(self, client: Client, made: AsyncClient, closing: AsyncExitStack) -> None:
        """Start a producer or consumer and see to its close; try again while servers are away."""
        while True:
            try:
                await made.start()
                break
            except CometMQError:
                if not await client.rest(_AGAIN_S):
                    return
        closing.push_async_callback(made.close)

    # -- consuming --

    async def consume(self, client: Client, group: str, closing: AsyncExitStack) -> None:
        listener = self.make_listener(client, group)
        consumer = PushConsumer(
            group,
            listener,
            namesrv=self.stage.namesrv,
            instance_name=f"{client.name}-{group}",
            orderly=self.is_orderly,
            message_model=self.message_model,
            consume_from=ConsumeFromWhere.FIRST_OFFSET,
            max_reconsume_times=self.max_reconsume_times,
            **self.consumer_options(client),
        )
        wanted = self.filters[group]
        if wanted.kind == "SQL92":
            consumer.subscribe(self.topic, sql=wanted.expression)
        else:
            consumer.subscribe(self.topic, wanted.expression)
        self.prepare_consumer(consumer, listener)
        self.stage.record(
            h.MemberStarted(
                at_s=self.stage.at_s,
                node=client.name,
                member=self.member(client, group),
                group=group,
                topic=self.topic,
            )
        )
        closing.callback(self._member_stopped, client, group, clean=True)
        await self.start(client, consumer, closing)

    def make_listener(self, client: Client, group: str) -> Listener:
        return Listener(
            self.stage,
            client.name,
            self.member(client, group),
            group,
            client.rng,
            self.verdict,
            self.judged,
            is_orderly=self.is_orderly,
        )

    def prepare_consumer(self, consumer: PushConsumer, listener: Listener) -> None:
        """Do what is left to be done before a member's consumer starts."""

    def consumer_options(self, client: Client) -> dict[str, Any]:
        """Return further options of a member's consumer."""
        return {"consume_message_batch_max_size": client.rng.choice((1, 1, 4))}

    def member(self, client: Client, group: str) -> str:
        return f"{client.name}@{group}"

    def _member_stopped(self, client: Client, group: str, *, clean: bool) -> None:
        if clean and self.stage.node(client.name).is_killed:
            return  # what is left of a killed process is cleared away when the world ends
        self.stage.record(
            h.MemberStopped(
                at_s=self.stage.at_s,
                node=client.name,
                member=self.member(client, group),
                clean=clean,
            )
        )

    def judged(self, number: int, reconsume_times: int, verdict: h.Verdict) -> None:
        """Note what a listener said of a message, and whether that was the last time."""
        self.delivered.add(number)
        if verdict == "success" or reconsume_times >= self.max_reconsume_times:
            self.finished.add(number)

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        """Return what the listener says of a message."""
        return "success"

    # -- producing --

    async def produce(self, client: Client, closing: AsyncExitStack) -> None:
        """Send the messages of a life, in some bursts."""
        if not client.life.messages:
            return
        producer = await self.producer(client, closing)
        sends = Sends(self.stage, client.name, self.acknowledged)
        for at_s in self.times(client):
            if not await client.rest(at_s - self.stage.elapsed_s):
                return
            await self.send(client, producer, sends)

    async def producer(self, client: Client, closing: AsyncExitStack) -> Producer:
        producer = Producer(
            f"{self.plan.name}-producers",
            namesrv=self.stage.namesrv,
            instance_name=f"{client.name}-producer",
            retry_times=client.rng.choice((0, 2, 2)),
        )
        await self.start(client, producer, closing)
        return producer

    def times(self, client: Client) -> list[float]:
        """Draw when the messages of a life are sent, in seconds of the schedule."""
        life, rng = client.life, client.rng
        begins = [rng.uniform(life.joins_s, life.leaves_s) for _ in range(rng.randint(1, 3))]
        return sorted(
            rng.choice(begins) + rng.uniform(0, life.messages * 0.2) for _ in range(life.messages)
        )

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        """Send the next message, as this kind of workload does."""
        await sends.send(producer, self.topic, self.outgoing(client.rng))

    def outgoing(self, rng: Random, **fields: Any) -> h.Outgoing:
        number = self.stage.next_message()
        # Bodies beyond 4 KiB are compressed.
        body = f"{self.topic}:{number}:".encode() + rng.randbytes(
            rng.choice((0, 20, 200, 200, 2500))
        )
        if rng.random() < 0.05:
            body += bytes(5000)
        keys = (f"{self.topic}-{number}",) if rng.random() < 0.3 else ()
        return h.Outgoing(number=number, body=body, **{"keys": keys, **fields})

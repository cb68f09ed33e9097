"""Has workloads whose members pop: without order, in order, and beside members that pull."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Final, NamedTuple

from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.ordered import Keyed
from tests.simulation.workloads.pops import Got, found_in, record_pop
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client, Workload

from cometmq.client.instance import ClientInstance
from cometmq.client.lifecycle import AsyncClient, ClientOptions
from cometmq.client.options import takes
from cometmq.errors import CometMQError
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.protocol.pop.handle import ORDER_QUEUE, PopHandle, real_topic
from cometmq.protocol.pop.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)

# How long a call takes beyond the time for which a pop waits.
_CALL_S: Final = 5.0
# How often a member asks again for an acknowledgement that was not answered.
_ACK_TRIES: Final = 3
# No message is hidden for longer.
LONGEST_S: Final = 30.0
_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
_TAGS: Final = ("red", "green", "blue")


class Popper(AsyncClient):
    """Sends the requests of a member that pops."""

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)

    async def _open(self, instance: ClientInstance) -> None:
        pass

    async def _shut(self, instance: ClientInstance) -> None:
        pass

    async def address(self, topic: str, broker: str) -> str:
        """Return where the master of a broker is. Raises CometMQError."""
        instance = self._running()
        if instance.routes.master_address(broker) is None:
            await instance.routes.refresh(topic)
        return instance.need_master(broker, topic)

    def lost(self, topic: str) -> None:
        """Ask for the route again: its broker did not answer, or refused."""
        self._running().routes.refresh_soon(topic)

    async def pop(self, address: str, header: PopMessageRequestHeader) -> list[Got]:
        """Return what a broker hands out. Raises CometMQError."""
        answer = await self._running().remoting.ask(
            address,
            requests.POP_MESSAGE,
            header,
            what="a pop",
            timeout_s=header.poll_time / 1000 + _CALL_S,
            also=_NOTHING,
        )
        if answer.command.code in _NOTHING:
            return []
        return found_in(header, answer.header, bytes(answer.command.body))

    async def ack(self, address: str, header: AckMessageRequestHeader) -> None:
        await self._running().remoting.ask(
            address, requests.ACK_MESSAGE, header, what="an acknowledgement", timeout_s=_CALL_S
        )

    async def batch_ack(self, address: str, body: BatchAckMessageRequestBody) -> None:
        await self._running().remoting.ask(
            address,
            requests.BATCH_ACK_MESSAGE,
            NoHeader(),
            body,
            what="acknowledgements",
            timeout_s=_CALL_S,
        )

    async def hide(self, address: str, header: ChangeInvisibleTimeRequestHeader) -> tuple[int, int]:
        """Return the new time of the pop, and for how many ms the message is hidden from then on."""
        answer = await self._running().remoting.ask(
            address,
            requests.CHANGE_MESSAGE_INVISIBLETIME,
            header,
            what="another time",
            timeout_s=_CALL_S,
        )
        return answer.header.pop_time, answer.header.invisible_time


class _Held(NamedTuple):
    """A delivery that a member works on."""

    delivery: int
    number: int
    times: int
    topic: str
    handle: PopHandle


class Popped(Workload):
    """Has members that pop, acknowledge one by one or together, hide for longer, give back, and fail."""

    kind = "popped"
    pops = True
    in_order = False
    always = 0.2

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = self.rng.choice((1, 3, 16))
        self._wanted: set[int] = set()
        if self.rng.random() < 0.3 and not self.in_order:
            self.filters = {self.group: h.Filter(tags=tuple(self.rng.sample(_TAGS, 2)))}

    def outgoing(self, rng: Random, **fields: object) -> h.Outgoing:
        made = super().outgoing(rng, tags=rng.choice(_TAGS), **fields)
        if h.accepts(self.filters[self.group], made.tags, made.properties):
            self._wanted.add(made.number)
        return made

    def is_settled(self) -> bool:
        return self.acknowledged & self._wanted | self.delivered <= self.finished

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        fails = 1000 if rng.random() < self.always else rng.choice((0, 0, 1, 2))
        return "success" if reconsume_times >= fails else "later"

    def judged(self, number: int, reconsume_times: int, verdict: h.Verdict) -> None:
        super().judged(number, reconsume_times, verdict)
        # The broker makes a dead letter of it when its time is over.
        self.due_s = max(self.due_s, self.stage.elapsed_s + LONGEST_S)

    # -- members --

    async def program(self, client: Client) -> None:
        """Pop from every broker and send, until the client leaves."""
        async with AsyncExitStack() as closing:
            await self.pop(client, closing)
            await self.produce(client, closing)
            await client.leaves.wait()

    async def pop(self, client: Client, closing: AsyncExitStack) -> None:
        """Begin to pop: a task for each broker."""
        stage = self.stage
        popper = Popper(
            self.group, namesrv=stage.namesrv, instance_name=f"{client.name}-{self.group}-pops"
        )
        stage.record(
            h.MemberStarted(
                at_s=stage.at_s,
                node=client.name,
                member=self.member(client, self.group),
                group=self.group,
                topic=self.topic,
            )
        )
        closing.callback(self._member_stopped, client, self.group, clean=True)
        await self.start(client, popper, closing)
        if client.leaves.is_set():
            return
        tasks = await closing.enter_async_context(asyncio.TaskGroup())
        for broker in stage.cluster.nodes.brokers:
            tasks.create_task(Member(self, client, popper, broker).run())


class PoppedInOrder(Popped, Keyed):
    """Pops in order. Members work on the messages of a batch one after the other, and stop at one that
    fails.
    """

    kind = "popped-in-order"
    is_orderly = True
    in_order = True

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = 16  # nothing counts them: a queue waits for its first message

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        return "success" if reconsume_times >= rng.choice((0,) * 6 + (1, 2)) else "later"


class PulledAndPopped(Popped):
    """Has members of one group of which some pull and some pop, so that the group changes between them."""

    kind = "pulled-and-popped"
    always = 0.0

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = 16

    async def program(self, client: Client) -> None:
        draw = Random(f"{self.plan.seed}:{client.name}").random()
        is_settling = client.name.endswith("-settling")
        async with AsyncExitStack() as closing:
            if is_settling or draw < 0.6:
                await self.consume(client, self.group, closing)
            if is_settling or draw > 0.4:
                await self.pop(client, closing)
            await self.produce(client, closing)
            await client.leaves.wait()


class Member:
    """Pops from one broker for one client."""

    def __init__(self, workload: Popped, client: Client, popper: Popper, broker: str) -> None:
        self._workload = workload
        self._client = client
        self._popper = popper
        self._broker = broker
        self._stage = workload.stage
        self._rng = client.rng
        self._attempts = 0

    async def run(self) -> None:
        """Pop until the client leaves; go on after whatever faults do."""
        is_repeated = False
        while not self._client.leaves.is_set():
            if not is_repeated:
                self._attempts += 1
            try:
                held = await self._pop()
                is_repeated = False
            except CometMQError:
                is_repeated = self._rng.random() < 0.5
                self._popper.lost(self._workload.topic)
                await self._client.rest(self._rng.choice((0.1, 3)))
                continue
            await self._work_on(held)
            if not held or self._rng.random() < 0.3:
                await self._client.rest(self._rng.uniform(0.01, 3))

    async def _pop(self) -> list[_Held]:
        workload, rng = self._workload, self._rng
        wanted = workload.filters[workload.group]
        in_order = workload.in_order
        header = PopMessageRequestHeader(
            consumer_group=workload.group,
            topic=workload.topic,
            queue_id=-1 if rng.random() < 0.8 else rng.randrange(workload.queues),
            max_msg_nums=rng.choice((1, 2, 8, 32)),
            invisible_time=rng.choice((1_000, 3_000, 10_000, 30_000)),
            poll_time=rng.choice((0, 500, 5_000, 15_000)),
            init_mode=0,
            exp_type="TAG",
            exp=wanted.expression,
            order=in_order,
            attempt_id=f"{self._client.name}-{self._attempts}" if in_order else None,
        )
        address = await self._popper.address(workload.topic, self._broker)
        found = await self._popper.pop(address, header)
        return [self._delivered(each) for each in found]

    def _delivered(self, got: Got) -> _Held:
        workload, handle = self._workload, got.handle
        member = workload.member(self._client, workload.group)
        delivery = record_pop(workload, self._client, member, self._broker, got)
        topic = real_topic(workload.topic, workload.group, handle.mark)
        number = decode_properties(got.record.properties).get(h.MESSAGE, "")
        return _Held(delivery, int(number) if number.isdecimal() else -1, got.times, topic, handle)

    async def _work_on(self, held: Sequence[_Held]) -> None:
        """Consume messages one after the other, and say of each what became of it."""
        rng = self._rng
        together = rng.random() < 0.4
        done: list[_Held] = []
        for at, first in enumerate(held):
            each = first
            if rng.random() < 0.1:
                each = await self._hide(first, int(LONGEST_S * 1000)) or first
            longest_s = each.handle.invisible_time / 1000 * 1.5 if rng.random() < 0.05 else 0.05
            if not await self._rests(rng.uniform(0, longest_s)):
                return
            verdict = self._workload.verdict(each.number, each.times)
            self._stage.record(
                h.Consumed(
                    at_s=self._stage.at_s,
                    node=self._client.name,
                    delivery=each.delivery,
                    verdict=verdict,
                )
            )
            self._workload.judged(each.number, each.times, verdict)
            if verdict == "success":
                if together:
                    done.append(each)
                else:
                    await self._ack(each)
                continue
            left = held[at:] if self._workload.in_order else [each]
            if rng.random() < 0.7:
                for one in left:
                    await self._hide(one, rng.choice((0, 500, 4_000)))
            if self._workload.in_order:
                break
        if done:
            await self._ack_together(done)

    async def _rests(self, seconds: float) -> bool:
        """Work for some time. Return whether the client still stays: one that leaves ends its work first, as
        a rule.
        """
        await asyncio.sleep(seconds)
        return not self._client.leaves.is_set() or self._rng.random() < 0.7

    async def _ack(self, held: _Held) -> None:
        header = AckMessageRequestHeader(
            consumer_group=self._workload.group,
            topic=held.topic,
            queue_id=held.handle.queue_id,
            extra_info=held.handle.encode(),
            offset=held.handle.offset,
        )
        self._used([held], "ack")
        for _ in range(_ACK_TRIES):
            try:
                address = await self._popper.address(self._workload.topic, self._broker)
                await self._popper.ack(address, header)
            except CometMQError:
                self._popper.lost(self._workload.topic)
                await asyncio.sleep(0.2)
            else:
                self._used([held], "ack", done=True)
                return

    async def _ack_together(self, held: Sequence[_Held]) -> None:
        self._used(held, "ack")
        acks = [
            BatchAck(
                consumer_group=self._workload.group,
                topic=self._workload.topic,
                retry=each.handle.mark,
                start_offset=each.handle.offset,
                queue_id=each.handle.queue_id,
                revive_queue_id=ORDER_QUEUE if self._workload.in_order else 0,
                pop_time=each.handle.pop_time,
                invisible_time=each.handle.invisible_time,
                bits=encode_bits(each.handle.offset, [each.handle.offset]),
            )
            for each in held
        ]
        try:
            address = await self._popper.address(self._workload.topic, self._broker)
            await self._popper.batch_ack(address, BatchAckMessageRequestBody(self._broker, acks))
        except CometMQError:
            self._popper.lost(self._workload.topic)
        else:
            self._used(held, "ack", done=True)

    async def _hide(self, held: _Held, invisible_ms: int) -> _Held | None:
        """Have a message hidden until another time; return it with its new handle."""
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._workload.group,
            topic=held.topic,
            queue_id=held.handle.queue_id,
            extra_info=held.handle.encode(),
            offset=held.handle.offset,
            invisible_time=invisible_ms,
        )
        self._used([held], "hide")
        try:
            address = await self._popper.address(self._workload.topic, self._broker)
            popped_ms, invisible_ms = await self._popper.hide(address, header)
        except CometMQError:
            self._popper.lost(self._workload.topic)
            return None
        if not popped_ms:
            return None  # in order, and delivered again since
        self._used([held], "hide", done=True, popped_ms=popped_ms, invisible_ms=invisible_ms)
        handle = held.handle._replace(pop_time=popped_ms, invisible_time=invisible_ms)
        return held._replace(handle=handle)

    def _used(
        self,
        held: Sequence[_Held],
        use: str,
        *,
        done: bool = False,
        popped_ms: int = 0,
        invisible_ms: int = 0,
    ) -> None:
        for each in held:
            self._stage.record(
                h.HandleUsed(
                    at_s=self._stage.at_s,
                    node=self._client.name,
                    delivery=each.delivery,
                    use="ack" if use == "ack" else "hide",
                    done=done,
                    popped_ms=popped_ms,
                    until_ms=popped_ms + invisible_ms,
                )
            )

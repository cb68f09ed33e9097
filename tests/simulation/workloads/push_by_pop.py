"""Has workloads whose members are push consumers of the mode "pop".

Their pops, acknowledgements and changes of times are read from their calls, so what the consumer does by itself (it
acknowledges in batches, hides for longer, gives back at a close) is judged as that of any client that pops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, Literal, NamedTuple

import msgspec
from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.ordered import Keyed
from tests.simulation.workloads.popped import Got, Popped, found_in
from tests.simulation.workloads.recording import Listener
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client, Workload

from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.header import header_from_ext
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.pop.bodies import BatchAckMessageRequestBody
from cometmq.protocol.pop.handle import PopHandle, real_topic
from cometmq.protocol.pop.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from cometmq.remoting.hooks import RpcHook

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024


class _Place(NamedTuple):
    """Names a pop of a message: a handle has all of it."""

    broker: str
    topic: str
    queue_id: int
    offset: int
    popped_ms: int


class PopRecorder(RpcHook):
    """Records what a member popped, and how it used the handles, from its calls."""

    def __init__(self, workload: Workload, client: Client, member: str) -> None:
        self._workload = workload
        self._client = client
        self._member = member
        self._stage = workload.stage
        self._deliveries: dict[_Place, int] = {}
        # How a broker is called whose answers come from an address.
        self.broker_at: Callable[[str], str | None] = lambda _address: None

    def delivery_of(self, message: MessageExt) -> int | None:
        """Return the delivery of a message that came by a pop, None for one that was pulled."""
        text = message.properties.get(p.POP_CK)
        if text is None:
            return None
        handle = PopHandle.decode(text)
        topic = real_topic(message.topic, self._workload.group, handle.mark)
        place = _Place(
            message.broker_name, topic, handle.queue_id, message.queue_offset, handle.pop_time
        )
        return self._deliveries[place]

    # -- calls --

    def before_request(self, address: str, command: RemotingCommand) -> None:
        use: Literal["ack", "hide"] = (
            "hide" if command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME else "ack"
        )
        for place in self._used_by(address, command):
            self._record_use(place, use)

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        if answer.code != ResponseCode.SUCCESS:
            return
        if command.code == RequestCode.POP_MESSAGE:
            self._popped(address, command, answer)
        elif command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            changed = header_from_ext(dict(answer.ext), ChangeInvisibleTimeResponseHeader)
            if not changed.pop_time:
                return  # in order, and delivered again since
            for place in self._used_by(address, command):
                self._record_use(
                    place,
                    "hide",
                    done=True,
                    popped_ms=changed.pop_time,
                    until_ms=changed.pop_time + changed.invisible_time,
                )
                delivery = self._deliveries.get(place)
                if delivery is not None:
                    self._deliveries[place._replace(popped_ms=changed.pop_time)] = delivery
        else:
            for place in self._used_by(address, command):
                self._record_use(place, "ack", done=True)

    def _used_by(self, address: str, command: RemotingCommand) -> Iterable[_Place]:
        """Give the pops that a request speaks of: of an acknowledgement, or of another time."""
        ext = dict(command.ext)
        broker = self.broker_at(address) or ""
        if command.code == RequestCode.ACK_MESSAGE:
            ack = header_from_ext(ext, AckMessageRequestHeader)
            popped_ms = PopHandle.decode(ack.extra_info).pop_time
            yield _Place(broker, ack.topic, ack.queue_id, ack.offset, popped_ms)
        elif command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            change = header_from_ext(ext, ChangeInvisibleTimeRequestHeader)
            popped_ms = PopHandle.decode(change.extra_info).pop_time
            yield _Place(broker, change.topic, change.queue_id, change.offset, popped_ms)
        elif command.code == RequestCode.BATCH_ACK_MESSAGE:
            body = msgspec.json.decode(bytes(command.body), type=BatchAckMessageRequestBody)
            for each in body.acks:
                topic = real_topic(each.topic, each.consumer_group, each.retry)
                for offset in each.offsets():
                    yield _Place(
                        body.broker_name or broker, topic, each.queue_id, offset, each.pop_time
                    )

    def _popped(self, address: str, command: RemotingCommand, answer: RemotingCommand) -> None:
        asked = header_from_ext(dict(command.ext), PopMessageRequestHeader)
        header = header_from_ext(dict(answer.ext), PopMessageResponseHeader)
        broker = self.broker_at(address)
        assert broker is not None, f"a pop went to {address}, which no route names"
        for got in found_in(asked, header, bytes(answer.body)):
            self._delivered(broker, got)

    def _delivered(self, broker: str, got: Got) -> None:
        stage, record, handle = self._stage, got.record, got.handle
        topic = real_topic(self._workload.topic, self._workload.group, handle.mark)
        delivery = stage.next_delivery()
        place = _Place(broker, topic, handle.queue_id, record.queue_offset, handle.pop_time)
        self._deliveries[place] = delivery
        stage.record(
            h.Delivered(
                at_s=stage.at_s,
                node=self._client.name,
                delivery=delivery,
                member=self._member,
                group=self._workload.group,
                queue=h.Queue(topic, broker, handle.queue_id),
                offset=record.queue_offset,
                topic=record.topic,
                body=bytes(decompress(record.body, record.sys_flag, max_length=_MAX_BODY_BYTES)),
                properties=decode_properties(record.properties),
                reconsume_times=got.times,
                store_ms=record.store_timestamp,
                born_ms=record.born_timestamp,
            )
        )
        stage.record(
            h.Popped(
                at_s=stage.at_s,
                node=self._client.name,
                delivery=delivery,
                popped_ms=handle.pop_time,
                until_ms=handle.pop_time + handle.invisible_time,
            )
        )

    def _record_use(
        self,
        place: _Place,
        use: Literal["ack", "hide"],
        *,
        done: bool = False,
        popped_ms: int = 0,
        until_ms: int = 0,
    ) -> None:
        delivery = self._deliveries.get(place)
        if delivery is not None:
            self._stage.record(
                h.HandleUsed(
                    at_s=self._stage.at_s,
                    node=self._client.name,
                    delivery=delivery,
                    use=use,
                    done=done,
                    popped_ms=popped_ms,
                    until_ms=until_ms,
                )
            )


class _PopListener(Listener):
    """Consumes what `recorder` has recorded as delivered. Messages that were pulled it records itself."""

    recorder: PopRecorder

    def _delivered(self, message: MessageExt) -> int:
        delivery = self.recorder.delivery_of(message)
        return super()._delivered(message) if delivery is None else delivery


class PushedByPop(Popped):
    """Has push consumers that pop. Listeners fail, and some work for longer than messages are hidden."""

    kind = "pushed-by-pop"
    always = 0.1
    # Messages are hidden for so long, and are hidden again while a listener works.
    invisible_ms: Final = 10_000

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = self.rng.choice((1, 2, 16))

    def judged(self, number: int, reconsume_times: int, verdict: h.Verdict) -> None:
        super().judged(number, reconsume_times, verdict)
        self.due_s = max(self.due_s, self.stage.elapsed_s + self.invisible_ms / 1000)

    async def pop(self, client: Client, closing: Any) -> None:
        await self.consume(client, self.group, closing)

    def make_listener(self, client: Client, group: str) -> Listener:
        slowest_s = client.rng.choice((0.05, 0.05, 1.5 * self.invisible_ms / 1000))
        listener = _PopListener(
            self.stage,
            client.name,
            self.member(client, group),
            group,
            client.rng,
            self.verdict,
            self.judged,
            is_orderly=self.is_orderly,
            slowest_s=slowest_s,
        )
        listener.recorder = PopRecorder(self, client, self.member(client, group))
        return listener

    def prepare_consumer(self, consumer: Any, listener: Listener) -> None:
        assert isinstance(listener, _PopListener)
        listener.recorder.broker_at = lambda address: _broker_at(consumer, self.topic, address)
        consumer.add_hook(listener.recorder)

    def consumer_options(self, client: Client) -> dict[str, Any]:
        rng = client.rng
        return {
            "mode": "pop",
            "pop_invisible_ms": self.invisible_ms,
            "pop_batch_size": rng.choice((1, 4, 32)),
            "consume_message_batch_max_size": rng.choice((1, 1, 4)),
        }


class PushedByPopInOrder(PushedByPop, Keyed):
    """Has orderly push consumers that pop. A listener that fails holds its queue."""

    kind = "pushed-by-pop-in-order"
    is_orderly = True
    in_order = True

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = 16

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        return "success" if reconsume_times >= rng.choice((0,) * 6 + (1, 2)) else "suspend"


def _broker_at(consumer: Any, topic: str, address: str) -> str | None:
    route = consumer._running().routes.route(topic)
    for data in route.broker_datas if route is not None else ():
        if address in data.broker_addrs.values():
            return str(data.broker_name)
    return None

"""Reads what pops bring, and records it: from answers, or from the calls of a client that pops by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec
from tests.pop_offsets import offsets_of
from tests.simulation import history as h
from tests.simulation.workloads.workload import Client, Workload

from cometmq.errors import ProtocolError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.header import header_from_ext
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, body_is_intact, decode_records
from cometmq.protocol.pop.bodies import BatchAckMessageRequestBody
from cometmq.protocol.pop.handle import (
    PopHandle,
    decode_order_counts,
    decode_start_offsets,
    mark_of,
    real_topic,
)
from cometmq.protocol.pop.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from cometmq.remoting.hooks import RpcHook

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024


class Got(NamedTuple):
    """A message of a pop, its handle, and how often it was delivered before."""

    record: StoredRecord
    handle: PopHandle
    times: int


def found_in(
    asked: PopMessageRequestHeader, header: PopMessageResponseHeader, body: bytes
) -> list[Got]:
    """Do what Java's client does: MQClientAPIImpl.processPopResponse."""
    starts = decode_start_offsets(header.start_offset_info or "")
    offsets = offsets_of(header.msg_offset_info or "")
    counts = decode_order_counts(header.order_count_info or "")
    found: list[Got] = []
    for record in decode_records(body):
        if not body_is_intact(record):
            continue  # its time passes
        text = decode_properties(record.properties).get("POP_CK")
        if text is not None:
            found.append(Got(record, PopHandle.decode(text), record.reconsume_times))
            continue
        mark = mark_of(record.topic)
        place = mark, record.queue_id
        if place not in starts or record.queue_offset not in offsets.get(place, ()):
            raise ProtocolError(f"a pop does not say where offset {record.queue_offset} is from")
        handle = PopHandle(
            starts[place],
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            mark,
            "-",
            record.queue_id,
            record.queue_offset,
        )
        times = record.reconsume_times
        if asked.order:
            times = counts.get((mark, f"qo{record.queue_id}%{record.queue_offset}"), 0)
        found.append(Got(record, handle, times))
    return found


def record_pop(workload: Workload, client: Client, member: str, broker: str, got: Got) -> int:
    """Record that `member` was given a message by a pop; return the number of the delivery."""
    stage, record, handle = workload.stage, got.record, got.handle
    delivery = stage.next_delivery()
    topic = real_topic(workload.topic, workload.group, handle.mark)
    stage.record(
        h.Delivered(
            at_s=stage.at_s,
            node=client.name,
            delivery=delivery,
            member=member,
            group=workload.group,
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
            node=client.name,
            delivery=delivery,
            popped_ms=handle.pop_time,
            until_ms=handle.pop_time + handle.invisible_time,
        )
    )
    return delivery


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
        delivery = record_pop(self._workload, self._client, self._member, broker, got)
        topic = real_topic(self._workload.topic, self._workload.group, got.handle.mark)
        place = _Place(
            broker, topic, got.handle.queue_id, got.record.queue_offset, got.handle.pop_time
        )
        self._deliveries[place] = delivery

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


def broker_at(consumer: Any, topic: str, address: str) -> str | None:
    route = consumer._running().routes.route(topic)
    for data in route.broker_datas if route is not None else ():
        if address in data.broker_addrs.values():
            return str(data.broker_name)
    return None

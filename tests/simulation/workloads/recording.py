"""Lets clients do one thing each and records their requests and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from tests.simulation import history as h
from tests.simulation.workloads.stage import Stage

from cometmq.aio import Producer
from cometmq.errors import CometMQError
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeResult, SendResult
from cometmq.protocol.pop.handle import pop_retry_topic

_VERDICTS = {"success": ConsumeResult.SUCCESS, "suspend": ConsumeResult.SUSPEND}


def message_of(topic: str, outgoing: h.Outgoing) -> Message:
    """Return what a producer sends for `outgoing`."""
    return Message(
        topic,
        outgoing.body,
        tags=outgoing.tags,
        keys=outgoing.keys,
        properties=outgoing.user_properties,
        delay_level=outgoing.delay_level,
        delay_ms=outgoing.delay_ms,
        deliver_at_ms=outgoing.deliver_at_ms,
        wait_store_ok=outgoing.wait_store_ok,
    )


def queue_of(queue: MessageQueue) -> h.Queue:
    return h.Queue(queue.topic, queue.broker_name, queue.queue_id)


class Sends:
    """Sends for one client on `node`. `acknowledged` has the numbers of messages that are stored."""

    def __init__(self, stage: Stage, node: str, acknowledged: set[int]) -> None:
        self._stage = stage
        self._node = node
        self._acknowledged = acknowledged

    async def send(
        self, producer: Producer, topic: str, outgoing: h.Outgoing, **options: Any
    ) -> SendResult | None:
        """Send one message by `Producer.send`. Return None if that failed."""
        message = message_of(topic, outgoing)
        return await self.call(topic, [outgoing], lambda: producer.send(message, **options))

    async def call(
        self,
        topic: str,
        outgoing: Sequence[h.Outgoing],
        send: Callable[[], Awaitable[SendResult]],
        *,
        number: int | None = None,
    ) -> SendResult | None:
        """Record a call of `send`, and its outcome. Return None if it failed."""
        stage, node = self._stage, self._node
        if number is None:
            number = stage.next_send()
            stage.record(
                h.SendStarted(
                    at_s=stage.at_s, node=node, send=number, topic=topic, messages=tuple(outgoing)
                )
            )
        try:
            result = await send()
        except CometMQError as error:
            stage.record(
                h.SendFailed(
                    at_s=stage.at_s,
                    node=node,
                    send=number,
                    error=f"{type(error).__name__}: {error}",
                    stored=_stored(error),
                )
            )
            return None
        self._acknowledged.update(each.number for each in outgoing)
        stage.record(
            h.SendAcknowledged(
                at_s=stage.at_s,
                node=node,
                send=number,
                status=result.status.value,
                queue=queue_of(result.queue),
                offset=result.queue_offset,
                offset_msg_ids=tuple(result.offset_msg_id.split(",")),
            )
        )
        return result


def _stored(error: CometMQError) -> h.Stored:
    said: dict[str, h.Stored] = {"YES": "yes", "NO": "no", "UNKNOWN": "unknown"}
    return said[error.stored.name]


class Listener:
    """Consumes for one member: writes down each delivery and the verdict that `judge` gives it.

    `judged` is called for each message with the verdict of the list that it came in.
    """

    def __init__(
        self,
        stage: Stage,
        node: str,
        member: str,
        group: str,
        rng: Random,
        judge: Callable[[int, int], h.Verdict],
        judged: Callable[[int, int, h.Verdict], None],
        *,
        is_orderly: bool = False,
        slowest_s: float = 0.05,
    ) -> None:
        self._stage = stage
        self._node = node
        self._member = member
        self._group = group
        self._rng = rng
        self._judge = judge
        self._judged = judged
        self._is_orderly = is_orderly
        self._slowest_s = slowest_s

    async def __call__(self, messages: list[MessageExt]) -> ConsumeResult:
        """Judge a list as its worst message; a list has one verdict."""
        stage = self._stage
        deliveries = [self._delivered(message) for message in messages]
        tries = [
            (int(message.properties[h.MESSAGE]), message.reconsume_times) for message in messages
        ]
        verdicts = [self._judge(number, times) for number, times in tries]
        verdict: h.Verdict = next((each for each in verdicts if each != "success"), "success")
        if self._slowest_s:
            await asyncio.sleep(self._rng.uniform(0, self._slowest_s))
        for delivery in deliveries:
            stage.record(
                h.Consumed(at_s=stage.at_s, node=self._node, delivery=delivery, verdict=verdict)
            )
        for number, times in tries:
            self._judged(number, times, verdict)
        if verdict == "raised":
            raise RuntimeError("the listener of a simulation fails as it is told to")
        return _VERDICTS.get(verdict, ConsumeResult.RECONSUME_LATER)

    def _delivered(self, message: MessageExt) -> int:
        stage, number = self._stage, self._stage.next_delivery()
        # A concurrent consumer's later tries come from the group's own topic; an orderly one's stay, and
        # so does a message that no broker took back: the client tries it again, 5 s later.
        is_retry = (
            message.reconsume_times > 0
            and not self._is_orderly
            and p.RETRY_TOPIC in message.properties
        )
        topic = retry_topic(self._group) if is_retry else message.topic
        if p.FIRST_POP_TIME in message.properties and p.RETRY_TOPIC not in message.properties:
            # The group has popped it in vain before its members began to pull.
            topic = pop_retry_topic(self._group, message.topic)
        stage.record(
            h.Delivered(
                at_s=stage.at_s,
                node=self._node,
                delivery=number,
                member=self._member,
                group=self._group,
                queue=h.Queue(topic, message.broker_name, message.queue_id),
                offset=message.queue_offset,
                topic=message.topic,
                body=bytes(message.body),
                properties=dict(message.properties),
                reconsume_times=message.reconsume_times,
                store_ms=message.store_timestamp_ms,
                born_ms=message.born_timestamp_ms,
            )
        )
        return number

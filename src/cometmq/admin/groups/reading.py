"""Show the time up to which groups have read a topic, and set which topics they may read.

Command of mqadmin: setConsumeMode. Java: MQAdminExt.queryConsumeTimeSpan,
updateAndGetGroupReadForbidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cometmq.admin.groups.pops import PoppedTopic, ask_pops, popped_topics
from cometmq.admin.room import Room
from cometmq.admin.routed import readable_of
from cometmq.errors import IllegalArgumentError
from cometmq.model.names import check_group, check_topic
from cometmq.model.queue import MessageQueue
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import SetMessageRequestModeRequestBody
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    QueryConsumeTimeSpanRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """Says when messages of a queue were stored, in ms since the epoch, -1 if there is none: the
    first, the last, and the last that the group has consumed.

    `delay_ms` is the age of the next message to consume, 0 if all are consumed.
    """

    queue: MessageQueue
    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


class GroupReading(Room):
    """Asks for, and sets, what groups read."""

    async def times(self, group: str, topic: str, *, broker: str | None = None) -> list[QueueTimes]:
        """Return the time up to which a group has consumed each queue of a topic, sorted by queue.

        With `broker` only that one is asked; it reports nothing of a topic that it does not have.
        """
        check_group(group)
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        what = f"the times of group {group} in topic {topic}"

        async def ask(address: str) -> list[QueueTimes]:
            answer = await self._servers.ask(
                address,
                requests.QUERY_CONSUME_TIME_SPAN,
                header,
                what=what,
                also=() if broker is None else (ResponseCode.TOPIC_NOT_EXIST,),
            )
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            return [
                QueueTimes(
                    span.message_queue.queue(),
                    span.min_time_stamp,
                    span.max_time_stamp,
                    span.consume_time_stamp,
                    span.delay_time,
                )
                for span in answer.body.consume_time_span_set
            ]

        if broker is not None:
            addresses, missing = await self._servers.addresses(cluster=None, broker=broker), {}
        else:
            route = await self._servers.route(topic)
            addresses = list(readable_of(route).values())
            missing = self._servers.missing_of(route)
        found = await self._servers.each(addresses, ask, what, missing=missing)
        return sorted((at for times in found.values() for at in times), key=lambda at: at.queue)

    async def may_read(self, group: str, topic: str) -> dict[str, bool]:
        """Return whether each broker of a topic lets a group read it, by address.

        Brokers before 5.0 do not know such a permission.
        """
        return await self._permit(group, topic, None)

    async def set_may_read(self, group: str, topic: str, readable: bool) -> dict[str, bool]:
        """Let a group read a topic, or no longer; return what holds now, by address."""
        return await self._permit(group, topic, readable)

    async def popped(
        self, group: str, /, *, cluster: str | None = None, broker: str | None = None
    ) -> list[PoppedTopic] | None:
        """Return by topic what a group has popped and not acknowledged; None if a broker does not know the
        request, as Java's brokers do not.
        """
        check_group(group)
        addresses = await self._servers.addresses(cluster=cluster, broker=broker)
        reported = await self._servers.each(
            addresses,
            lambda address: ask_pops(self._servers, address, group),
            f"what group {group} has popped",
        )
        parts = [part for part in reported.values() if part is not None]
        return popped_topics(parts) if len(parts) == len(reported) else None

    async def set_request_mode(
        self,
        group: str,
        topic: str,
        mode: Literal["PULL", "POP"],
        *,
        pop_share_queues: int = 0,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Have a group pull or pop a topic's messages; return the addresses.

        Members that let the broker divide the queues follow the choice. Brokers before 5.0 know no pop consumers.
        """
        check_group(group)
        check_topic(topic)
        if mode not in ("PULL", "POP"):
            raise IllegalArgumentError(f"mode is {mode!r:.80}; give PULL or POP")
        body = SetMessageRequestModeRequestBody(
            consumer_group=group, mode=mode, pop_share_queue_num=pop_share_queues, topic=topic
        )
        what = f"the consume mode of group {group} in topic {topic}"
        return await self._change_brokers(
            requests.SET_MESSAGE_REQUEST_MODE,
            NoHeader(),
            body,
            what=what,
            cluster=cluster,
            broker=broker,
        )

    async def _permit(self, group: str, topic: str, readable: bool | None) -> dict[str, bool]:
        check_group(group)
        route = await self._servers.route(topic)
        header = UpdateGroupForbiddenRequestHeader(group=group, topic=topic, readable=readable)
        what = f"the permission of group {group} to read topic {topic}"

        masters, missing = self._servers.masters_and_missing(route)
        return await self._servers.ask_each(
            masters.values(),
            requests.UPDATE_AND_GET_GROUP_FORBIDDEN,
            header,
            what=what,
            read=lambda answer: answer.body.readable,
            missing=missing,
        )

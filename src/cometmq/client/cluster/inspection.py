"""Answer brokers' questions to a consumer, codes 220, 221, 307 and 309.

Java: ClientRemotingProcessor.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Final, Protocol

from cometmq.client.pulling.received import received_message
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.protocol import requests
from cometmq.protocol.bodies.consumers import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    decode_reset_offsets,
    encode_running_info,
)
from cometmq.protocol.codes import CURRENT_VERSION, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.fastjson.queue_table import encode_queue_table
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.protocol.messages.record import decode_record
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

log = get_logger(__name__)

MAX_STACKS_LENGTH: Final = 1024 * 1024


class InspectedMember(Protocol):
    """Answers brokers' questions about a group's member."""

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in those of the queues that this member consumes."""

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of this member's queues as it will commit them."""

    def running_info(self) -> ConsumerRunningInfo: ...

    async def stacks(self) -> str:
        """Return the stacks of the member's threads."""

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult | None:
        """Hand a message to the listener, outside of all queues. Return None without a listener."""


class Inspection:
    """Answers brokers' questions by asking the group's member. For the loop's thread."""

    def __init__(self, members: Mapping[str, InspectedMember], namesrv: list[str]) -> None:
        self._members = members
        self._namesrv = namesrv

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.RESET_CONSUMER_CLIENT_OFFSET, self.reset_offsets)
        handlers.register(requests.GET_CONSUMER_STATUS_FROM_CLIENT, self.consumer_status)
        handlers.register(requests.GET_CONSUMER_RUNNING_INFO, self.running_info)
        handlers.register(requests.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def reset_offsets(
        self, connection: Connection, call: Request[ResetOffsetRequestHeader]
    ) -> None:
        """Reset the member's offsets. The request is one-way, so failures are only logged."""
        header = call.header
        member = self._members.get(header.group)
        try:
            offsets = decode_reset_offsets(bytes(call.body)) if call.body else {}
        except CometMQError as error:
            log.warning("a reset does not decode", broker=connection.peer, reason=str(error))
            return
        offsets = {q: offset for q, offset in offsets.items() if q.topic == header.topic}
        log.info(
            "the broker resets offsets",
            group=header.group,
            topic=header.topic,
            broker=connection.peer,
            queues=len(offsets),
        )
        if member is not None:
            await member.reset_offsets(offsets)

    def consumer_status(
        self, _connection: Connection, call: Request[GetConsumerStatusRequestHeader]
    ) -> RemotingCommand:
        header = call.header
        member = self._members.get(header.group)
        offsets = member.known_offsets(header.topic) if member is not None else {}
        return response(ResponseCode.SUCCESS, body=encode_queue_table("messageQueueTable", offsets))

    async def running_info(
        self, _connection: Connection, call: Request[GetConsumerRunningInfoRequestHeader]
    ) -> RemotingCommand:
        header = call.header
        member = self._members.get(header.consumer_group)
        if member is None:
            return _no_member(header.consumer_group)
        info = member.running_info()
        info.properties |= {
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in self._namesrv),
            "PROP_CLIENT_VERSION": str(CURRENT_VERSION),
        }
        if header.jstack_enable:
            info.jstack = await member.stacks()
        return response(ResponseCode.SUCCESS, body=encode_running_info(info))

    async def consume_directly(
        self, _connection: Connection, call: Request[ConsumeMessageDirectlyResultRequestHeader]
    ) -> RemotingCommand:
        header = call.header
        member = self._members.get(header.consumer_group)
        if member is None:
            return _no_member(header.consumer_group)
        group = header.consumer_group
        message = received_message(decode_record(call.body), header.broker_name or "", group)
        result = await member.consume_directly(message)
        if result is None:
            return _no_member(header.consumer_group)
        return response(ResponseCode.SUCCESS, body=encode_body(result))


def thread_stacks() -> str:
    """Return the stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f'"{names.get(ident, "?")}" {ident}\n{"".join(traceback.format_stack(frame))}'
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented for this use
    ]
    return "\n".join(parts)[:MAX_STACKS_LENGTH]


def _no_member(group: str) -> RemotingCommand:
    return response(
        ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
    )

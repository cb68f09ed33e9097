"""Pass requests of operators on to members of a group: codes 222, 223, 307 and 309.

Java: Broker2Client, AdminBrokerProcessor. Only the broker to which a client is connected can ask
the client.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from cometmq.broker.found_messages import check_found
from cometmq.broker.groups.clients import Member
from cometmq.broker.groups.offset_handlers import too_many
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.errors import CometMQError, ProtocolError, RequestTimeoutError
from cometmq.model.queue import MessageQueue
from cometmq.model.route import MASTER_ID
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import LanguageCode, MQVersion, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.protocol.consumer_bodies import encode_reset_offsets_for_c
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.protocol.ids import parse_offset_id
from cometmq.protocol.json_dialect import encode_body
from cometmq.protocol.limits import MAX_STATUS_LENGTH, check_limit
from cometmq.protocol.queue_table import decode_queue_table, encode_queue_table, queue_table
from cometmq.remoting.connection import Connection
from cometmq.remoting.credentials import SIGNING_FIELDS
from cometmq.remoting.dispatch import Handlers

log = structlog.get_logger(__name__)

# How long a client may take to answer, including the run of a listener that gets a message.
CALL_TIMEOUT_S: Final = 10.0
STATUS_TIMEOUT_S: Final = 5.0


class ClientRelay:
    """Passes requests on to group members. For the loop's thread only."""

    def __init__(self, parts: Parts, call_timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._call_timeout_s = call_timeout_s
        self._config = parts.config
        self._store = parts.store
        # Those that `register` gives; none check anything before.
        self._handlers = Handlers()
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._release_topic = parts.long_polling.release_topic

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offsets)
        handlers.register(requests.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.consumer_status)
        handlers.register(requests.GET_CONSUMER_RUNNING_INFO, self.running_info)
        handlers.register(requests.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    # Offsets

    def reset_offsets(
        self, _connection: Connection, call: Request[ResetOffsetRequestHeader]
    ) -> RemotingCommand:
        """Move a group's offsets to those of a time, or in one queue to a given offset.

        With useServerSideResetOffset (Java 5's default) the broker stores the offsets and answers
        the next pull of each queue with the new one. Otherwise it tells the members, which must be
        online, with code 220.
        """
        header = call.header
        topic = self._topics.get(header.topic)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        if self._config.use_server_side_reset_offset:
            offsets = self._reset_here(header, topic)
        else:
            offsets = self._push_reset(header, topic, for_c=_is_cpp(call.language))
        log.info("offsets reset", group=header.group, topic=header.topic, queues=len(offsets))
        return response(ResponseCode.SUCCESS, body=encode_queue_table("offsetTable", offsets))

    def _reset_here(
        self, header: ResetOffsetRequestHeader, topic: TopicConfig
    ) -> dict[MessageQueue, int]:
        if self._config.broker_id != MASTER_ID:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        if self._groups.get(header.group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        wanted = range(topic.read_queue_nums)
        if header.queue_id >= 0:
            wanted = range(header.queue_id, header.queue_id + 1)
            if not self._exists(header.topic, header.queue_id):
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"queueId[{header.queue_id}] is illegal: topic[{header.topic}] has no such queue",
                )
        offsets = {self._queue(header.topic, i): self._target(header, i) for i in wanted}
        if not offsets:
            raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue, offset in offsets.items():
            if not self._offsets.reset(header.group, header.topic, queue.queue_id, offset):
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, too_many(self._offsets), limit="maxConsumerOffsets"
                )
        # In Java a waiting pull waits on. Here it is answered, so that its consumer goes on at
        # once.
        self._release_topic(header.topic)
        return offsets

    def _exists(self, topic: str, queue_id: int) -> bool:
        return self._topics.has_queue(topic, queue_id) or (
            self._store.queue_end(topic, queue_id) is not None
        )

    def _target(self, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        if header.queue_id < 0 or header.offset is None or header.offset == -1:
            return self._offset_at(header.topic, queue_id, header.timestamp)
        low = self._store.min_offset(header.topic, queue_id)
        high = self._store.max_offset(header.topic, queue_id)
        # Java accepts high + 1 too, which skips the next message.
        if not max(low, 0) <= header.offset <= high:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
            )
        return header.offset

    def _push_reset(
        self, header: ResetOffsetRequestHeader, topic: TopicConfig, *, for_c: bool
    ) -> dict[MessageQueue, int]:
        offsets = {}
        for queue_id in range(topic.write_queue_nums):
            stored = self._offsets.query(header.group, header.topic, queue_id)
            if stored < 0:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            target = self._offset_at(header.topic, queue_id, header.timestamp)
            if not header.is_force:
                target = min(target, stored)
            offsets[self._queue(header.topic, queue_id)] = target
        online = self._clients.consumer_group(header.group)
        if online is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "Consumer not online, so can not reset offset, "
                f"Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        body = (
            encode_reset_offsets_for_c(offsets)
            if for_c
            else encode_queue_table("offsetTable", offsets)
        )
        told = ResetOffsetRequestHeader(
            header.group, header.topic, header.timestamp, is_force=False
        )
        for member in online.members.values():
            _need_version(member, MQVersion.V3_0_7_SNAPSHOT)
        for member in online.members.values():
            command = requests.RESET_CONSUMER_CLIENT_OFFSET.command(told, body)
            try:
                member.connection.send_oneway(command)
            except CometMQError as error:  # the member's removal is under way
                log.warning("member not told", client_id=member.client_id, reason=str(error))
        return offsets

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of a queue at a store time; a negative time stands for the end."""
        if timestamp_ms < 0:
            return max(0, self._store.max_offset(topic, queue_id))
        return max(0, self._store.offset_by_time(topic, queue_id, timestamp_ms))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.broker_name, queue_id)

    # Questions

    async def consumer_status(
        self, _connection: Connection, call: Request[GetConsumerStatusRequestHeader]
    ) -> RemotingCommand:
        """Return the offsets of a topic as each member knows them.

        If the request names a client id, only that member is asked.
        """
        header = call.header
        group = self._clients.consumer_group(header.group)
        members = list(group.members.values()) if group is not None else []
        if not members:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        wanted = (header.client_addr or "").strip()
        if wanted:
            members = [member for member in members if member.client_id == wanted]
        for member in members:
            _need_version(member, MQVersion.V3_0_7_SNAPSHOT)
        question = GetConsumerStatusRequestHeader(header.topic, header.group)
        outcomes = await asyncio.gather(*(_status(member, question) for member in members))
        table = {
            member.client_id: queue_table(offsets)
            for member, offsets in zip(members, outcomes, strict=True)
            if offsets is not None
        }
        return response(ResponseCode.SUCCESS, body=encode_body({"consumerTable": table}))

    async def running_info(
        self, _connection: Connection, call: Request[GetConsumerRunningInfoRequestHeader]
    ) -> RemotingCommand:
        """Return what one member says of itself."""
        header = call.header
        return await self._relay(
            call.code, _relayed(call), b"", header.consumer_group, header.client_id
        )

    async def consume_directly(
        self, connection: Connection, call: Request[ConsumeMessageDirectlyResultRequestHeader]
    ) -> RemotingCommand:
        """Have one member's listener consume a stored message, given by its offset id."""
        header = call.header
        ext = {**_relayed(call), "brokerName": self._config.broker_name}
        topic = self._topics.get(header.topic) if header.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.get(header.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        body = self._record(header.msg_id or "")
        check_found(self._handlers, requests.CONSUME_MESSAGE_DIRECTLY, connection, call, body)
        client_id = header.client_id or ""
        return await self._relay(call.code, ext, body, header.consumer_group, client_id)

    def _record(self, msg_id: str) -> bytes:
        try:
            offset = parse_offset_id(msg_id).commit_log_offset
        except ProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
        record = self._store.message_at(offset)
        if record is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {offset}: no message of id {msg_id} is here",
            )
        return bytes(record)

    async def _relay(
        self, code: int, ext: dict[str, str], body: bytes, group: str, client_id: str
    ) -> RemotingCommand:
        online = self._clients.consumer_group(group)
        member = online.members.get(client_id) if online is not None else None
        if member is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        _need_version(member, MQVersion.V3_1_8_SNAPSHOT)
        try:
            answer = await member.connection.call(
                RemotingCommand(code, ext=ext, body=body), self._call_timeout_s
            )
        except RequestTimeoutError as error:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: {error}",
            ) from error
        except CometMQError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{client_id}> Exception: {error}",
            ) from error
        return response(answer.code, answer.remark, ext=answer.ext, body=answer.body)


def _relayed(call: Request[Any]) -> dict[str, str]:
    """Return the ext fields for the client that is asked, without what proves who asks (Java: with it).

    The client may be anybody's. Signatures cover values and neither names nor the code, and the
    client has chosen its own id: it could make another request of them.
    """
    return {name: text for name, text in ext_of(call).items() if name not in SIGNING_FIELDS}


async def _status(
    member: Member, question: GetConsumerStatusRequestHeader
) -> dict[MessageQueue, int] | None:
    """Ask a member for its offsets; return None if it fails, so that other answers count."""
    command = requests.GET_CONSUMER_STATUS_FROM_CLIENT.command(question)
    try:
        answer = await member.connection.call(command, STATUS_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return None
        check_limit(
            "bytes in a status",
            len(answer.body),
            "MAX_STATUS_LENGTH",
            MAX_STATUS_LENGTH,
            "ask for one topic of fewer queues",
        )
        return decode_queue_table(bytes(answer.body), "messageQueueTable", int)
    except CometMQError as error:
        member.connection.limit_hits.note(error)
        log.warning("no status from a member", client_id=member.client_id, reason=str(error))
        return None


def _need_version(member: Member, least: MQVersion) -> None:
    if member.version < least:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the client {member.client_id} does not support this feature: its version is "
            f"{member.version}, {least.name} ({int(least)}) is needed; upgrade it",
        )


def _is_cpp(language: str | int | None) -> bool:
    return language in ("CPP", int(LanguageCode.CPP))

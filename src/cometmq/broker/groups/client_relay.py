"""Pass requests of operators on to members of a group: codes 222, 223, 307 and 309.

Java: Broker2Client, AdminBrokerProcessor. Only the broker to which a client is connected can ask
the client.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

from cometmq.broker.found_messages import check_found
from cometmq.broker.groups.clients import Member
from cometmq.broker.groups.offset_handlers import too_many
from cometmq.broker.groups.offsets import check_clients_may_commit
from cometmq.broker.groups.questions import Questions, Statuses
from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.tables import BrokerTables
from cometmq.errors import CometMQError, ProtocolError, RequestTimeoutError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.model.route import MASTER_ID
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.consumers import encode_reset_offset_for_c
from cometmq.protocol.codes import LanguageCode, MQVersion, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.fastjson.queue_table import relayed_queue_table
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.remoting.connection import Connection
from cometmq.remoting.credentials import SIGNING_FIELDS
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.slices import run_slices

log = get_logger(__name__)

# How long a client may take to answer, including the run of a listener that gets a message.
CALL_TIMEOUT_S: Final = 10.0
_RESET_REMEDY: Final = "reset the queues one by one (queueId)"


class ClientRelay:
    """Passes requests on to group members. For the loop's thread only."""

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._tables = tables
        self._call_timeout_s = call_timeout_s
        self._config = parts.config
        self._store = parts.store
        self._clock = parts.clock
        self._long_answers = parts.long_answers
        self._questions = Questions(parts.long_answers)
        # The requests that `register` gives; none check anything before.
        self._handlers = Handlers()
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._release_topic = parts.waiting.release_topic

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offsets)
        handlers.register(requests.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.consumer_status)
        handlers.register(requests.GET_CONSUMER_RUNNING_INFO, self.running_info)
        handlers.register(requests.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    # Offsets

    async def reset_offsets(
        self, connection: Connection, call: Request[ResetOffsetRequestHeader]
    ) -> RemotingCommand:
        """Move a group's offsets to those of a time, or in one queue to a given offset.

        With useServerSideResetOffset (Java 5's default) the broker stores the offsets and answers
        the next pull of each queue with the new one. Otherwise it sends them to the members, which must
        be online, with code 220. Other requests are served in between: a topic may have 262,144 queues.
        """
        header = call.header
        check_clients_may_commit(header.group)
        async with self._long_answers.turn(connection):
            topic = self._topics.get(header.topic)
            if topic is None:
                raise Refused(
                    ResponseCode.TOPIC_NOT_EXIST,
                    "[reset-offset] reset offset failed, no topic in this broker. "
                    f"topic={header.topic}",
                )
            answer = LongAnswer(self._clock, self._config.max_frame_length, _RESET_REMEDY)
            if self._config.use_server_side_reset_offset:
                count = await self._reset_here(header, topic, answer)
                await self._tables.offsets_written()  # the answered reset survives a kill
                body = await _offset_table(answer)
            else:
                count, body = await self._push_reset(
                    header, topic, answer, for_c=_is_cpp(call.language)
                )
        log.info("offsets reset", group=header.group, topic=header.topic, queues=count)
        return response(ResponseCode.SUCCESS, body=body)

    async def _reset_here(
        self, header: ResetOffsetRequestHeader, topic: TopicConfig, answer: LongAnswer
    ) -> int:
        """Store the offsets, and return how many; nothing is stored if the answer is too long."""
        if self._config.broker_id != MASTER_ID:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        self._check_is_here(header)
        wanted = range(topic.read_queue_nums)
        if header.queue_id >= 0:
            wanted = range(header.queue_id, header.queue_id + 1)
            if not self._exists(header.topic, header.queue_id):
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"queueId[{header.queue_id}] is illegal: topic[{header.topic}] has no such queue",
                )
        offsets = array("q")  # a table of so many objects takes milliseconds to free
        for queue_id in wanted:
            offsets.append(self._target(header, queue_id))
            await self._add(answer, header.topic, queue_id, offsets[-1])
        if not offsets:
            raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in zip(wanted, offsets, strict=True):
            self._check_is_here(header)  # it may have been deleted since the last slice
            if not self._offsets.reset(header.group, header.topic, queue_id, offset):
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, too_many(self._offsets), limit="maxConsumerOffsets"
                )
            await answer.breathe()
        # In Java a waiting pull waits on. Here it is answered, so that its consumer goes on at
        # once.
        self._release_topic(header.topic)
        return len(offsets)

    def _check_is_here(self, header: ResetOffsetRequestHeader) -> None:
        if self._groups.get(header.group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        if self._topics.get(header.topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] was deleted meanwhile"
            )

    async def _add(self, answer: LongAnswer, topic: str, queue_id: int, offset: int) -> None:
        queue = MessageQueue(topic, self._config.broker_name, queue_id)
        await answer.add_of_queue(queue, offset)

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

    async def _push_reset(
        self,
        header: ResetOffsetRequestHeader,
        topic: TopicConfig,
        answer: LongAnswer,
        *,
        for_c: bool,
    ) -> tuple[int, bytes]:
        """Send the offsets to the members; return how many there are, and the body of the answer."""
        # C++ clients read a list.
        list_for_c = LongAnswer(self._clock, self._config.max_frame_length, _RESET_REMEDY)
        for queue_id in range(topic.write_queue_nums):
            stored = self._offsets.query(header.group, header.topic, queue_id)
            if stored < 0:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            target = self._offset_at(header.topic, queue_id, header.timestamp)
            if not header.is_force:
                target = min(target, stored)
            await self._add(answer, header.topic, queue_id, target)
            if for_c:
                queue = MessageQueue(header.topic, self._config.broker_name, queue_id)
                entry = encode_reset_offset_for_c(queue, target)
                await list_for_c.write(b"," + entry if queue_id else entry)
        members = self._clients.consumers(header.group)
        if not members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "Consumer not online, so can not reset offset, "
                f"Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        body = table = await _offset_table(answer)
        if for_c:
            body = await list_for_c.body(b'{"offsetTable":[', b"]}")
        sent = ResetOffsetRequestHeader(
            header.group, header.topic, header.timestamp, is_force=False
        )
        for member in members:
            _need_version(member, MQVersion.V3_0_7_SNAPSHOT)
        for member in members:
            command = requests.RESET_CONSUMER_CLIENT_OFFSET.command(sent, body)
            try:
                member.connection.send_oneway(command)
            except CometMQError as error:  # the member's removal is under way
                log.warning("member not notified", client_id=member.client_id, reason=str(error))
            await answer.breathe()
        return topic.write_queue_nums, table

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of a queue at a store time; a negative time stands for the end."""
        if timestamp_ms < 0:
            return max(0, self._store.max_offset(topic, queue_id))
        return max(0, self._store.offset_by_time(topic, queue_id, timestamp_ms))

    # Questions

    async def consumer_status(
        self, connection: Connection, call: Request[GetConsumerStatusRequestHeader]
    ) -> RemotingCommand:
        """Return the offsets of a topic as each member knows them.

        If the request names a client id, only that member is asked.
        """
        header = call.header
        members = self._clients.consumers(header.group)
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
        statuses = Statuses(self._questions, self._config.max_frame_length)
        question = GetConsumerStatusRequestHeader(header.topic, header.group)
        async with self._long_answers.turn(connection):
            await run_slices(statuses.ask(members, question))
        # Nobody else waits for these members.
        await statuses.all_came()
        remedy = "ask for one client by its id (clientAddr)"
        if statuses.is_too_long:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the members' answers are longer than {self._config.max_frame_length} bytes, the "
                f"limit com.rocketmq.remoting.frameMaxLength; {remedy}",
                limit="com.rocketmq.remoting.frameMaxLength",
            )
        async with self._long_answers.turn(connection):
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            for client_id, body in statuses.bodies.items():
                read: list[bytes] = []
                try:
                    await run_slices(_read_status(body, read))
                except ProtocolError as error:
                    statuses.leave_out(client_id, error)
                else:
                    await answer.add_encoded(encode_body(client_id), read[0])
            body = await answer.body(b'{"consumerTable":{', b"}}")
        statuses.report()
        return response(ResponseCode.SUCCESS, body=body)

    async def running_info(
        self, connection: Connection, call: Request[GetConsumerRunningInfoRequestHeader]
    ) -> RemotingCommand:
        """Return what one member says of itself."""
        header = call.header
        command = RemotingCommand(call.code, ext=_relayed(call))
        return await self._relay(connection, command, header.consumer_group, header.client_id)

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
        # The record stays where it lies until it is sent.
        command = RemotingCommand(call.code, ext=ext, body=body)
        client_id = header.client_id or ""
        return await self._relay(connection, command, header.consumer_group, client_id)

    def _record(self, msg_id: str) -> memoryview:
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
        return record

    async def _relay(
        self, asker: Connection, command: RemotingCommand, group: str, client_id: str
    ) -> RemotingCommand:
        online = self._clients.consumer_group(group)
        member = online.members.get(client_id) if online is not None else None
        if member is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        _need_version(member, MQVersion.V3_1_8_SNAPSHOT)
        try:
            answer = await self._questions.ask(
                asker, member.connection, command, self._call_timeout_s
            )
        except Refused:
            raise
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
    """Return the ext fields for the client that is asked, without the asker's signature (Java: with it).

    The client may belong to anybody. A signature covers values and neither names nor the code, and
    the client has chosen its own id, so it could sign another request with the asker's signature.
    """
    return {name: text for name, text in ext_of(call).items() if name not in SIGNING_FIELDS}


def _read_status(body: bytes, read: list[bytes]) -> Iterator[None]:
    """Read the offsets of a member's answer in steps, and append their table to `read`."""
    read.append((yield from relayed_queue_table(body, "messageQueueTable")))


async def _offset_table(answer: LongAnswer) -> bytes:
    return await answer.body(b'{"offsetTable":{', b"}}")


def _need_version(member: Member, least: MQVersion) -> None:
    if member.version < least:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the client {member.client_id} does not support this feature: its version is "
            f"{member.version}, {least.name} ({int(least)}) is needed; upgrade it",
        )


def _is_cpp(language: str | int | None) -> bool:
    return language in ("CPP", int(LanguageCode.CPP))

"""Make, change, list and delete consumer groups, and forbid them topics: codes 200, 201, 207, 225,
352 and 353 (Java: AdminBrokerProcessor).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.tables import BrokerTables
from cometmq.errors import IllegalArgumentError, ProtocolError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.attributes import GROUP_ATTRIBUTES, changed
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.protocol import limits, requests
from cometmq.protocol.bodies.cluster import SubscriptionGroupWrapper
from cometmq.protocol.bodies.overview import GroupForbidden
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

log = get_logger(__name__)


class GroupHandlers:
    """Answers when the change is on disk and `confirmed` has returned, which means that slaves have
    it. For the loop's thread.
    """

    def __init__(
        self, parts: Parts, tables: BrokerTables, confirmed: Callable[[], Awaitable[None]]
    ) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._groups = parts.groups
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._long_answers = parts.long_answers
        self._tables = tables
        self._confirmed = confirmed

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update)
        handlers.register(requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.update_list)
        handlers.register(requests.DELETE_SUBSCRIPTIONGROUP, self.delete)
        handlers.register(requests.GET_SUBSCRIPTIONGROUP_CONFIG, self.group)
        handlers.register(requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups)
        handlers.register(requests.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbid)

    async def update(self, connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Make a group, or change it."""
        group = self._checked(requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.typed_body(call))
        log.info("group set on request", group=group.group_name, peer=connection.peer)
        self._groups.put(group)
        return await self._settled()

    async def update_list(self, connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Make or change many groups, or none of them if one is refused."""
        listed = requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.typed_body(
            call
        ).group_config_list
        if not listed:
            raise limits.nothing_named("groups", "groupConfigList")
        checked = list(map(self._checked, listed))
        log.info("groups set on request", count=len(checked), peer=connection.peer)
        self._groups.put_all(checked)
        return await self._settled()

    def _checked(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Return the group with the attributes that it has after the changes which it names as such.

        Raises Refused for a group that cannot be.
        """
        name = group.group_name
        if fault := names.group_fault(name):
            raise _illegal(fault)
        if not 0 <= group.retry_queue_nums <= limits.MAX_QUEUES_OF_TOPIC:
            raise _illegal(
                f"group {name} cannot have {group.retry_queue_nums} retry queues; the limit "
                f"MAX_QUEUES_OF_TOPIC is {limits.MAX_QUEUES_OF_TOPIC}; give it fewer",
                limit="MAX_QUEUES_OF_TOPIC" if group.retry_queue_nums > 0 else "",
            )
        known = self._groups.get(name)
        try:
            attributes = changed(
                GROUP_ATTRIBUTES, None if known is None else known.attributes, group.attributes
            )
        except IllegalArgumentError as error:
            raise _illegal(f"group {name}: {error}") from error
        checked = msgspec.structs.replace(group, attributes=attributes)
        try:
            # One group that cannot be written would keep all others from the disk.
            encode_body(SubscriptionGroupWrapper(subscription_group_table={name: checked}))
        except ProtocolError as error:
            raise _illegal(f"group {name} cannot be stored: {error}") from error
        return checked

    async def delete(
        self, connection: Connection, call: Request[DeleteSubscriptionGroupRequestHeader]
    ) -> RemotingCommand:
        """Delete a group, and its offsets if the request asks for that. A group that does not
        exist counts as deleted, as in Java.
        """
        header = call.header
        log.info("group deleted on request", group=header.group_name, peer=connection.peer)
        self._groups.remove(header.group_name)
        if header.clean_offset or header.remove_offset:
            self._offsets.remove_group(header.group_name)
            await self._tables.offsets_written()
        return await self._settled()

    async def forbid(
        self, connection: Connection, call: Request[UpdateGroupForbiddenRequestHeader]
    ) -> RemotingCommand:
        """Forbid a group to read a topic, or allow it again; return whether it may read it now.

        This refuses pulls that leave the selection to the group's heartbeat, as those of push
        consumers do.
        """
        header = call.header
        if header.readable is not None:
            if self._groups.get(header.group) is None:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.unknown(header.group)
                )
            if self._topics.get(header.topic) is None:
                raise Refused(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"topic[{header.topic}] not exist, apply first please!",
                )
            log.info(
                "reading set on request",
                group=header.group,
                topic=header.topic,
                readable=header.readable,
                peer=connection.peer,
            )
            self._groups.forbid(header.group, header.topic, forbidden=not header.readable)
            await self._settled()
        readable = not self._groups.forbids(header.group, header.topic)
        body = encode_body(GroupForbidden(header.group, readable, header.topic))
        return response(ResponseCode.SUCCESS, body=body)

    async def _settled(self) -> RemotingCommand:
        await self._tables.groups_written()
        await self._confirmed()
        return response(ResponseCode.SUCCESS)

    def group(
        self, _connection: Connection, call: Request[GetSubscriptionGroupConfigRequestHeader]
    ) -> RemotingCommand:
        """Return a group as it is set up here; create it first if the use of a group creates it, as
        Java does.
        """
        group = self._groups.find(call.header.group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.unknown(call.header.group)
            )
        return response(ResponseCode.SUCCESS, body=encode_body(group))

    async def all_groups(self, connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return every group as it is set up here."""
        table = self._groups.table
        remedy = "ask for the groups one by one, code 352"
        async with self._long_answers.turn(connection):
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            version = encode_body(table.data_version)
            forbidden = encode_body(table.forbidden_table)
            for group in list(self._groups.all()):
                await answer.add(group.group_name, group)
            before = b'{"dataVersion":%b,"forbiddenTable":%b,"subscriptionGroupTable":{' % (
                version,
                forbidden,
            )
            body = await answer.body(before, b"}}")
        return response(ResponseCode.SUCCESS, body=body)


def _illegal(remark: str, *, limit: str = "") -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark, limit=limit)

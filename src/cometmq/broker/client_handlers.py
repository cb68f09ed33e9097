"""Heartbeats and group membership: codes 34, 35, 38 and, towards consumers, 40.

Java: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final

import structlog

from cometmq.broker.clients import ClientManager, Member
from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupManager
from cometmq.broker.topics import TopicManager
from cometmq.errors import ConnectionLostError
from cometmq.model import names
from cometmq.model.subscription import ConsumerData
from cometmq.protocol.bodies import GetConsumerListByGroupResponseBody, HeartbeatData
from cometmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, request, response
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from cometmq.protocol.json_dialect import decode_body, encode_body
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock

log = structlog.get_logger(__name__)

# A client may leave its subscriptions out of a heartbeat only after the broker said that they did
# not change; this broker always asks for them, which every client can serve.
_HEARTBEAT_EXT = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


# Of one heartbeat; others are served in between.
_GROUPS_AT_ONCE: Final = 16


class ClientHandlers:
    """For the loop's thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        clients: ClientManager,
        groups: GroupManager,
        topics: TopicManager,
    ) -> None:
        self._config = config
        self._clock = clock
        self._clients = clients
        self._groups = groups
        self._topics = topics
        clients.on_members_changed.append(self.notify_members)

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.HEART_BEAT, NoHeader, self.heartbeat)
        handlers.register(
            RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader, self.unregister
        )
        handlers.register(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GetConsumerListByGroupRequestHeader,
            self.consumer_list,
        )

    def heartbeat(
        self, connection: Connection, call: Request[NoHeader]
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Take in every group of the client; unknown consumer groups are made if allowed.

        It does not wait for the disk: no message depends on groups and retry topics that are made
        here, and a heartbeat makes them again.
        """
        data = decode_body(call.body, HeartbeatData)
        member = Member(
            data.client_id,
            connection,
            _language(call.language),
            call.version,
            self._clock.now_ms(),
        )
        if len(data.consumer_data_set) > _GROUPS_AT_ONCE:
            return self._take_in_many(member, data)
        self._take_in_consumers(member, data, data.consumer_data_set)
        return self._take_in_producers(member, data)

    async def _take_in_many(self, member: Member, data: HeartbeatData) -> RemotingCommand:
        consumers = data.consumer_data_set
        for start in range(0, len(consumers), _GROUPS_AT_ONCE):
            self._take_in_consumers(member, data, consumers[start : start + _GROUPS_AT_ONCE])
            await asyncio.sleep(0)
            if member.connection.closed:
                raise ConnectionLostError("the client is gone", address=member.connection.peer)
        return self._take_in_producers(member, data)

    def _take_in_consumers(
        self, member: Member, data: HeartbeatData, consumers: Iterable[ConsumerData]
    ) -> None:
        for consumer in consumers:
            if self._prepare_group(consumer, without_subscriptions=data.without_sub):
                self._clients.register_consumer(member, consumer)

    def _take_in_producers(self, member: Member, data: HeartbeatData) -> RemotingCommand:
        for producer in data.producer_data_set:
            self._clients.register_producer(member, producer.group_name)
        return response(ResponseCode.SUCCESS, ext=_HEARTBEAT_EXT)

    def _prepare_group(self, consumer: ConsumerData, *, without_subscriptions: bool) -> bool:
        """Make group and retry topic if need be; False when the group may not be used."""
        group = self._groups.find(consumer.group_name)
        if group is None:
            log.warning("heartbeat of an unknown group ignored", group=consumer.group_name)
            return False
        if group.retry_queue_nums > 0:
            self._topics.create_for_group(
                names.retry_topic(consumer.group_name), group.retry_queue_nums
            )
        if without_subscriptions:
            online = self._clients.consumer_group(consumer.group_name)
            if online is None:
                return False
            consumer.subscription_data_set = list(online.subscriptions.values())
        return True

    def unregister(
        self, _connection: Connection, call: Request[UnregisterClientRequestHeader]
    ) -> RemotingCommand:
        """Remove a client that stops from its groups."""
        header = call.header
        assert header is not None
        if header.producer_group is not None:
            self._clients.unregister_producer(header.producer_group, header.client_id)
        if header.consumer_group is not None:
            self._clients.unregister_consumer(header.consumer_group, header.client_id)
        return response(ResponseCode.SUCCESS)

    def consumer_list(
        self, _connection: Connection, call: Request[GetConsumerListByGroupRequestHeader]
    ) -> RemotingCommand:
        """The client ids of a group's live members."""
        header = call.header
        assert header is not None
        ids = self._clients.consumer_ids(header.consumer_group)
        if not ids:
            return response(  # no refusal: a group's first member asks before it is known
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        return response(
            ResponseCode.SUCCESS, body=encode_body(GetConsumerListByGroupResponseBody(ids))
        )

    def notify_members(self, group: str, members: list[Member]) -> None:
        """Tell a group's members to rebalance (code 40, one way)."""
        config = self._groups.get(group)
        if not self._config.notify_consumer_ids_changed_enable or (
            config is not None and not config.notify_consumer_ids_changed_enable
        ):
            return
        for member in members:
            try:
                member.connection.send_oneway(
                    request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        NotifyConsumerIdsChangedRequestHeader(consumer_group=group),
                    )
                )
            except ConnectionLostError:  # its own removal is under way
                log.debug("member not notified", group=group, client_id=member.client_id)


def _language(language: str | int | None) -> str:
    if isinstance(language, int):
        return LanguageCode(language).name if language in set(LanguageCode) else "OTHER"
    return language or "OTHER"

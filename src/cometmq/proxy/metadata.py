"""Ask brokers for the types of topics and the settings of groups, and remember them for a while.

Java: ClusterMetadataService.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError, RemoteError, RouteNotFoundError
from cometmq.model.attributes import MESSAGE_TYPE
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.route import TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from cometmq.proxy.configuration.config import MAX_REMEMBERED, REMEMBER_S
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError

MIXED: Final = "MIXED"
NORMAL: Final = "NORMAL"
_NOT_THERE: Final = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST)


class Metadata:
    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._types: dict[str, tuple[float, str]] = {}
        self._groups: dict[str, tuple[float, SubscriptionGroupConfig]] = {}

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic. Raises RefusedError if there is none."""
        routes = self._instance.routes
        if routes.route(topic) is None:
            try:
                await routes.refresh(topic)
            except RouteNotFoundError as error:
                raise RefusedError(
                    wire.TOPIC_NOT_FOUND, f"topic {topic} does not exist: {error}; create it"
                ) from error
        route = routes.route(topic)
        assert route is not None, "refreshed just now"
        return route

    async def topic_type(self, topic: str) -> str:
        """Return the attribute message.type of a topic, NORMAL without one. Raises as `route` does."""
        now = asyncio.get_running_loop().time()
        known = self._types.get(topic)
        if known is not None and known[0] > now:
            return known[1]
        route = await self.route(topic)
        header = GetTopicConfigRequestHeader(topic=topic)
        for address in _masters(route):
            answer = await self._instance.remoting.ask(
                address, requests.GET_TOPIC_CONFIG, header, what=f"the settings of topic {topic}"
            )
            found = answer.body.attributes.get(MESSAGE_TYPE, NORMAL)
            if len(self._types) >= MAX_REMEMBERED:
                self._types.clear()
            self._types[topic] = now + REMEMBER_S, found
            return found
        raise RefusedError(wire.FORBIDDEN, f"the route of topic {topic} names no master")

    async def group(self, group: str, topic: str | None) -> SubscriptionGroupConfig:
        """Return the settings of a group at a broker of `topic`, or those of a new group."""
        now = asyncio.get_running_loop().time()
        known = self._groups.get(group)
        if known is not None and known[0] > now:
            return known[1]
        addresses = sorted(self._instance.routes.addresses(masters_only=True))
        if topic is not None:
            addresses = _masters(await self.route(topic))
        found = SubscriptionGroupConfig(group_name=group)
        for address in addresses[:1]:
            header = GetSubscriptionGroupConfigRequestHeader(group=group)
            try:
                answer = await self._instance.remoting.ask(
                    address,
                    requests.GET_SUBSCRIPTIONGROUP_CONFIG,
                    header,
                    what=f"the settings of group {group}",
                )
            except RemoteError as error:
                if error.code not in _NOT_THERE:
                    raise
            else:
                found = answer.body
        if len(self._groups) >= MAX_REMEMBERED:
            self._groups.clear()
        self._groups[group] = now + REMEMBER_S, found
        return found

    async def broker_named(self, broker_name: str, topic: str) -> str:
        """Return the address of a broker's master. Raises RefusedError if the topic's route names none."""
        await self.route(topic)
        try:
            return self._instance.need_master(broker_name, topic)
        except CometMQError as error:
            raise RefusedError(wire.BAD_REQUEST, str(error)) from error


def _masters(route: TopicRouteData) -> list[str]:
    return [address for data in route.broker_datas if (address := data.master()) is not None]

"""Make typed calls to name servers, with fail-over among them (Java: MQClientAPIImpl)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from cometmq.client.cluster.name_server_choice import FAILURES, NameServerChoice
from cometmq.errors import RouteNotFoundError
from cometmq.model.route import TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import GetRouteInfoRequestHeader
from cometmq.protocol.limits import check_route
from cometmq.remoting.client import ASK_TIMEOUT_S, RemotingClient

# How many other name servers are asked for a topic that the first one does not know.
_MOST_OPINIONS: Final = 4


class NamesrvApi:
    """Asks the name server that answered last. If that fails, asks each of the others once.

    Begins with the address of the index `first`, so that clients spread over the name servers.
    """

    def __init__(
        self, remoting: RemotingClient, addresses: Sequence[str], *, first: int = 0
    ) -> None:
        self._remoting = remoting
        self._choice = NameServerChoice(addresses, first)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic.

        A name server that has just started does not know all brokers yet, so another one is asked
        before the topic counts as unknown. Raises RouteNotFoundError when no name server knows it,
        RemotingError when none could be asked, RemoteError for any other refusal.
        """

        async def ask(address: str) -> TopicRouteData | None:
            return await self._route_at(address, topic)

        address, route = await self._choice.ask(ask)
        if route is None:
            others = self._choice.others(address)[:_MOST_OPINIONS]
            opinions = await asyncio.gather(*(self._opinion(other, topic) for other in others))
            route = next((opinion for opinion in opinions if opinion is not None), None)
        if route is None:
            raise RouteNotFoundError(
                f"no name server of {';'.join(self._choice.addresses)} knows a route of topic "
                f"{topic}; create the topic, or, to send to it, enable autoCreateTopicEnable at the broker",
                code=ResponseCode.TOPIC_NOT_EXIST,
            )
        return route

    async def reach(self) -> None:
        """Connect to a name server. Raises RemotingError if none can be reached."""
        await self._choice.ask(self._remoting.connection)

    async def topic_names(self) -> list[str]:
        """Return all topics that a name server knows. Raises RemotingError, RemoteError."""
        _, names = await self._choice.ask(self._names_at)
        return names

    async def _opinion(self, address: str, topic: str) -> TopicRouteData | None:
        try:
            return await self._route_at(address, topic)
        except FAILURES:
            self._choice.failed(address)
            return None

    async def _route_at(self, address: str, topic: str) -> TopicRouteData | None:
        """Return the route that one name server knows, None if it knows none."""
        answer = await self._remoting.ask(
            address,
            requests.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True),
            what=f"the route of topic {topic}",
            timeout_s=ASK_TIMEOUT_S,
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.command.body:
            return None
        return check_route(answer.body)

    async def _names_at(self, address: str) -> list[str]:
        answer = await self._remoting.ask(
            address,
            requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            NoHeader(),
            what="the list of topics",
            timeout_s=ASK_TIMEOUT_S,
        )
        return answer.body.topic_list if answer.command.body else []

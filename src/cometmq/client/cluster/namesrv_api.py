"""Makes typed calls to name servers, with fail-over among them (Java: MQClientAPIImpl)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from cometmq.errors import RemotingError, RouteNotFoundError
from cometmq.model.route import TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import HeaderT, NoHeader
from cometmq.protocol.headers import GetRouteInfoRequestHeader
from cometmq.protocol.limits import check_route
from cometmq.protocol.request_type import AnswerBodyT, AnswerT, RequestType
from cometmq.remoting.client import ASK_TIMEOUT_S, Answer, RemotingClient


class NamesrvApi:
    """Asks the name server that answered last. If that fails, asks each of the others once."""

    def __init__(self, remoting: RemotingClient, addresses: Sequence[str]) -> None:
        self._remoting = remoting
        self._addresses = list(addresses)
        self._current = 0

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic.

        Raises RouteNotFoundError when the name server knows none, RemotingError when no name server
        could be asked, RemoteError for any other refusal.
        """
        answer = await self._ask(
            requests.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True),
            what=f"the route of topic {topic}",
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.command.body:
            raise RouteNotFoundError(
                f"no name server of {';'.join(self._addresses)} knows a route of topic {topic}; "
                "create the topic, or enable autoCreateTopicEnable at the broker",
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=answer.command.remark,
            )
        return check_route(answer.body)

    async def topic_names(self) -> list[str]:
        """Return all topics that a name server knows. Raises RemotingError, RemoteError."""
        answer = await self._ask(
            requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader(), what="the list of topics"
        )
        return answer.body.topic_list if answer.command.body else []

    async def _ask(
        self,
        request_type: RequestType[HeaderT, Any, AnswerT, AnswerBodyT],
        header: HeaderT,
        *,
        what: str,
        also: Container[int] = (),
    ) -> Answer[AnswerT, AnswerBodyT]:
        failure: RemotingError | None = None
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                return await self._remoting.ask(
                    address,
                    request_type,
                    header,
                    what=what,
                    timeout_s=ASK_TIMEOUT_S,
                    also=also,
                )
            except RemotingError as error:
                failure = error
                self._current = (self._current + 1) % len(self._addresses)
        assert failure is not None, "there is at least one name server"
        raise failure

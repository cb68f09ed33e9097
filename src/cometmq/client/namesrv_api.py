"""Typed calls to name servers, with fail-over among them (Java: MQClientAPIImpl)."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.errors import RemoteError, RemotingError, RouteNotFoundError
from cometmq.model.route import TopicRouteData
from cometmq.protocol.bodies import TopicList
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.headers import GetRouteInfoRequestHeader
from cometmq.protocol.json_dialect import decode_body
from cometmq.protocol.limits import check_route
from cometmq.remoting.client import RemotingClient


class NamesrvApi:
    """Asks the name server that answered last; when it fails, each of the others once."""

    def __init__(
        self, remoting: RemotingClient, addresses: Sequence[str], timeout_s: float = 3.0
    ) -> None:
        self._remoting = remoting
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._current = 0

    async def topic_route(self, topic: str) -> TopicRouteData:
        """The route of a topic.

        Raises RouteNotFoundError when the name server knows none, RemotingError when no name server
        could be asked, RemoteError for any other refusal.
        """
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = await self._call(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
        if answer.code == ResponseCode.SUCCESS and answer.body:
            return check_route(decode_body(bytes(answer.body), TopicRouteData))
        if answer.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUCCESS):
            raise RouteNotFoundError(
                f"no name server of {';'.join(self._addresses)} knows a route of topic {topic}; "
                "create the topic, or enable autoCreateTopicEnable at the broker",
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=answer.remark,
            )
        raise RemoteError(
            f"the route of topic {topic} was refused with code {answer.code}: {answer.remark}",
            code=answer.code,
            remark=answer.remark,
        )

    async def topic_names(self) -> list[str]:
        """All topics that a name server knows. Raises RemotingError, RemoteError."""
        answer = await self._call(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(
                f"the list of topics was refused with code {answer.code}: {answer.remark}",
                code=answer.code,
                remark=answer.remark,
            )
        return decode_body(bytes(answer.body), TopicList).topic_list if answer.body else []

    async def _call(self, command: RemotingCommand) -> RemotingCommand:
        failure: RemotingError | None = None
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                return await self._remoting.call(address, command, self._timeout_s)
            except RemotingError as error:
                failure = error
                self._current = (self._current + 1) % len(self._addresses)
        assert failure is not None, "there is at least one name server"
        raise failure

"""Provides the calls to name servers and brokers that all admin classes share.

Java: MQClientAPIImpl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from cometmq.errors import RemotingError, RouteNotFoundError
from cometmq.model.route import TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import GetRouteInfoRequestHeader
from cometmq.protocol.limits import check_route
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import Credentials, check_credentials
from cometmq.remoting.tls import Tls, tls_of
from cometmq.runtime.network import TCP_NETWORK, Network


class AdminClient:
    """The base of the admin classes. It holds the connections and asks name servers for routes.

    `namesrv` is `host:port`; give several addresses joined by `;` or in a list. `credentials` and
    `tls` are those of producers and consumers. Connections are made through `network`. Use the
    class as an asynchronous context manager, on one loop.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        credentials: Credentials | None = None,
        tls: bool | Tls | None = None,
        network: Network = TCP_NETWORK,
    ) -> None:
        self._namesrv = namesrv.split(";") if isinstance(namesrv, str) else list(namesrv)
        self._remoting = RemotingClient(
            credentials=check_credentials(credentials), tls=tls_of(tls), network=network
        )

    async def close(self) -> None:
        await self._remoting.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _route(self, topic: str) -> TopicRouteData:
        """Return the route of the topic from the first name server that answers."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        failure: RemotingError | None = None
        for address in self._namesrv:
            try:
                answer = await self._remoting.ask(
                    address,
                    requests.GET_ROUTEINFO_BY_TOPIC,
                    header,
                    what=f"the route of topic {topic}",
                    also=(ResponseCode.TOPIC_NOT_EXIST,),
                )
            except RemotingError as error:
                failure = error
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFoundError(
                    f"the name server {address} knows no route of topic {topic}",
                    code=answer.code,
                    remark=answer.command.remark,
                    address=address,
                )
            return check_route(answer.body)
        assert failure is not None, "there is at least one name server"
        raise failure


def master_of(route: TopicRouteData, topic: str, broker_name: str) -> str:
    """Return the address of a broker's master.

    Raises RouteNotFoundError when the route names no master.
    """
    broker = route.broker(broker_name)
    master = broker.master() if broker is not None else None
    if master is None:
        raise RouteNotFoundError(
            f"the route of topic {topic} names no master of broker {broker_name}"
        )
    return master

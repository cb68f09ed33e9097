"""Provide the base of the rooms of `AdminClient`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from cometmq.admin.servers import Servers
from cometmq.protocol.header import HeaderT
from cometmq.protocol.request_type import AnswerBodyT, AnswerT, BodyT, RequestType
from cometmq.remoting.client import Answer

T = TypeVar("T")


class Room:
    """Holds the calls for one kind of thing; all rooms of a client share its `servers`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def _at_brokers(
        self,
        ask: Callable[[str], Awaitable[T]],
        what: str,
        *,
        cluster: str | None,
        broker: str | None,
        slaves: bool = False,
    ) -> dict[str, T]:
        """Return what `ask` returns for each broker that the caller chose, by address.

        Brokers of a cluster that were lost, or of which only slaves are registered, fail unasked.
        """
        addresses, missing = await self._servers.addresses_and_missing(
            cluster=cluster, broker=broker, slaves=slaves
        )
        return await self._servers.each(addresses, ask, what, missing=missing)

    async def _change_at(
        self,
        change: Callable[[str], Awaitable[T]],
        what: str,
        *,
        cluster: str | None,
        broker: str | None,
        slaves: bool = False,
    ) -> dict[str, T]:
        """Return what `change` returns for each registered broker that the caller chose, by
        address.
        """
        addresses = await self._servers.addresses(cluster=cluster, broker=broker, slaves=slaves)
        return await self._servers.each(addresses, change, what)

    async def _ask_brokers(
        self,
        request_type: RequestType[HeaderT, BodyT, AnswerT, AnswerBodyT],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
        read: Callable[[Answer[AnswerT, AnswerBodyT]], T],
        cluster: str | None,
        broker: str | None,
        slaves: bool = False,
    ) -> dict[str, T]:
        """Return what `read` makes of the answer of each broker, as `_at_brokers` chooses them."""
        addresses, missing = await self._servers.addresses_and_missing(
            cluster=cluster, broker=broker, slaves=slaves
        )
        return await self._servers.ask_each(
            addresses, request_type, header, body, what=what, read=read, missing=missing
        )

    async def _change_brokers(
        self,
        request_type: RequestType[HeaderT, BodyT, Any, Any],
        header: HeaderT,
        body: BodyT | None = None,
        *,
        what: str,
        cluster: str | None,
        broker: str | None,
        slaves: bool = False,
        timeout_s: float | None = None,
    ) -> list[str]:
        """Send one request to each broker, as `_change_at` chooses them; return their addresses."""
        addresses = await self._servers.addresses(cluster=cluster, broker=broker, slaves=slaves)
        return await self._servers.change_each(
            addresses, request_type, header, body, what=what, timeout_s=timeout_s
        )

"""Say what a cluster wants of its servers, in real time and in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

from cometmq.broker.server import Broker
from cometmq.namesrv.server import NameServer

_REGISTERED_WITHIN_S: Final = 60.0


def name_server_name(index: int) -> str:
    return f"namesrv-{index}"


def broker_name(index: int) -> str:
    """Return `broker-a`, …, `broker-z`, then `broker-26` and so on."""
    return f"broker-{chr(ord('a') + index) if index < 26 else index}"


async def all_registered(servers: Servers) -> None:
    """Wait until every name server knows every broker. A broker's start waits for 3 s at most."""
    async with asyncio.timeout(_REGISTERED_WITHIN_S):
        while any(  # noqa: ASYNC110 - a name server tells nobody who has registered
            len(each.table.live()) < len(servers.brokers) for each in servers.name_servers
        ):
            await asyncio.sleep(0.01)


class Servers(Protocol):
    """Starts and stops the name servers and brokers of a cluster, each by its index.

    A server that was stopped stays in its list until it is started again.
    """

    name_servers: list[NameServer]
    brokers: list[Broker]

    @property
    def namesrv(self) -> str:
        """Return the name servers' addresses in one text, as clients take it."""

    @property
    def directory(self) -> Path:
        """Return where the stores lie."""

    async def start(self) -> None:
        """Start the name servers, then the brokers; return when all are registered."""

    async def stop(self) -> None:
        """Stop all servers. Idempotent."""

    async def stop_broker(self, index: int) -> None:
        """Stop a broker cleanly."""

    async def start_broker(self, index: int) -> None:
        """Start a stopped broker, with its store and under its address."""

    async def stop_name_server(self, index: int) -> None:
        """Stop a name server cleanly."""

    async def start_name_server(self, index: int) -> None:
        """Start a stopped name server under its address; its route table is empty."""

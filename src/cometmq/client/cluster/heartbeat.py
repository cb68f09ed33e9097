"""Announce this client's groups to brokers (Java: sendHeartbeatToAllBroker).

A broker knows a client by its connection, so a heartbeat follows every connect at once. A broker
that restarted has forgotten the group, and answers the group's pulls only after it got a heartbeat
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.client.cluster.broker_api import BrokerApi
from cometmq.client.cluster.routes import RouteCache
from cometmq.errors import AccessDeniedError, CometMQError, RemotingError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.bodies.cluster import HeartbeatData
from cometmq.remoting.connection import Connection
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

HEARTBEAT_INTERVAL_S: Final = 30.0
REVIVE_FIRST_S: Final = 0.1
REVIVE_LAST_S: Final = 1.0
# Groups that are added within this time share one heartbeat.
TOGETHER_S: Final = 0.1


class Heartbeats:
    """Sends heartbeats of one client to every broker its routes name. For the loop's thread.

    `data` returns the body to send, or None while the client is in no group. `on_reached` is called
    when a broker got the first heartbeat of a connection.
    """

    def __init__(
        self,
        brokers: BrokerApi,
        routes: RouteCache,
        owner: TaskOwner,
        data: Callable[[], HeartbeatData | None],
        on_reached: Callable[[str], None],
    ) -> None:
        self._brokers = brokers
        self._routes = routes
        self._owner = owner
        self._data = data
        self._on_reached = on_reached
        # Addresses whose present connection has carried a heartbeat, and the edition of its data.
        self._reached: dict[str, int] = {}
        # Counts the changes of groups and subscriptions of which brokers have to learn soon.
        self._edition = 0
        self._is_planned = False
        self._reviving: set[str] = set()
        # Addresses whose connection was lost, or that the last heartbeat did not reach.
        self._failed: set[str] = set()
        # Addresses to which a heartbeat is on its way, perhaps on a connection made for the
        # heartbeat.
        self._beating: set[str] = set()
        # By address, why its broker did not let this client in.
        self._denied: dict[str, AccessDeniedError] = {}
        # By address, the refusal that was logged last.
        self._reported: dict[str, str] = {}
        self._quiet = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        self._closed = True

    async def beat_all(self) -> None:
        """Send one heartbeat to every broker. Revive brokers in the background if it fails."""
        await asyncio.gather(*(self._try_beat(address) for address in sorted(self._targets())))

    async def join(self) -> None:
        """Call `beat_all`. Raises AccessDeniedError when a broker does not let this client in."""
        await self.beat_all()
        for error in self._denied.values():
            raise error

    async def introduce(self) -> None:
        """Send one heartbeat to every broker that got none on its present connection. Leave out
        brokers that the last heartbeat did not reach, since they are being revived.
        """
        strangers = self._targets() - self._reached.keys() - self._failed
        await asyncio.gather(*(self._try_beat(address) for address in sorted(strangers)))

    def is_lost(self, address: str) -> bool:
        """Say whether this address is being revived: its connection was lost, or the last heartbeat
        did not reach it.
        """
        return address in self._failed

    @property
    def all_reached(self) -> bool:
        """Say whether no address is lost."""
        return not self._failed

    async def settle(self) -> None:
        """Wait for heartbeats that are on their way.

        A Java broker serves heartbeats and requests to unregister in different threads. If it
        served a heartbeat last, a member that is gone would stay in the group, with its share of
        the queues.
        """
        if self._beating:
            await self._quiet.wait()

    async def beat(self, address: str) -> None:
        """Send one heartbeat. Raises RemotingError or RemoteError."""
        data = self._data()
        if data is None:
            return
        edition = self._edition
        self._beating.add(address)
        self._quiet.clear()
        try:
            await self._brokers.heartbeat(address, data)
        finally:
            self._beating.discard(address)
            if not self._beating:
                self._quiet.set()
        self._failed.discard(address)
        self._denied.pop(address, None)
        self._reported.pop(address, None)
        is_first = address not in self._reached
        self._reached[address] = max(edition, self._reached.get(address, 0))
        if is_first:
            self._on_reached(address)
        if edition != self._edition:
            self._plan()  # a group was added while the heartbeat was under way

    def beat_new(self) -> None:
        """Send background heartbeats to brokers that got none on their present connection."""
        for address in sorted(self._targets() - self._reached.keys() - self._reviving):
            self.revive(address)

    def beat_soon(self) -> None:
        """Announce a change of groups or subscriptions in the background to brokers whose last
        heartbeat did not have it: at once to those that got none, soon to the others.

        Changes within TOGETHER_S share one heartbeat per broker. Java sends one at each start. A
        broker asks nobody about a transaction until it knows a producer of the group.
        """
        self._edition += 1
        self.beat_new()
        self._plan()

    def on_connect(self, address: str, connection: Connection) -> None:
        """Send a heartbeat on a new connection, and watch for the loss of the connection."""
        self._reached.pop(address, None)
        connection.on_close.append(lambda _: self._on_lost(address))
        if address in self._targets() and address not in self._beating:
            self.revive(address)

    def miss(self, address: str) -> None:
        """Take an address for lost until a heartbeat reaches it, after a call to it has failed."""
        self._failed.add(address)
        self.revive(address)

    def revive(self, address: str) -> None:
        """Try to reach a broker, with a short capped back-off, until it answers or its address
        leaves the routes."""
        if address not in self._reviving and not self._closed:
            self._reviving.add(address)
            self._owner.spawn(self._revive(address), f"revive-{address}")

    def _targets(self) -> set[str]:
        data = self._data()
        if data is None:
            return set()
        return self._routes.addresses(masters_only=not data.consumer_data_set)

    def _plan(self) -> None:
        if not self._is_planned and not self._closed:
            self._is_planned = True
            self._owner.spawn(self._announce(), "announce-groups")

    async def _announce(self) -> None:
        try:
            await asyncio.sleep(TOGETHER_S)
        finally:
            self._is_planned = False
        for address in sorted(self._targets()):
            if self._reached.get(address) != self._edition:
                self.revive(address)

    def _on_lost(self, address: str) -> None:
        self._reached.pop(address, None)
        if self._closed or address not in self._targets():
            return
        log.info("connection to a broker lost", address=address)
        for topic in self._routes.topics_at(address):
            self._routes.refresh_soon(topic)
        self.miss(address)

    async def _revive(self, address: str) -> None:
        delay_s = REVIVE_FIRST_S
        try:
            while address in self._targets():
                if await self._try_beat(address):
                    return
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, REVIVE_LAST_S)
            self._failed.discard(address)  # nobody asks for it any more
        finally:
            self._reviving.discard(address)

    async def _try_beat(self, address: str) -> bool:
        try:
            await self.beat(address)
        except RemotingError as error:
            log.debug("heartbeat failed", address=address, reason=str(error))
            self.miss(address)
            return False
        except CometMQError as error:
            # The heartbeat reached the broker, which refused it. The next period tries again.
            # A client that starts may send a second one at once: to a broker that a route names again.
            if self._reported.get(address) != str(error):
                self._reported[address] = str(error)
                log.warning("heartbeat refused", address=address, reason=str(error))
            self._failed.discard(address)
            if isinstance(error, AccessDeniedError):
                self._denied[address] = error
        return True

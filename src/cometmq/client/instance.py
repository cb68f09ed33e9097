"""Share connections, routes and heartbeats among the clients of one client id on one loop.

Java: MQClientInstance, MQClientManager.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from cometmq.client.access import PLAIN, Access
from cometmq.client.cluster.broker_api import BrokerApi
from cometmq.client.cluster.heartbeat import HEARTBEAT_INTERVAL_S, Heartbeats
from cometmq.client.cluster.inspection import InspectedMember, Inspection
from cometmq.client.cluster.namesrv_api import NamesrvApi
from cometmq.client.cluster.routes import REFRESH_INTERVAL_S, RouteCache
from cometmq.client.identity import client_id
from cometmq.client.limits import NAMESRV_VARIABLE
from cometmq.client.producing.requests import Replies, reply_topic
from cometmq.errors import (
    ClientStateError,
    CometMQError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from cometmq.forks import PROCESS, in_each_child
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.names import AUTO_CREATE_TOPIC
from cometmq.model.route import MASTER_ID
from cometmq.model.subscription import ConsumerData, ProducerData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import HeartbeatData
from cometmq.protocol.command import Request
from cometmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
)
from cometmq.protocol.messages.ids import UniqueIdGenerator, pack_host
from cometmq.protocol.messages.properties import find_property
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.remoting.client import RemotingClient, split_address
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

UNREGISTER_TIMEOUT_S: Final = 1.0


# Called with the connection to answer on, the offsets to name in the answer, and the half message.
OnTransactionCheck = Callable[[Connection, CheckTransactionStateRequestHeader, StoredRecord], None]


class ConsumerMember(Protocol):
    """Is a consumer group's member as its instance sees it."""

    @property
    def group(self) -> str: ...

    def consumer_data(self) -> ConsumerData:
        """Return the membership as heartbeats state it."""

    def rebalance_soon(self) -> None:
        """Rebalance soon, since queues or members may have changed."""


class ClientInstance:
    """Holds connections, routes and heartbeats of one client id. For the loop that created it.

    `acquire_instance` and `release_instance` count the clients that use the instance; the last one
    closes it. `access` has its credentials and TLS settings. `new_remoting` makes the client that
    carries its calls.
    """

    def __init__(
        self,
        name: str,
        address: str,
        namesrv: Sequence[str],
        new_remoting: Callable[..., RemotingClient] = RemotingClient,
        access: Access = PLAIN,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        network: Network = TCP_NETWORK,
    ) -> None:
        self.clock = clock
        self.randomness = randomness
        self._inspected: dict[str, InspectedMember] = {}
        self.replies = Replies(clock, randomness)
        self.client_id = name
        # By which clients that share it find it: their process and the client id.
        self.key = (0, name)
        self.unique_ids = UniqueIdGenerator(
            pack_host(address, 0)[:-4],
            current().process_id(),
            now_ms=clock.now_ms,
            randbytes=randomness.randbytes,
        )
        self.namesrv = list(namesrv)
        self.tasks = TaskOwner(f"client-{name}")
        self.access = access
        self.remoting = new_remoting(
            self._handlers(),
            on_connect=self._on_connect,
            credentials=access.credentials,
            tls=access.tls,
            network=network,
        )
        self.brokers = BrokerApi(self.remoting)
        self.routes = RouteCache(
            NamesrvApi(self.remoting, namesrv, first=_first_of(namesrv, randomness)),
            self.tasks,
            randomness.randrange,
            self._on_route_change,
        )
        self.heartbeats = Heartbeats(
            self.brokers, self.routes, self.tasks, self._heartbeat_data, self._on_reached
        )
        self.users = 0
        self._producers: dict[str, OnTransactionCheck | None] = {}
        self._consumers: dict[str, ConsumerMember] = {}

    def start(self) -> None:
        self.tasks.every(REFRESH_INTERVAL_S, self.routes.refresh_all, "routes")
        self.tasks.every(HEARTBEAT_INTERVAL_S, self.heartbeats.beat_all, "heartbeats")

    async def close(self) -> None:
        self.routes.close()
        self.heartbeats.close()
        await self.tasks.close()
        await self.remoting.close()

    # Groups

    def add_producer(self, group: str, on_check: OnTransactionCheck | None = None) -> None:
        """Add a producer. `on_check` is called when a broker asks for a transaction of the group.

        Raises ClientStateError when this client id has a producer of the group already.
        """
        if group in self._producers:
            raise _taken("producer", group, self.client_id)
        self._producers[group] = on_check
        self.heartbeats.beat_soon()

    async def remove_producer(self, group: str) -> None:
        self._producers.pop(group, None)
        await self._unregister(producer_group=group)

    def add_consumer(
        self, member: ConsumerMember, inspected: InspectedMember | None = None
    ) -> None:
        """Add a group member. `inspected` answers what brokers ask about the member.

        Raises ClientStateError when this client id is a member of the group already.
        """
        if member.group in self._consumers:
            raise _taken("consumer", member.group, self.client_id)
        self._consumers[member.group] = member
        if inspected is not None:
            self._inspected[member.group] = inspected

    async def remove_consumer(self, group: str) -> None:
        del self._consumers[group]
        self._inspected.pop(group, None)
        await self._unregister(consumer_group=group)

    async def introduce(self, topic: str) -> None:
        """Make this client known to all brokers that may get the reply to a request to `topic`:
        those of the topic's clusters, since a replier sends to any of them.

        The route of `topic`, or of the topics that brokers create on demand, is known already.
        """
        route = self.routes.route(topic) or self.routes.route(AUTO_CREATE_TOPIC)
        clusters = {data.cluster for data in route.broker_datas} if route is not None else set()
        for name in map(reply_topic, sorted(clusters)):
            if self.routes.route(name) is None:
                try:
                    await self.routes.refresh(name)
                except CometMQError as error:
                    log.info("replies may be lost", topic=name, reason=str(error))
        await self.heartbeats.introduce()

    # Failures

    async def look_for_servers(self, group: str) -> None:
        """Warn if no name server can be reached at the start of a client of `group`."""
        try:
            await self.routes.reach()
        except CometMQError as error:
            log.warning(
                "no name server can be reached, the client goes on trying",
                group=group,
                namesrv=";".join(self.namesrv),
                reason=str(error),
                remedy=f"start one, or check namesrv= and the environment's {NAMESRV_VARIABLE}",
            )

    def report_failure(self, error: CometMQError, topic: str, address: str | None) -> None:
        """Renew the route and reach for the broker again, after a call for `topic` failed."""
        if error.refresh_route:
            self.routes.refresh_soon(topic)
        if address is not None and isinstance(
            error, (ConnectError, ConnectionLostError, RequestTimeoutError)
        ):
            self.heartbeats.miss(address)

    def need_master(self, broker_name: str, topic: str) -> str:
        """Return the address of a broker's master. Raises RouteNotFoundError when none is known."""
        address = self.routes.master_address(broker_name)
        if address is None:
            raise RouteNotFoundError(
                f"the route of topic {topic} names no master of broker {broker_name}"
            )
        return address

    def need_reader(self, broker_name: str, topic: str, broker_id: int = MASTER_ID) -> str:
        """Return the address at which to read what a broker name has: messages, offsets, members.

        That is the broker with `broker_id`, the master by default, unless the route does not name
        it or heartbeats do not reach it; then it is another of that name. Raises
        RouteNotFoundError when none is known.
        """
        addresses = self.routes.read_addresses(broker_name, broker_id)
        if not addresses:
            raise RouteNotFoundError(
                f"the route of topic {topic} names no broker {broker_name}, neither master nor slave"
            )
        reached = (address for address in addresses if not self.heartbeats.is_lost(address))
        return next(reached, addresses[0])

    def reaches_master(self, broker_name: str) -> bool:
        """Say whether the route names the broker's master, and heartbeats do not miss it."""
        address = self.routes.master_address(broker_name)
        return address is not None and not self.heartbeats.is_lost(address)

    # Inside

    def _handlers(self) -> Handlers:
        handlers = Handlers()
        handlers.register(requests.NOTIFY_CONSUMER_IDS_CHANGED, self._on_consumer_ids_changed)
        handlers.register(requests.CHECK_TRANSACTION_STATE, self._on_check_transaction)
        Inspection(self._inspected, self.namesrv).register(handlers)
        self.replies.register(handlers)
        return handlers

    def _on_check_transaction(
        self, connection: Connection, request: Request[CheckTransactionStateRequestHeader]
    ) -> None:
        record = decode_record(request.body)
        group = find_property(record.properties, p.PRODUCER_GROUP) or ""
        on_check = self._producers.get(group)
        if on_check is None:
            # The broker asks another member of the group next time.
            log.warning("no transaction producer to ask", group=group, broker=connection.peer)
            return
        on_check(connection, request.header, record)

    def _on_consumer_ids_changed(
        self, _connection: Connection, request: Request[NotifyConsumerIdsChangedRequestHeader]
    ) -> None:
        member = self._consumers.get(request.header.consumer_group)
        if member is not None:
            member.rebalance_soon()

    def _on_connect(self, address: str, connection: Connection) -> None:
        self.heartbeats.on_connect(address, connection)

    def _on_reached(self, _address: str) -> None:
        self._rebalance_all()

    def _on_route_change(self, _topic: str) -> None:
        self.heartbeats.beat_new()
        self._rebalance_all()

    def _rebalance_all(self) -> None:
        for member in self._consumers.values():
            member.rebalance_soon()

    def _heartbeat_data(self) -> HeartbeatData | None:
        if not self._producers and not self._consumers:
            return None
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group) for group in sorted(self._producers)],
            consumer_data_set=[member.consumer_data() for member in self._consumers.values()],
        )

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Unregister at all connected brokers. The others forget this client by themselves."""
        try:
            async with asyncio.timeout(UNREGISTER_TIMEOUT_S):
                await self.heartbeats.settle()
        except TimeoutError:
            log.debug("heartbeats are still on their way", client=self.client_id)
        calls = [
            self.brokers.unregister(
                address,
                self.client_id,
                producer_group=producer_group,
                consumer_group=consumer_group,
            )
            for address in sorted(self.routes.addresses(masters_only=False))
            if self.remoting.connected(address) is not None
        ]
        try:
            async with asyncio.timeout(UNREGISTER_TIMEOUT_S):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            log.warning("a broker did not answer the request to unregister", client=self.client_id)
            return
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                log.debug("not unregistered", client=self.client_id, reason=str(outcome))


# Neither loops nor instances are kept here. An instance refers to its loop: if the loop ended
# before the instance was released, the instance would keep the loop and all that runs on it.
_instances: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[int, str], ClientInstance]
] = weakref.WeakKeyDictionary()


def _leave_to_parent() -> None:
    """Forget the instances in a forked child, since they hold the parent's sockets."""
    global _instances  # noqa: PLW0603 - the parent's may be locked in the middle of a change
    PROCESS.keep(_instances)
    _instances = weakref.WeakKeyDictionary()


in_each_child(_leave_to_parent)


def acquire_instance(
    namesrv: Sequence[str],
    instance_name: str,
    unit_name: str | None,
    *,
    unique: bool = True,
    access: Access = PLAIN,
    clock: Clock = SYSTEM_CLOCK,
    randomness: Randomness = SYSTEM_RANDOMNESS,
    network: Network = TCP_NETWORK,
) -> ClientInstance:
    """Return the running loop's instance of that name; make and start it if there is none.

    `unique` has the meaning that it has for `client_id`. Raises ClientStateError when the instance
    exists with other name servers, credentials or TLS settings; ConfigError when a file of the TLS
    settings cannot be used.
    """
    address = network.own_address(*split_address(namesrv[0]))
    name = client_id(address, instance_name, unit_name, unique=unique, randomness=randomness)
    instances = _instances.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    # On a simulated loop, the next process on the same machine can have clients of the same name.
    key = current().process_id(), name
    instance = instances.get(key)
    if instance is None:
        instance = instances[key] = ClientInstance(
            name,
            address,
            namesrv,
            access=access,
            clock=clock,
            randomness=randomness,
            network=network,
        )
        instance.key = key
        instance.start()
    elif instance.namesrv != list(namesrv):
        raise ClientStateError(
            f"client id {name} is in use with the name servers {';'.join(instance.namesrv)}, not "
            f"{';'.join(namesrv)}; give this client another instance_name"
        )
    elif instance.access != access:
        raise ClientStateError(
            f"client id {name} is in use with other credentials or another tls; give this client "
            "another instance_name"
        )
    instance.users += 1
    return instance


async def release_instance(instance: ClientInstance) -> None:
    """Give an instance back. The last user closes it."""
    instance.users -= 1
    if instance.users == 0:
        if (instances := _instances.get(asyncio.get_running_loop())) is not None:
            instances.pop(instance.key, None)
        await instance.close()


def _first_of(namesrv: Sequence[str], randomness: Randomness) -> int:
    """Choose the name server to begin with, so that clients spread over them."""
    return randomness.randrange(len(namesrv)) if len(namesrv) > 1 else 0


def _taken(kind: str, group: str, name: str) -> ClientStateError:
    return ClientStateError(
        f"client id {name} has a {kind} of group {group} already; "
        "use another group or another instance_name"
    )

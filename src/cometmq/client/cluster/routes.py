"""Keep the routes of the topics a client uses; renew them periodically and after a failure.

Java: MQClientInstance.updateTopicRouteInfoFromNameServer. A route that cannot be renewed stays in
use: brokers outlive name servers, and a broker that restarts is missing from the route for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.client.cluster.keyed_queues import KeyedQueues
from cometmq.client.cluster.namesrv_api import NamesrvApi
from cometmq.errors import CometMQError, RemotingError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.names import AUTO_CREATE_TOPIC
from cometmq.model.queue import MessageQueue
from cometmq.model.route import MASTER_ID, TopicRouteData
from cometmq.runtime.back_off import BackOff
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

REFRESH_INTERVAL_S: Final = 30.0
# A broker that restarts leaves the routes and comes back. A route that lost a broker is renewed at
# this interval and for this long, until the broker is back.
WATCH_INTERVAL_S: Final = 2.0
WATCH_FOR_S: Final = 600.0


class PublishRoute:
    """Chooses among the queues that a producer may send to, in turn (Java: TopicPublishInfo)."""

    __slots__ = ("_next", "broker_names", "created_on_demand", "queues")

    def __init__(
        self, queues: list[MessageQueue], first: int, *, created_on_demand: bool = False
    ) -> None:
        self.queues = queues
        self.broker_names = tuple(dict.fromkeys(queue.broker_name for queue in queues))
        # True if the topic did not exist. Then these are the default topic's queues, and the broker
        # creates the topic when the first message comes.
        self.created_on_demand = created_on_demand
        self._next = first

    def choose(self, avoid: str | None = None) -> MessageQueue:
        """Return the next queue in turn, on another broker than `avoid` if there is one."""
        queues = self.queues
        count = len(queues)
        for _ in range(count):
            self._next = (self._next + 1) % count
            queue = queues[self._next]
            if queue.broker_name != avoid:
                return queue
        self._next = (self._next + 1) % count
        return queues[self._next]

    def find(self, usable: Callable[[str], bool]) -> MessageQueue | None:
        """Return the next queue in turn whose broker is `usable`, or None when no broker is."""
        queues = self.queues
        for step in range(1, len(queues) + 1):
            index = (self._next + step) % len(queues)
            if usable(queues[index].broker_name):
                self._next = index
                return queues[index]
        return None

    def has_other_broker(self, broker_name: str) -> bool:
        return any(name != broker_name for name in self.broker_names)


class RouteCache:
    """Holds routes by topic and broker addresses by broker name. For the loop's thread.

    `on_change` is called with the topic whenever a route differs from the one before.
    """

    def __init__(
        self,
        namesrv: NamesrvApi,
        owner: TaskOwner,
        choose_first: Callable[[int], int],
        on_change: Callable[[str], None],
    ) -> None:
        self._namesrv = namesrv
        self._owner = owner
        self._choose_first = choose_first
        self._on_change = on_change
        self._routes: dict[str, TopicRouteData] = {}
        self._publish: dict[str, PublishRoute] = {}
        self._keyed: dict[str, KeyedQueues] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        # By topic, why its route could not be fetched the last time, if it could not.
        self._failures: dict[str, CometMQError] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._retrying: set[str] = set()
        self._watching: set[str] = set()
        self._closed = False

    def close(self) -> None:
        """Begin no further refresh; those under way end with the owner of their tasks."""
        self._closed = True

    # Reading

    def route(self, topic: str) -> TopicRouteData | None:
        return self._routes.get(topic)

    def failure(self, topic: str) -> CometMQError | None:
        """Return why the route could not be fetched the last time, or None if it did not fail."""
        return self._failures.get(topic)

    def publish_route(self, topic: str) -> PublishRoute | None:
        return self._publish.get(topic)

    def keyed_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues among which a key chooses (see the module `keyed_queues`). The topic
        must have a publish route.
        """
        keyed = self._keyed.get(topic)
        return self._publish[topic].queues if keyed is None else keyed.queues()

    def master_address(self, broker_name: str) -> str | None:
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def read_addresses(self, broker_name: str, broker_id: int = MASTER_ID) -> list[str]:
        """Return the addresses of a broker name in the order in which to try them for reads.

        First comes the broker with that id; if there is none, and it is a slave's, the slave with
        the next id. The others follow, lowest id first (Java: findBrokerAddressInSubscribe, which
        returns the first of these).
        """
        addresses = self._brokers.get(broker_name)
        if not addresses:
            return []
        wanted = broker_id
        if wanted not in addresses and wanted != MASTER_ID:
            wanted += 1
        return [addresses[each] for each in sorted(addresses, key=lambda i: (i != wanted, i))]

    def topics_at(self, address: str) -> list[str]:
        """Return the topics whose routes name this broker address."""
        return [
            topic
            for topic, route in self._routes.items()
            if any(address in data.broker_addrs.values() for data in route.broker_datas)
        ]

    def addresses(self, *, masters_only: bool) -> set[str]:
        """Return every broker address known, or those of masters."""
        return {
            address
            for addresses in self._brokers.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or not masters_only
        }

    # Renewing

    async def need_publish_route(self, topic: str, default_queue_nums: int) -> PublishRoute:
        """Return the publish route of `topic`; fetch it if it is unknown. For a topic that does not
        exist return the default topic's, cut to `default_queue_nums` queues for each broker.

        Raises RouteNotFoundError when there is neither, RemotingError when no name server answers.
        """
        known = self._publish.get(topic)
        if known is not None:
            return known
        try:
            await self.refresh(topic)
        except RouteNotFoundError as not_found:
            try:
                await self.refresh(AUTO_CREATE_TOPIC)
            except RouteNotFoundError:
                raise not_found from None
            self._take_default(topic, default_queue_nums)
        found = self._publish.get(topic)
        if found is None:
            raise RouteNotFoundError(
                f"the route of topic {topic} has no queue that may be written to: every broker "
                "lacks its master or the topic lacks write permission"
            )
        return found

    async def reach(self) -> None:
        """Connect to a name server. Raises RemotingError if none can be reached."""
        await self._namesrv.reach()

    async def topic_names(self) -> list[str]:
        """Return all topics that a name server knows. Raises what NamesrvApi raises."""
        return await self._namesrv.topic_names()

    async def refresh(self, topic: str) -> None:
        """Fetch the route now. Callers at the same time share one request. Raises what NamesrvApi
        raises."""
        task = self._fetching.get(topic)
        if task is None:
            task = self._owner.spawn(self._fetch(topic), f"route-{topic}", log_failure=False)
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        await asyncio.shield(task)

    def refresh_soon(self, topic: str) -> None:
        """Fetch the route in the background until it succeeds, with a short capped back-off."""
        if topic not in self._retrying and not self._closed:
            self._retrying.add(topic)
            self._owner.spawn(self._refresh_until_known(topic), f"refresh-{topic}")

    async def refresh_all(self) -> None:
        """Renew every route in use. If one fails, go on with the others.

        If no name server answers, the others would wait for nothing, so they keep their routes.
        """
        for topic in [*self._routes, *(self._publish.keys() - self._routes.keys())]:
            try:
                await self.refresh(topic)
            except RemotingError as error:
                log.debug("routes not renewed", reason=str(error))
                return
            except CometMQError as error:
                log.debug("route not renewed", topic=topic, reason=str(error))

    async def _refresh_until_known(self, topic: str) -> None:
        back_off = BackOff()
        try:
            while True:
                try:
                    await self.refresh(topic)
                except CometMQError as error:
                    log.debug("route not renewed", topic=topic, reason=str(error))
                else:
                    return
                await back_off.wait()
        finally:
            self._retrying.discard(topic)

    async def _fetch(self, topic: str) -> None:
        try:
            route = await self._namesrv.topic_route(topic)
        except CometMQError as error:
            self._failures[topic] = error
            raise
        self._failures.pop(topic, None)
        self._take(topic, route)

    def _take(self, topic: str, route: TopicRouteData) -> None:
        route.broker_datas.sort(key=lambda data: data.broker_name)
        route.queue_datas.sort(key=lambda data: data.broker_name)
        before = self._routes.get(topic)
        if route == before:
            return
        self._routes[topic] = route
        if before is not None:
            self._watch_for_return(topic, before, route)
        self._forget_unused_brokers()
        for data in route.broker_datas:
            self._brokers[data.broker_name] = dict(data.broker_addrs)
        queues = route.publish_queues(topic)
        if topic not in self._keyed:
            self._keyed[topic] = KeyedQueues(asyncio.get_running_loop().time)
        self._keyed[topic].take(route, queues)
        if queues:
            self._publish[topic] = PublishRoute(queues, self._choose_first(len(queues)))
        else:
            self._publish.pop(topic, None)
        log.debug("route changed", topic=topic, brokers=[d.broker_name for d in route.broker_datas])
        self._on_change(topic)

    def _watch_for_return(self, topic: str, before: TopicRouteData, now: TopicRouteData) -> None:
        lost = _masters(before) - _masters(now)
        if lost and topic not in self._watching and not self._closed:
            self._watching.add(topic)
            self._owner.spawn(self._watch(topic, lost), f"watch-{topic}")

    async def _watch(self, topic: str, lost: set[str]) -> None:
        try:
            async with asyncio.timeout(WATCH_FOR_S):
                while lost - _masters(self._routes[topic]):
                    await asyncio.sleep(WATCH_INTERVAL_S)
                    try:
                        await self.refresh(topic)
                    except CometMQError as error:
                        log.debug("route not renewed", topic=topic, reason=str(error))
        except TimeoutError:
            log.info("masters have not come back", topic=topic, brokers=sorted(lost))
        finally:
            self._watching.discard(topic)

    def _take_default(self, topic: str, default_queue_nums: int) -> None:
        default = self._routes[AUTO_CREATE_TOPIC]
        # Java caps by the read queues and writes the result to both counts.
        counts = {
            data.broker_name: min(default_queue_nums, data.read_queue_nums)
            for data in default.queue_datas
        }
        queues = [
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in default.publish_queues(AUTO_CREATE_TOPIC)
            if queue.queue_id < counts[queue.broker_name]
        ]
        if queues:
            first = self._choose_first(len(queues))
            self._publish[topic] = PublishRoute(queues, first, created_on_demand=True)

    def _forget_unused_brokers(self) -> None:
        used = {data.broker_name for route in self._routes.values() for data in route.broker_datas}
        for name in sorted(self._brokers.keys() - used):
            del self._brokers[name]


def _masters(route: TopicRouteData) -> set[str]:
    """Return the names of the brokers whose master the route has."""
    return {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}

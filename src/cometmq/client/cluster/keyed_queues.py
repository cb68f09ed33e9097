"""The queues among which a key chooses: the same ones, in the same order, while brokers come and go.

A key's queue is found by its place in a list, so the list must not change when a broker restarts and
leaves the route for a while (a Java producer's does, and sends the key elsewhere meanwhile). Here the
queues of a broker that is away keep their places: what is sent to them fails until it is back, and
order holds. They go when the broker is back with fewer queues or without write permission, or was
away for `AWAY_FOR_S`. New queues come in at once, as they do for every other producer.

The list begins with the first route that a producer sees. Where order must hold across producers that
start while a broker is away, the queues belong into the name server's ORDER_TOPIC_CONFIG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.model.queue import MessageQueue
from cometmq.model.route import MASTER_ID, TopicRouteData

AWAY_FOR_S: Final = 600.0


class KeyedQueues:
    """The list of one topic. `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._present: list[MessageQueue] = []
        # Queues of brokers that are away, and since when.
        self._away: dict[str, tuple[list[MessageQueue], float]] = {}

    def take(self, route: TopicRouteData, queues: Sequence[MessageQueue]) -> None:
        """The topic has a new route, in which `queues` may be written to."""
        here = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
        for queue in self._present:
            if queue.broker_name not in here and queue.broker_name not in self._away:
                lost = [q for q in self._present if q.broker_name == queue.broker_name]
                self._away[queue.broker_name] = (lost, self._now_s())
        for name in here & self._away.keys():
            del self._away[name]
        if route.order_topic_conf:
            self._away.clear()  # the list is configured, and complete in every route
        self._present = list(queues)

    def queues(self) -> list[MessageQueue]:
        """Those present and those away, in the order in which Java has the queues of a route."""
        if not self._away:
            return self._present
        oldest_s = self._now_s() - AWAY_FOR_S
        for name in [name for name, (_, since) in self._away.items() if since < oldest_s]:
            del self._away[name]
        away = [queue for lost, _ in self._away.values() for queue in lost]
        return sorted([*self._present, *away]) if away else self._present

"""Keep the list of queues among which a key chooses the same while brokers come and go.

A key chooses a queue by its place in the list. So the list must not change when a broker restarts
and leaves the route for a while. (A Java producer's list does change, and the key's messages go to
another queue meanwhile.) Here the queues of a broker that is away keep their places: sends to them
fail until the broker is back, and order holds. The queues leave the list when the broker is back
with fewer queues or without write permission, or has been away for `AWAY_FOR_S`. New queues enter
the list at once, as they do for every other producer.

The list begins with the first route that a producer sees. If order must hold across producers that
start while a broker is away, put the queues into the name server's ORDER_TOPIC_CONFIG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.model.queue import MessageQueue
from cometmq.model.route import MASTER_ID, TopicRouteData

AWAY_FOR_S: Final = 600.0


class KeyedQueues:
    """Keeps the list of one topic. `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._present: list[MessageQueue] = []
        # By broker that is away, its queues and the time since when it is away.
        self._away: dict[str, tuple[list[MessageQueue], float]] = {}

    def take(self, route: TopicRouteData, queues: Sequence[MessageQueue]) -> None:
        """Take over a new route of the topic, in which `queues` may be written to."""
        here = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
        for queue in self._present:
            if queue.broker_name not in here and queue.broker_name not in self._away:
                lost = [q for q in self._present if q.broker_name == queue.broker_name]
                self._away[queue.broker_name] = (lost, self._now_s())
        for name in here & self._away.keys():
            del self._away[name]
        if route.order_topic_conf:
            self._away.clear()  # every route has the whole configured list
        self._present = list(queues)

    def queues(self) -> list[MessageQueue]:
        """Return the queues present and away, in the order that a route's queues have in Java."""
        if not self._away:
            return self._present
        oldest_s = self._now_s() - AWAY_FOR_S
        for name in [name for name, (_, since) in self._away.items() if since < oldest_s]:
            del self._away[name]
        away = [queue for lost, _ in self._away.values() for queue in lost]
        return sorted([*self._present, *away]) if away else self._present

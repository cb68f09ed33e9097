"""Find the requests that a message wakes: in each share, the request that has waited longest.

Thousands of pops of a group may wait for one queue, and each message is for one of them. So a place keeps its requests
by share, and a message looks at one request of each, unless filters pass some over.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.pulls.waiter import ANY_QUEUE, Waiter

Wants = Callable[[Waiter], bool]

# The requests that wait at a place, by share; the one that has waited for longest comes first.
_Place = dict[str, dict[Waiter, None]]


class Sharing:
    """Holds the places of requests with a `share`. For the loop's thread only."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, _Place]] = {}

    def add(self, waiter: Waiter) -> None:
        for topic, queue_id in waiter.places:
            place = self._topics.setdefault(topic, {}).setdefault(queue_id, {})
            place.setdefault(waiter.share, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        for topic, queue_id in waiter.places:
            queues = self._topics.get(topic)
            place = None if queues is None else queues.get(queue_id)
            if queues is None or place is None or waiter.share not in place:
                continue
            place[waiter.share].pop(waiter, None)
            if place[waiter.share]:
                continue
            del place[waiter.share]
            if not place:
                del queues[queue_id]
                if not queues:
                    del self._topics[topic]

    def is_awaited(self, topic: str, queue_id: int) -> bool:
        queues = self._topics.get(topic)
        return queues is not None and (queue_id in queues or ANY_QUEUE in queues)

    def of_topic(self, topic: str) -> list[Waiter]:
        """Return all that wait for a topic's messages."""
        return [
            waiter
            for place in self._topics.get(topic, {}).values()
            for mates in place.values()
            for waiter in mates
        ]

    def topics(self) -> list[str]:
        return list(self._topics)

    def take_first_of_each(self, topic: str, queue_id: int, wants: Wants) -> list[Waiter]:
        """Return one request of each share that a message of a queue wakes, and take it out of its place.
        `wants` says which may be.
        """
        queues = self._topics.get(topic)
        woken: list[Waiter] = []
        if queues is None:
            return woken
        for each in (queue_id, ANY_QUEUE):
            place = queues.get(each, {})
            for share, mates in list(place.items()):
                waiter = next(filter(wants, mates), None)
                if waiter is None:
                    continue
                woken.append(waiter)
                del mates[waiter]
                if not mates:
                    del place[share]
                    if not place:
                        del queues[each]
        if not queues:
            del self._topics[topic]
        return woken

    def next_of(self, woken: Waiter) -> Waiter | None:
        """Return the request that a message wakes in place of one that is lost, None if no other waits."""
        for topic, queue_id in woken.places:
            mates = self._topics.get(topic, {}).get(queue_id, {}).get(woken.share, {})
            for waiter in mates:
                if waiter.reason is None:
                    return waiter
        return None

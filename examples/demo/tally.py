"""The history of every event: when it was sent, how often it came, and whether in order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from examples.order_events import OrderEvent

from cometmq import MessageQueue, SendResult


class Tally:
    """For the loop's thread. An event is known by its place in `events`; times are in seconds."""

    def __init__(self, events: Sequence[OrderEvent]) -> None:
        self._index_of = {event.event_id: index for index, event in enumerate(events)}
        self._sent_at = [0.0] * len(events)
        self._deliveries = [0] * len(events)
        self._last_sequence: dict[str, int] = {}
        self._queue_of: dict[str, MessageQueue] = {}
        self.order_count = len({event.order_id for event in events})
        self.event_count = len(events)
        self.acknowledged = 0
        self.received = 0
        self.send_latencies_s: list[float] = []
        self.delivery_latencies_s: list[float] = []
        self.by_consumer: Counter[str] = Counter()
        self.by_queue: Counter[MessageQueue] = Counter()
        self.consumer_of: dict[MessageQueue, str] = {}
        self.out_of_order: list[str] = []
        # Ids of events: those acknowledged, and each delivery.
        self.sent_ids: list[str] = []
        self.received_ids: list[str] = []
        self.first_sent_at = 0.0
        self.last_acknowledged_at = 0.0
        self.last_received_at = 0.0
        self.complete = asyncio.Event()

    def sending(self, event: OrderEvent) -> None:
        now = time.perf_counter()
        self.first_sent_at = self.first_sent_at or now
        self._sent_at[self._index_of[event.event_id]] = now

    def sent(self, event: OrderEvent, _result: SendResult) -> None:
        self.last_acknowledged_at = time.perf_counter()
        self.acknowledged += 1
        self.sent_ids.append(event.event_id)
        sent_at = self._sent_at[self._index_of[event.event_id]]
        self.send_latencies_s.append(self.last_acknowledged_at - sent_at)

    def came(self, event: OrderEvent, consumer: str, queue: MessageQueue) -> None:
        """One delivery; the first of an event counts as received, further ones as duplicates."""
        now = time.perf_counter()
        index = self._index_of[event.event_id]
        self._deliveries[index] += 1
        self.received_ids.append(event.event_id)
        self.by_consumer[consumer] += 1
        if self._deliveries[index] > 1:
            return
        self.last_received_at = now
        self.received += 1
        self.by_queue[queue] += 1
        self.consumer_of[queue] = consumer
        self.delivery_latencies_s.append(now - self._sent_at[index])
        self._check_order(event, queue)
        if self.received == self.event_count:
            self.complete.set()

    @property
    def duplicates(self) -> dict[str, int]:
        """Events that came more than once, and how often."""
        return {
            event_id: self._deliveries[index]
            for event_id, index in self._index_of.items()
            if self._deliveries[index] > 1
        }

    def _check_order(self, event: OrderEvent, queue: MessageQueue) -> None:
        """The events of an order lie in one queue and come as 1, 2, 3, …"""
        last = self._last_sequence.get(event.order_id, 0)
        same_queue = self._queue_of.setdefault(event.order_id, queue) == queue
        if event.sequence != last + 1 or not same_queue:
            self.out_of_order.append(event.event_id)
        self._last_sequence[event.order_id] = event.sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of `values` do not exceed; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

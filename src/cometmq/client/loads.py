"""Sum the connections, sends, queues and messages that the clients of a process hold, by group and topic."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from cometmq.client.hooks import Hook
from cometmq.client.lifecycle import ClientLoad
from cometmq.errors import IllegalArgumentError


class Client(Protocol):
    """A producer or a consumer, blocking or for asyncio."""

    def load(self) -> ClientLoad: ...

    def add_hook(self, hook: Hook) -> None: ...


class Gauge(NamedTuple):
    """Names a sum. `unit` is that of OpenTelemetry; with `by_topic` there is one sum for each group and topic."""

    name: str
    text: str
    unit: str
    by_topic: bool = False


# RIP-46 defines the names of cached messages and bytes.
GAUGES: Final = (
    Gauge("cometmq.client.connections", "Open connections to servers.", "{connection}"),
    Gauge("cometmq.client.pending_sends", "Sends of send_async that are under way.", "{send}"),
    Gauge("cometmq.client.pending_send_bytes", "Bytes of the bodies in sends of send_async that are under way.", "By"),
    Gauge("cometmq.client.assigned_queues", "Queues that consumers pull.", "{queue}", by_topic=True),
    Gauge("rocketmq.consumer.cached_messages", "Messages pulled and not consumed yet.", "{message}", by_topic=True),
    Gauge("rocketmq.consumer.cached_bytes", "Bytes of the bodies of messages pulled and not consumed yet.", "By", by_topic=True),
    Gauge("cometmq.client.consumer_lag", "Messages of a consumer's queues that it has not consumed; no value while that is unknown.", "{message}", by_topic=True),
)  # fmt: skip

# The sums of a gauge by its labels: the group, and the topic for a gauge that is by topic.
Sums = dict[tuple[str, ...], int]


class WatchedClients:
    """Holds weak references to the clients that are measured. For any thread."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        # Adding a client while another thread iterates over the set would raise an error there.
        self._lock = threading.Lock()

    def known(self, client: Client) -> bool:
        """Return whether the client is measured. Raises IllegalArgumentError for any object but a client."""
        if not (hasattr(client, "load") and hasattr(client, "add_hook")):
            raise IllegalArgumentError(f"{client!r:.200} is no producer or consumer to watch")
        with self._lock:
            return client in self._clients

    def add(self, client: Client) -> None:
        with self._lock:
            self._clients.add(client)

    def sums(self, label: Callable[[str], str] = str) -> dict[Gauge, Sums]:
        """Return the current sums of all clients. `label` returns the label of a topic."""
        with self._lock:
            clients = list(self._clients)
        by_group: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
        by_topic: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
        lags: dict[tuple[str, ...], int | None] = {}
        for client in clients:
            load = client.load()
            held = len(load.connections), load.pending_sends, load.pending_bytes
            _add(by_group[load.group,], held)
            for topic, cached in load.cached.items():
                _add(by_topic[load.group, label(topic)], cached)
            for topic, lag in load.lag.items():
                labels = load.group, label(topic)
                before = lags.get(labels, 0)
                lags[labels] = None if before is None or lag is None else before + lag
        groups, topics = GAUGES[:3], GAUGES[3:-1]
        sums: dict[Gauge, Sums] = {
            gauge: {labels: numbers[place] for labels, numbers in found.items()}
            for gauges, found in ((groups, by_group), (topics, by_topic))
            for place, gauge in enumerate(gauges)
        }
        # A sum without one of its queues would look like a small lag.
        sums[GAUGES[-1]] = {labels: lag for labels, lag in lags.items() if lag is not None}
        return sums


def _add(sums: list[int], numbers: Sequence[int]) -> None:
    for index, number in enumerate(numbers):
        sums[index] += number

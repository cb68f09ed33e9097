"""Hold back pulls and pops: of a whole consumer, of a topic, or of single queues."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from cometmq.model.queue import MessageQueue

# The queues that are paused or resumed: None for all of the consumer, a topic, or single ones.
Chosen = str | Collection[MessageQueue] | None

_REPORTED_QUEUES: Final = 100


class Gates:
    """Has a gate for each queue, and no puller or popper begins anything while its gate is closed.

    A gate is closed while it is held, and while at least one pause covers its queue: that of the whole
    consumer, of the topic, or of the queue itself. A pause also covers queues that the consumer gets
    later. For the loop's thread, except `paused`.
    """

    def __init__(self) -> None:
        self._gates: dict[MessageQueue, asyncio.Event] = {}
        self._all = False
        self._topics: set[str] = set()
        self._queues: set[MessageQueue] = set()
        self._held: set[MessageQueue] = set()

    def gate(self, queue: MessageQueue) -> asyncio.Event:
        """Return the gate of a queue, which is set while it is open."""
        gate = self._gates.get(queue)
        if gate is None:
            gate = self._gates[queue] = asyncio.Event()
            self._turn(queue, gate)
        return gate

    def pause(self, chosen: Chosen) -> None:
        if chosen is None:
            self._all = True
        elif isinstance(chosen, str):
            self._topics.add(chosen)
        else:
            self._queues.update(chosen)
        self._turn_all()

    def resume(self, chosen: Chosen) -> None:
        """End the pause of the same choice; with None, end every pause."""
        if chosen is None:
            self._all = False
            self._topics.clear()
            self._queues.clear()
        elif isinstance(chosen, str):
            self._topics.discard(chosen)
        else:
            self._queues.difference_update(chosen)
        self._turn_all()

    def hold(self, queue: MessageQueue) -> None:
        """Close a queue's gate, whatever the pauses are, until `release`."""
        self._held.add(queue)
        self._turn(queue, self.gate(queue))

    def release(self, queue: MessageQueue) -> None:
        self._held.discard(queue)
        self._turn(queue, self.gate(queue))

    @property
    def paused(self) -> bool:
        """True while the whole consumer is paused."""
        return self._all

    def paused_queues(self, assigned: Collection[MessageQueue]) -> set[MessageQueue]:
        """Return the queues that were paused one by one, and those of `assigned` that any pause covers."""
        return self._queues | {queue for queue in assigned if self._covers(queue)}

    def properties(self, assigned: Collection[MessageQueue]) -> dict[str, str]:
        """Describe the pauses, for brokers and consoles that ask about a consumer with the queues `assigned`."""
        paused = sorted(queue for queue in assigned if self._covers(queue))
        more = len(paused) - _REPORTED_QUEUES
        parts = [*map(str, paused[:_REPORTED_QUEUES]), *([f"{more} more"] if more > 0 else [])]
        return {"paused": "true" if self._all else "false", "pausedQueues": "; ".join(parts)}

    def _covers(self, queue: MessageQueue) -> bool:
        return self._all or queue.topic in self._topics or queue in self._queues

    def _turn_all(self) -> None:
        for queue, gate in self._gates.items():
            self._turn(queue, gate)

    def _turn(self, queue: MessageQueue, gate: asyncio.Event) -> None:
        if queue in self._held or self._covers(queue):
            gate.clear()
        else:
            gate.set()

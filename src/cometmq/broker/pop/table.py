"""Hold what all groups have in flight, and change it: the same way when it happens and when the log is read again.

`Table.apply` is the only way to change it, and takes nothing but changes that the log has. So the table after a start
is the one before a kill, except for changes that had not reached the disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Final

from cometmq.broker.pop import changes as c
from cometmq.broker.pop.changes import AnyChange, Key
from cometmq.broker.pop.in_flight import NEVER_MS, Hidden, InFlight
from cometmq.broker.pop.ordered import Ordered

# Messages in a part of a snapshot: so many are encoded in well under a millisecond.
PART: Final = 1_024
# A queue without any takes as much of a record as so many.
_COST_OF_QUEUE: Final = 16


class QueueState:
    """The messages that a group has in flight of one queue, and the offset at which it goes on."""

    __slots__ = (
        "armed_for_ms", "hidden", "key", "late_since_ms", "next_offset", "order", "revived_count",
        "tried_again_ms",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.key = key
        self.next_offset = 0
        self.hidden = InFlight()
        self.order: Ordered | None = None
        # The time for which the table has it in the list of messages that become visible.
        self.armed_for_ms = NEVER_MS
        # How many were delivered again since the start, for metrics.
        self.revived_count = 0
        # If messages could not be copied: when the first of them was due, and when they are tried again.
        self.late_since_ms = NEVER_MS
        self.tried_again_ms = 0

    @property
    def position(self) -> int:
        """Where the next pop in order begins to read."""
        return self.next_offset if self.order is None else self.order.position

    @property
    def unpopped(self) -> int:
        """Where a pop without order begins to read: behind what is in flight in order, too."""
        return self.next_offset if self.order is None else self.order.handed_out_end

    @property
    def committed(self) -> int:
        """The first offset that is not done."""
        lowest = self.hidden.lowest
        position = self.position
        return position if lowest is None or position < lowest else lowest

    @property
    def count(self) -> int:
        """How many messages are in flight."""
        return len(self.hidden) + (0 if self.order is None else len(self.order.pending))

    @property
    def first_popped_ms(self) -> int:
        """When the message in flight with the lowest offset was popped, 0 if none is in flight."""
        lowest = self.hidden.lowest
        known = None if lowest is None else self.hidden.get(lowest)
        times = [] if known is None else [known.popped_ms]
        if self.order is not None and self.order.pending:
            times.append(self.order.popped_ms)
        return min(times, default=0)

    @property
    def due_ms(self) -> int:
        """When the first message without order is due to be delivered again, NEVER_MS without any in flight.

        Until revival has looked at the queue, this may be the time of a message that was acknowledged before it.
        """
        return min(self.hidden.next_due_ms, self.late_since_ms) if len(self.hidden) else NEVER_MS

    def batch(self) -> Ordered:
        """Return what is in flight in order; nothing if the group has not popped in order."""
        if self.order is not None:
            return self.order
        order = Ordered()
        order.next_offset = self.next_offset
        return order


class Table:
    """Holds the state of each group and queue that was ever popped.

    `is_copied(change, offset, place)` says whether the log has the copy of a message that `Moved` announces; it is
    asked only for changes that are read again. `changed` has the keys whose committed offset may have moved.
    """

    def __init__(self, is_copied: Callable[[c.Moved, int, int], bool] | None = None) -> None:
        self.states: dict[Key, QueueState] = {}
        self.changed: set[Key] = set()
        self._is_copied = is_copied
        self._due: list[tuple[int, Key]] = []
        # Called when something becomes visible before all else.
        self.on_due_earlier: Callable[[], None] = lambda: None
        self._apply: Final[dict[type[c.Change], Callable[..., None]]] = {
            c.Popped: self._popped,
            c.Acknowledged: self._acknowledged,
            c.Hidden: self._hidden,
            c.Moved: self._moved,
            c.Gone: self._gone,
            c.Postponed: self._postponed,
            c.Reset: self._reset,
            c.Dropped: self._dropped,
            c.OrderPopped: self._order_popped,
            c.OrderAcknowledged: self._order_acknowledged,
            c.OrderHidden: self._order_hidden,
            c.Snapshot: self._snapshot,
            c.OrderSnapshot: self._order_snapshot,
        }

    @property
    def count(self) -> int:
        """How many messages are in flight."""
        return sum(state.count for state in self.states.values())

    def get(self, key: Key) -> QueueState | None:
        return self.states.get(key)

    def apply(self, change: AnyChange) -> None:
        """Make a change that the log has."""
        self._apply[type(change)](change)

    def take_due(self, now_ms: int) -> Iterator[QueueState]:
        """Yield the states that may have messages to be seen again by now, the one that waits longest first.
        Call `arm` with each when its messages were moved.
        """
        while self._due and self._due[0][0] <= now_ms:
            due_ms, key = heapq.heappop(self._due)
            state = self.states.get(key)
            if state is not None and state.armed_for_ms == due_ms:
                state.armed_for_ms = NEVER_MS
                yield state

    def next_due_ms(self) -> int:
        """Return when to call `take_due` next, NEVER_MS if nothing is in flight."""
        return self._due[0][0] if self._due else NEVER_MS

    def arm(self, state: QueueState, now_ms: int = -1) -> None:
        """See to it that `take_due` yields a state when its next message becomes visible. The group was
        notified of messages in order that were visible at `now_ms`.
        """
        due_ms = state.hidden.next_due_ms
        if state.order is not None:
            blocked_until_ms = state.order.blocked_until_ms()
            if now_ms < blocked_until_ms < due_ms:
                due_ms = blocked_until_ms
        if due_ms < state.armed_for_ms and self.states.get(state.key) is state:
            is_earlier = due_ms < self.next_due_ms()
            state.armed_for_ms = due_ms
            heapq.heappush(self._due, (due_ms, state.key))
            if is_earlier:
                self.on_due_earlier()

    def is_live(self) -> None:
        """Note that the log is read: from now on copies are made with the changes that announce them."""
        self._is_copied = None

    def snapshots(self) -> Iterator[list[AnyChange]]:
        """Yield a round: changes which make this table of an empty one. Others may be made in between, if the log
        gets all of them in their order.
        """
        changes: list[AnyChange] = []
        size = 0
        for key in list(self.states):
            begin: int | None = 0
            while begin is not None and (state := self.states.get(key)) is not None:
                part, end = state.hidden.part(begin, PART)
                changes.append(_snapshot(state, begin, end, part))
                if begin == 0 and state.order is not None:
                    changes.append(_order_snapshot(state.key, state.order))
                begin = end
                size += len(part) + _COST_OF_QUEUE
                if size >= PART:
                    yield changes
                    changes, size = [], 0
        if changes:
            yield changes

    # The effects of the changes

    def _state(self, key: Key) -> QueueState:
        state = self.states.get(key)
        if state is None:
            state = self.states[key] = QueueState(key)
        self.changed.add(key)
        return state

    def _popped(self, change: c.Popped) -> None:
        state = self._state(change.key)
        if state.order is not None:
            # The group pops without order from now on. Its messages in flight stay hidden.
            order, state.order = state.order, None
            for offset, until_ms in zip(order.offsets, order.until, strict=True):
                if offset not in order.done:
                    state.hidden.add([offset], order.popped_ms, until_ms)
            # The messages of earlier, larger batches are visible.
            for offset in sorted(order.later):
                state.hidden.add([offset], order.popped_ms, order.popped_ms)
            self.arm(state)
        state.next_offset = change.next_offset
        if change.runs:
            state.hidden.add(c.offsets_of(change.runs), change.popped_ms, change.until_ms)
            self.arm(state)

    def _acknowledged(self, change: c.Acknowledged) -> None:
        state = self.states.get(change.key)
        if state is not None:
            for offset in change.offsets:
                state.hidden.remove(offset, change.popped_ms)
            self.changed.add(change.key)

    def _hidden(self, change: c.Hidden) -> None:
        state = self.states.get(change.key)
        if state is None:
            return
        known = state.hidden.get(change.offset)
        if known is not None and known.popped_ms == change.popped_ms:
            state.hidden.hide(change.offset, change.since_ms, change.until_ms)
            self.arm(state)

    def _moved(self, change: c.Moved) -> None:
        state = self.states.get(change.key)
        if state is not None:
            for place, offset in enumerate(change.offsets, change.queue_offset):
                if self._is_copied is None or self._is_copied(change, offset, place):
                    state.hidden.remove(offset)
            self.changed.add(change.key)

    def _gone(self, change: c.Gone) -> None:
        state = self.states.get(change.key)
        if state is not None:
            for offset in change.offsets:
                state.hidden.remove(offset)
            self.changed.add(change.key)

    def _postponed(self, change: c.Postponed) -> None:
        state = self.states.get(change.key)
        if state is not None:
            for offset in change.offsets:
                known = state.hidden.get(offset)
                if known is not None:
                    state.hidden.hide(offset, known.popped_ms, change.until_ms)
            self.arm(state)

    def _reset(self, change: c.Reset) -> None:
        state = self._state(change.key)
        state.order = None
        state.next_offset = change.next_offset
        state.hidden.replace(change.next_offset, None, ())

    def _dropped(self, change: c.Dropped) -> None:
        self.states.pop(change.key, None)
        self.changed.discard(change.key)

    def _order_popped(self, change: c.OrderPopped) -> None:
        state = self._state(change.key)
        order = state.order = state.batch()
        order.pop(
            change.offsets, change.popped_ms, change.until_ms, change.next_offset, change.attempt_id,
            change.counts,
        )  # fmt: skip
        state.next_offset = order.position
        self.arm(state)

    def _order_acknowledged(self, change: c.OrderAcknowledged) -> None:
        state = self.states.get(change.key)
        if state is not None and state.order is not None:
            for offset in change.offsets:
                state.order.acknowledge(offset)
            state.next_offset = state.order.position
            self.changed.add(change.key)
            if state.order.pending:
                # The remaining messages may become visible earlier than the acknowledged ones would have.
                self.arm(state)

    def _order_hidden(self, change: c.OrderHidden) -> None:
        state = self.states.get(change.key)
        if state is not None and state.order is not None:
            state.order.hide(change.offset, change.until_ms)
            self.arm(state)

    def _snapshot(self, change: c.Snapshot) -> None:
        state = self._state(change.key)
        state.next_offset = change.next_offset
        if change.begin == 0:
            state.order = None  # if there is one, it stands in the same record
        part: list[Hidden] = []
        if change.offsets:
            popped_ms, until_ms = change.popped[0], change.until[0]
            popped = [popped_ms, *(popped_ms + each for each in change.popped[1:])]
            until = [until_ms, *(until_ms + each for each in change.until[1:])]
            part = list(map(Hidden, accumulate(change.offsets), popped, until))
        state.hidden.replace(change.begin, change.end, part)
        self.arm(state)

    def _order_snapshot(self, change: c.OrderSnapshot) -> None:
        state = self._state(change.key)
        order = state.order = Ordered()
        order.popped_ms, order.next_offset = change.popped_ms, change.next_offset
        order.first_popped_ms = change.first_popped_ms or change.popped_ms
        order.offsets, order.until = list(change.offsets), list(change.until)
        order.counts, order.done = list(change.counts), set(change.done)
        order.later, order.attempt_id = dict(change.later), change.attempt_id
        state.next_offset = order.position
        self.arm(state)


def _snapshot(state: QueueState, begin: int, end: int | None, part: list[Hidden]) -> c.Snapshot:
    if not part:
        return c.Snapshot(state.key, state.next_offset, begin, end, [], [], [])
    offsets, popped, until = zip(*part, strict=True)
    return c.Snapshot(
        state.key,
        state.next_offset,
        begin,
        end,
        [offsets[0], *(b - a for a, b in pairwise(offsets))],
        [popped[0], *(each - popped[0] for each in popped[1:])],
        [until[0], *(each - until[0] for each in until[1:])],
    )


def _order_snapshot(key: Key, order: Ordered) -> c.OrderSnapshot:
    return c.OrderSnapshot(
        key,
        order.popped_ms,
        order.next_offset,
        order.offsets,
        order.until,
        order.counts,
        sorted(order.done),
        order.later,
        order.attempt_id,
        order.first_popped_ms,
    )

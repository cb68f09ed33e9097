"""Keep which messages of one queue a group has popped in order (Java: ConsumerOrderInfoManager).

One batch of a queue is in flight at a time: until each of its messages is acknowledged or visible again, the group
gets nothing from the queue. Messages are not sent to a retry topic: the queue is read again from the first one that
is not acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

# Messages that the batch of a repeated attempt has at most. Beyond, as if a client repeated one attempt with ever other
# filters, the last answer replaces the batch, as each does in Java.
MOST_OF_ATTEMPT: Final = 128


class Acknowledged(Enum):
    """How an acknowledgement ended: the message is done, it was popped again since, or it is not in flight."""

    DONE = auto()
    POPPED_AGAIN = auto()
    NOT_IN_FLIGHT = auto()


class Ordered:
    """Holds the batch in flight of one group and queue.

    `offsets` begins with the first message that is not acknowledged, and `counts` says for each how often it had
    been handed out before. `done` has the acknowledged messages behind the first one that is not. `later` counts
    how often messages behind the batch were handed out, by earlier and larger batches.

    A client that has lost an answer repeats its attempt, and gets the batch again, perhaps more or fewer messages. All
    answers of an attempt are one batch: it keeps the messages of each, and handles of each of them are good. Answers
    may come late, and requests in another order than they were sent: by a new connection before those of the old one.
    """

    __slots__ = (
        "attempt_id", "counts", "done", "first_popped_ms", "later", "next_offset", "offsets", "popped_ms", "until",
    )  # fmt: skip

    def __init__(self) -> None:
        # When the attempt popped first, and last.
        self.first_popped_ms = self.popped_ms = 0
        self.attempt_id = ""
        self.offsets: list[int] = []
        self.until: list[int] = []
        self.counts: list[int] = []
        self.done: set[int] = set()
        self.later: dict[int, int] = {}
        # Where the queue goes on behind the batch.
        self.next_offset = 0

    @property
    def pending(self) -> list[int]:
        """The offsets of the batch that are not acknowledged."""
        return [offset for offset in self.offsets if offset not in self.done]

    @property
    def position(self) -> int:
        """The first offset that is not acknowledged."""
        return min(self.pending, default=self.next_offset)

    @property
    def handed_out_end(self) -> int:
        """The offset behind all that was ever handed out, in this batch or in a larger one before it."""
        return max([self.next_offset, *(each + 1 for each in (*self.done, *self.later))])

    def blocked_until_ms(self) -> int:
        """Return when all of the batch is acknowledged or visible, 0 if it is all acknowledged."""
        times = zip(self.offsets, self.until, strict=True)
        return max((until for offset, until in times if offset not in self.done), default=0)

    def is_blocked(self, now_ms: int, attempt_id: str) -> bool:
        """Say whether the group must wait: unless it repeats the attempt that got the batch, and may have
        lost the answer.
        """
        if attempt_id and attempt_id == self.attempt_id:
            return False
        return now_ms < self.blocked_until_ms()

    def counts_of(self, offsets: Sequence[int], attempt_id: str) -> list[int]:
        """Return how often each message has been handed out before."""
        more = 0 if attempt_id and attempt_id == self.attempt_id else 1
        known = {at: count + more for at, count in zip(self.offsets, self.counts, strict=True)}
        return [known.get(offset, self.later.get(offset, 0)) for offset in offsets]

    def pop(
        self,
        offsets: Sequence[int],
        popped_ms: int,
        until_ms: int,
        next_offset: int,
        attempt_id: str,
        counts: Sequence[int],
    ) -> None:
        """Replace the batch, or add to it if its attempt is repeated. A message that was acknowledged behind one
        that was not is in flight again if it is in a new batch, as in Java.
        """
        is_repeated = bool(attempt_id and attempt_id == self.attempt_id and self.pending)
        if is_repeated and len(self.offsets) + len(offsets) <= MOST_OF_ATTEMPT:
            self._repeat(offsets, popped_ms, until_ms, next_offset, counts)
            return
        self.done.difference_update(offsets)
        handed_out = {at: count + 1 for at, count in zip(self.offsets, self.counts, strict=True)}
        self.later = {
            offset: count
            for offset, count in (self.later | handed_out).items()
            if offset >= next_offset and offset not in self.done
        }
        self.first_popped_ms = self.popped_ms = popped_ms
        self.attempt_id = attempt_id
        self.offsets, self.counts = list(offsets), list(counts)
        self.until = [until_ms] * len(self.offsets)
        self.next_offset = next_offset
        self._forget_done()

    def check(self, offset: int, popped_ms: int) -> Acknowledged:
        """Say what an acknowledgement of a message that was popped at that time does."""
        if not self.offsets or offset not in self.offsets:
            return Acknowledged.NOT_IN_FLIGHT
        if not self.first_popped_ms <= popped_ms <= self.popped_ms:
            return Acknowledged.POPPED_AGAIN
        return Acknowledged.DONE

    def acknowledge(self, offset: int) -> None:
        if offset in self.offsets:
            self.done.add(offset)
            self._forget_done()

    def hide(self, offset: int, until_ms: int) -> None:
        """Hide a message of the batch until another time."""
        if offset in self.offsets:
            self.until[self.offsets.index(offset)] = until_ms

    def _repeat(
        self,
        offsets: Sequence[int],
        popped_ms: int,
        until_ms: int,
        next_offset: int,
        counts: Sequence[int],
    ) -> None:
        """Hand the batch out again, to the same attempt. Messages that only an earlier answer had stay in it."""
        batch = {
            at: (until, count)
            for at, until, count in zip(self.offsets, self.until, self.counts, strict=True)
        }
        batch |= {at: (until_ms, count) for at, count in zip(offsets, counts, strict=True)}
        self.offsets = sorted(batch)
        self.until = [batch[at][0] for at in self.offsets]
        self.counts = [batch[at][1] for at in self.offsets]
        # A clock that was set back does not make the handles of earlier answers bad.
        self.first_popped_ms = min(self.first_popped_ms, popped_ms)
        self.popped_ms = max(self.popped_ms, popped_ms)
        self.next_offset = max(self.next_offset, next_offset)
        self.later = {at: count for at, count in self.later.items() if at >= self.next_offset}
        self._forget_done()

    def _forget_done(self) -> None:
        """Go on to the first message that is not acknowledged."""
        position = self.position
        if position >= self.next_offset:
            # All of the batch is done. An earlier batch may have been longer.
            while position in self.done:
                position += 1
            self.next_offset = position
        gone = bisect_left(self.offsets, position)
        del self.offsets[:gone], self.until[:gone], self.counts[:gone]
        self.done = {offset for offset in self.done if offset > position}

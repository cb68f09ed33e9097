"""Which timed messages are done, in a few numbers.

Timed messages are delivered in order of (slot, queue offset), a slot being their time of delivery
rounded to the timer's precision. So the last pair that was delivered says it all: what is not above
it is done. Only a clock that is set back breaks this: a message may then arrive in a slot that is
over. From its queue offset on a new segment begins, which is measured by a pair of its own, until
time has caught up and the segments are one again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cometmq.model.ranges import Int64

# Above every queue offset: a slot that is done as a whole.
WHOLE_SLOT: Final = 2**62


class Segment(msgspec.Struct, rename="camel"):
    """From queue offset `start` on, what is at or below (`slot`, `offset`) is done."""

    start: Int64 = 0
    slot: Int64 = -1
    offset: Int64 = -1


class TimerProgress:
    """The segments by their starts, the first at 0."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = sorted(segments, key=lambda segment: segment.start) or [Segment()]
        self.segments[0].start = 0

    def is_done(self, slot: int, offset: int) -> bool:
        """Whether the message at queue offset `offset`, due in `slot`, needs no more attention."""
        done = self._segment(offset)
        return slot < done.slot or (slot == done.slot and offset <= done.offset)

    def is_slot_done(self, slot: int, offset: int) -> bool:
        """Whether all of `slot` is over for the segment of `offset`; a recall counts until then."""
        done = self._segment(offset)
        return slot < done.slot or (slot == done.slot and done.offset == WHOLE_SLOT)

    def arrived(self, slot: int, offset: int) -> None:
        """A message came at the end of the queue."""
        # Nothing of a slot that is under way can come unless the clock went back.
        if slot <= self.segments[-1].slot:
            self.segments.append(Segment(offset))

    def advance(self, slot: int, offset: int) -> None:
        """One message is done, and so is every one of an earlier slot that has arrived by now."""
        if len(self.segments) > 1:
            self.finish(slot - 1)
        done = self._segment(offset)
        done.slot, done.offset = max((done.slot, done.offset), (slot, offset))

    def advance_all(self, slot: int, offsets: Sequence[int]) -> None:
        """`advance` for messages that were done in this order; there is at least one."""
        if len(self.segments) == 1:
            self.advance(slot, offsets[-1])
            return
        for offset in offsets:
            self.advance(slot, offset)

    def finish(self, slot: int) -> None:
        """Every message of `slot` and of all slots before it that has arrived is done."""
        for done in self.segments:
            if done.slot <= slot:
                done.slot, done.offset = slot, WHOLE_SLOT
        merged = self.segments[:1]
        for done in self.segments[1:]:
            last = merged[-1]
            if (done.slot, done.offset) != (last.slot, last.offset):
                merged.append(done)
        self.segments = merged

    def copy(self) -> tuple[Segment, ...]:
        return tuple(Segment(done.start, done.slot, done.offset) for done in self.segments)

    def _segment(self, offset: int) -> Segment:
        segments = self.segments
        if len(segments) == 1:
            return segments[0]
        return segments[bisect_right(segments, offset, key=lambda done: done.start) - 1]

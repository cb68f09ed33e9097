"""Keep in a few numbers which timed messages are done.

Timed messages are delivered in order of (slot, queue offset); a slot is the time of delivery
rounded to the timer's precision. So the last pair that was delivered suffices: all messages up to
it are done. This fails only when the clock is set back: then a message may arrive in a slot that is
over. A new segment begins at the queue offset of that message and has a pair of its own. When time
has caught up, the segments are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cometmq.model.java.ranges import Int64

# Greater than any queue offset; stands for all messages of a slot.
WHOLE_SLOT: Final = 2**62


class Segment(msgspec.Struct, rename="camel"):
    """A part of the queue, from offset `start` on: messages up to (`slot`, `offset`) are done."""

    start: Int64 = 0
    slot: Int64 = -1
    offset: Int64 = -1


class TimerProgress:
    """Keeps the segments, in order of their starts; the first starts at 0."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = sorted(segments, key=lambda segment: segment.start) or [Segment()]
        self.segments[0].start = 0

    def is_done(self, slot: int, offset: int) -> bool:
        """Say whether the message at queue offset `offset`, due in `slot`, is done."""
        done = self._segment(offset)
        return slot < done.slot or (slot == done.slot and offset <= done.offset)

    def is_slot_done(self, slot: int, offset: int) -> bool:
        """Say whether all of `slot` is done for the segment of `offset`.

        A recall in the slot has effect until then.
        """
        done = self._segment(offset)
        return slot < done.slot or (slot == done.slot and done.offset == WHOLE_SLOT)

    def arrived(self, slot: int, offset: int) -> None:
        """Take in a message that arrived at the end of the queue."""
        # Only if the clock was set back can a message arrive in a slot that is being delivered.
        if slot <= self.segments[-1].slot:
            self.segments.append(Segment(offset))

    def advance(self, slot: int, offset: int) -> None:
        """Note that a message is done, and all those of earlier slots that have arrived."""
        if len(self.segments) > 1:
            self.finish(slot - 1)
        done = self._segment(offset)
        done.slot, done.offset = max((done.slot, done.offset), (slot, offset))

    def advance_all(self, slot: int, offsets: Sequence[int]) -> None:
        """Call `advance` for messages that were done in this order; there must be at least one."""
        if len(self.segments) == 1:
            self.advance(slot, offsets[-1])
            return
        for offset in offsets:
            self.advance(slot, offset)

    def finish(self, slot: int) -> None:
        """Note that all messages of `slot` and of earlier slots that have arrived are done."""
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

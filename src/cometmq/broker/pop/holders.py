"""Remember which client got which pop, for operators that ask.

The log has no client: whoever has a message's handle may acknowledge it. So this lies in memory only, and a broker
that was started again, or has served many pops since, does not know.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cometmq.broker.pop.changes import Key

# Some 300 bytes each.
_MOST: Final = 16_384
# Of one queue and millisecond.
_MOST_AT_ONCE: Final = 32


class Holders:
    """Holds for the latest pops of queues the address of the client. For the loop's thread only."""

    __slots__ = ("_pops",)

    def __init__(self) -> None:
        # By queue and time of the pop: the last offset of each pop at that time, and the client that got it.
        self._pops: OrderedDict[tuple[Key, int], tuple[tuple[int, str], ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pops)

    def note(self, key: Key, popped_ms: int, last_offset: int, peer: str) -> None:
        """Note that a client got messages of a queue up to an offset."""
        place = (key, popped_ms)
        self._pops[place] = (*self._pops.get(place, ()), (last_offset, peer))[-_MOST_AT_ONCE:]
        if len(self._pops) > _MOST:
            self._pops.popitem(last=False)

    def find(self, key: Key, popped_ms: int, offset: int) -> str:
        """Return the address of the client that got a message, empty if it is not known."""
        pops = sorted(self._pops.get((key, popped_ms), ()))
        return next((peer for last, peer in pops if offset <= last), "")

"""Remember which client got which pop, for operators' questions.

The log does not record clients, because any client with a message's handle may acknowledge it. So this is kept
in memory only, and is lost after a restart of the broker, or after many more pops.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cometmq.broker.pop.changes import Key

# Each takes some 300 bytes.
_MOST: Final = 16_384
# The limit for one queue and millisecond.
_MOST_AT_ONCE: Final = 32


class Holders:
    """Holds the client's address for each of the latest pops of queues. For the loop's thread only."""

    __slots__ = ("_pops",)

    def __init__(self) -> None:
        # By queue and time of pop: the last offset of each pop at that time, and the client that got it.
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

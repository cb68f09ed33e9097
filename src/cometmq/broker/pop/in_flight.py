"""Keep which messages of one queue a group has popped and not acknowledged, and until when they are hidden.

A message takes three numbers in arrays and no object: its queue offset, when it was popped, and until when it is
hidden. Arrays of up to _CHUNK messages make a list in the order of offsets, so an acknowledgement is found by two
binary searches and moves at most 12 KB, however many messages are in flight. Chunks that have become small are
joined, so memory follows the number in flight, in whatever order messages are acknowledged.

Runs of offsets with common times would take less memory while nothing is acknowledged, but more as
soon as every second message is. Runs would also have to be split and joined. docs/internals/pop.md
has the figures.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

NEVER_MS: Final = 2**63 - 1
_CHUNK: Final = 512
# Two neighbours with no more messages together are joined, once one of them has shrunk to _SMALL.
_JOINED: Final = 256
_SMALL: Final = 128


class Hidden(NamedTuple):
    """A message in flight: its queue offset, when it was popped, and until when it is hidden, in ms."""

    offset: int
    popped_ms: int
    until_ms: int


class _Chunk:
    """Neighbours in the order of offsets. No message is hidden for less long than to `earliest_ms`."""

    __slots__ = ("earliest_ms", "offsets", "popped", "until")

    def __init__(self, offsets: array[int], popped: array[int], until: array[int]) -> None:
        self.offsets = offsets
        self.popped = popped
        self.until = until
        self.earliest_ms = min(until, default=NEVER_MS)


class InFlight:
    """Holds the messages in flight of one group and queue. `next_due_ms` is no later than the time at
    which the first of them becomes visible.
    """

    __slots__ = ("_chunks", "_count", "_starts", "next_due_ms")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        # No offset of a chunk is lower than its start, nor as high as the next one's.
        self._starts: list[int] = []
        self._count = 0
        self.next_due_ms = NEVER_MS

    @property
    def chunk_count(self) -> int:
        """In how many chunks the messages lie, each of which takes memory."""
        return len(self._chunks)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Hidden]:
        for chunk in self._chunks:
            yield from map(Hidden, chunk.offsets, chunk.popped, chunk.until)

    @property
    def lowest(self) -> int | None:
        """The lowest offset in flight."""
        return self._chunks[0].offsets[0] if self._count else None

    def get(self, offset: int) -> Hidden | None:
        place = self._find(offset)
        if place is None:
            return None
        chunk, at = self._chunks[place[0]], place[1]
        return Hidden(offset, chunk.popped[at], chunk.until[at])

    def add(self, offsets: Sequence[int], popped_ms: int, until_ms: int) -> None:
        """Take in popped messages, in the order of their offsets. One that is in flight already gets the
        new times.
        """
        if not offsets:
            return
        chunks = self._chunks
        if chunks and offsets[0] <= chunks[-1].offsets[-1]:
            for offset in offsets:  # after a reset
                self._insert(offset, popped_ms, until_ms)
        else:
            begin, end = 0, len(offsets)
            while begin < end:
                if not chunks or len(chunks[-1].offsets) >= _CHUNK:
                    chunks.append(_Chunk(array("q"), array("q"), array("q")))
                    self._starts.append(offsets[begin])
                chunk = chunks[-1]
                part = offsets[begin : begin + _CHUNK - len(chunk.offsets)]
                chunk.offsets.extend(part)
                chunk.popped.extend([popped_ms] * len(part))
                chunk.until.extend([until_ms] * len(part))
                chunk.earliest_ms = min(chunk.earliest_ms, until_ms)
                begin += len(part)
            self._count += end
        self.next_due_ms = min(self.next_due_ms, until_ms)

    def remove(self, offset: int, popped_ms: int | None = None) -> bool:
        """Forget a message, with `popped_ms` only if it was popped then. Say whether it was there."""
        place = self._find(offset)
        if place is None:
            return False
        index, at = place
        chunk = self._chunks[index]
        if popped_ms is not None and chunk.popped[at] != popped_ms:
            return False
        del chunk.offsets[at], chunk.popped[at], chunk.until[at]
        self._count -= 1
        if len(chunk.offsets) <= _SMALL:
            self._shrunk(index)
        return True

    def hide(self, offset: int, popped_ms: int, until_ms: int) -> bool:
        """Give a message in flight new times. Say whether it is in flight."""
        place = self._find(offset)
        if place is None:
            return False
        chunk, at = self._chunks[place[0]], place[1]
        chunk.popped[at] = popped_ms
        chunk.until[at] = until_ms
        chunk.earliest_ms = min(chunk.earliest_ms, until_ms)
        self.next_due_ms = min(self.next_due_ms, until_ms)
        return True

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Return `limit` messages that are no longer hidden, in the order of their offsets, and bring
        `next_due_ms` up to date. They stay in flight until they are removed, or hidden again.
        """
        found: list[int] = []
        next_due_ms = NEVER_MS
        if now_ms < self.next_due_ms:
            return found
        for chunk in self._chunks:
            if chunk.earliest_ms <= now_ms and len(found) < limit:
                # It may have been that of a message that was acknowledged.
                chunk.earliest_ms = min(chunk.until)
                if chunk.earliest_ms <= now_ms:
                    pairs = zip(chunk.offsets, chunk.until, strict=True)
                    found += [offset for offset, until_ms in pairs if until_ms <= now_ms]
            next_due_ms = min(next_due_ms, chunk.earliest_ms)
        self.next_due_ms = next_due_ms
        return found[:limit]

    def part(self, begin: int, limit: int) -> tuple[list[Hidden], int | None]:
        """Return `limit` messages from offset `begin` on, and the offset of the next one, None at the end."""
        found: list[Hidden] = []
        index = max(bisect_right(self._starts, begin) - 1, 0)
        while index < len(self._chunks):
            chunk = self._chunks[index]
            at = bisect_left(chunk.offsets, begin)
            end = at + limit - len(found)
            found += map(Hidden, chunk.offsets[at:end], chunk.popped[at:end], chunk.until[at:end])
            if end < len(chunk.offsets):
                return found, chunk.offsets[end]
            index += 1
        return found, None

    def replace(self, begin: int, end: int | None, hidden: Sequence[Hidden]) -> None:
        """Forget the messages from `begin` to before `end`, or to the last one, and take in others there."""
        first = max(bisect_right(self._starts, begin) - 1, 0)
        after = len(self._starts) if end is None else bisect_left(self._starts, end)
        cut = [
            each
            for chunk in self._chunks[first:after]
            for each in map(Hidden, chunk.offsets, chunk.popped, chunk.until)
        ]
        merged = [each for each in cut if each.offset < begin]
        merged += hidden
        if end is not None:
            merged += [each for each in cut if each.offset >= end]
        chunks: list[_Chunk] = []
        for at in range(0, len(merged), _CHUNK):
            offsets, popped, until = zip(*merged[at : at + _CHUNK], strict=True)
            chunks.append(_Chunk(array("q", offsets), array("q", popped), array("q", until)))
        self._chunks[first:after] = chunks
        self._starts[first:after] = [chunk.offsets[0] for chunk in chunks]
        self._count += len(merged) - len(cut)
        self.next_due_ms = min([self.next_due_ms, *(chunk.earliest_ms for chunk in chunks)])

    def _find(self, offset: int) -> tuple[int, int] | None:
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        offsets = self._chunks[index].offsets
        at = bisect_left(offsets, offset)
        if at == len(offsets) or offsets[at] != offset:
            return None
        return index, at

    def _insert(self, offset: int, popped_ms: int, until_ms: int) -> None:
        if self.hide(offset, popped_ms, until_ms):
            return
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            index = 0
            self._starts[0] = offset
        chunk = self._chunks[index]
        at = bisect_left(chunk.offsets, offset)
        chunk.offsets.insert(at, offset)
        chunk.popped.insert(at, popped_ms)
        chunk.until.insert(at, until_ms)
        chunk.earliest_ms = min(chunk.earliest_ms, until_ms)
        self._count += 1
        if len(chunk.offsets) > _CHUNK:
            half = _CHUNK // 2
            self._chunks.insert(
                index + 1, _Chunk(chunk.offsets[half:], chunk.popped[half:], chunk.until[half:])
            )
            self._starts.insert(index + 1, chunk.offsets[half])
            del chunk.offsets[half:], chunk.popped[half:], chunk.until[half:]

    def _shrunk(self, index: int) -> None:
        """Join a small chunk with a neighbour, or drop it when it is empty."""
        chunks = self._chunks
        size = len(chunks[index].offsets)
        if not size:
            del chunks[index], self._starts[index]
            return
        for left in (index - 1, index):
            if left < 0 or left + 1 >= len(chunks):
                continue
            here, there = chunks[left], chunks[left + 1]
            if len(here.offsets) + len(there.offsets) <= _JOINED:
                here.offsets.extend(there.offsets)
                here.popped.extend(there.popped)
                here.until.extend(there.until)
                here.earliest_ms = min(here.earliest_ms, there.earliest_ms)
                del chunks[left + 1], self._starts[left + 1]
                return

"""Compute with spans of offsets. A span runs from its first number to below its second."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def within(span: Span, others: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that `others` cover, in order and without overlaps."""
    low, high = span
    found: list[Span] = []
    for start, end in sorted(others):
        start = max(start, low, found[-1][1] if found else low)  # noqa: PLW2901 - the loop's own bounds, narrowed
        end = min(end, high)  # noqa: PLW2901 - the loop's own bounds, narrowed
        if start < end:
            found.append((start, end))
    return found


def without(span: Span, others: Iterable[Span]) -> list[Span]:
    """Return the parts of a span that `others` do not cover."""
    at, high = span
    left: list[Span] = []
    for start, end in within(span, others):
        if at < start:
            left.append((at, start))
        at = end
    if at < high:
        left.append((at, high))
    return left


def length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def runs(offsets: Iterable[int]) -> list[Span]:
    """Join ascending offsets into spans of consecutive ones."""
    found: list[Span] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found

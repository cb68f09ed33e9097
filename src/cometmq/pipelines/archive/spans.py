"""Spans of offsets, each from its first to below its second number."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def within(span: Span, others: Iterable[Span]) -> list[Span]:
    """What `others` cover of a span, in order and without overlaps."""
    low, high = span
    found: list[Span] = []
    for start, end in sorted(others):
        start = max(start, low, found[-1][1] if found else low)  # noqa: PLW2901 - the loop's own bounds, narrowed
        end = min(end, high)  # noqa: PLW2901 - the loop's own bounds, narrowed
        if start < end:
            found.append((start, end))
    return found


def without(span: Span, others: Iterable[Span]) -> list[Span]:
    """What `others` leave of a span."""
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
    """Offsets in order, put together where one follows the other."""
    found: list[Span] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found

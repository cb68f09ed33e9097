"""Hold the findings of a comparison: numbers and differences by place and hour. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Found(NamedTuple):
    """A row of the comparison.

    Without a difference, `numbers` are sent, stored, archived, and consumed by each group. With
    one, `times` says how often it occurs. `hour` counts hours from the epoch; None if no time is
    known.
    """

    topic: str
    broker: str | None
    queue_id: int | None
    hour: int | None
    difference: str | None
    group: str | None
    cause: str | None
    explained: bool | None
    times: int | None
    example: str | None
    numbers: Sequence[int | None]


def merged(found: Iterable[Found]) -> tuple[Found, ...]:
    """Add up findings of one place, hour and cause; the first example stays."""
    sums: dict[tuple[Any, ...], Found] = {}
    for one in found:
        key = one[:8]
        before = sums.get(key)
        if before is None:
            sums[key] = one
            continue
        numbers = [(a or 0) + (b or 0) for a, b in zip(before.numbers, one.numbers, strict=True)]
        times = None if before.times is None else before.times + (one.times or 0)
        sums[key] = before._replace(times=times, numbers=numbers)
    return tuple(sums.values())


def folded(totals: Iterable[Found], hours_from: int) -> tuple[Found, ...]:
    """Sum up the hours before `hours_from`, so that sums of years need no more room."""
    return merged(
        one._replace(hour=None) if one.hour is not None and one.hour < hours_from else one
        for one in totals
    )

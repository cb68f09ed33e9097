"""Derive from Spark's filters where to look (`DataSourceReader.pushFilters`).

Filters only narrow what is read. Spark applies every filter again to the rows, so a filter that is
understood in part or not at all costs time but never changes a result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import datasource as ds

from cometmq.spark.versions import HAS_FILTERS

_SETS: Final = {
    "topic": "topics",
    "broker": "brokers",
    "tags": "tags",
    "queue_id": "queue_ids",
}
_RANGES: Final = {"queue_offset": "offset", "store_time": "time_ms"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a read. A set that is None admits all. Offsets and times (ms) run from the
    lower bound to below the upper one.
    """

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    min_offset: int = 0
    end_offset: int = _INT64_MAX
    min_time_ms: int = 0
    end_time_ms: int = _INT64_MAX

    def takes(self, topic: str, broker: str | None, queue_id: int) -> bool:
        """Return whether a queue may hold rows that are wanted."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.brokers is None or broker is None or broker in self.brokers)
            and (self.queue_ids is None or queue_id in self.queue_ids)
        )

    @property
    def earliest_ms(self) -> int | None:
        return self.min_time_ms or None

    @property
    def latest_ms(self) -> int | None:
        """Return the first moment that is excluded, or None."""
        return self.end_time_ms if self.end_time_ms < _INT64_MAX else None

    def within(self, filters: Iterable[Any]) -> Bounds:
        """Return these bounds narrowed by each of Spark's `filters`."""
        bounds = self
        for found in filters:
            bounds = _narrowed(bounds, found)
        return bounds


def _narrowed(bounds: Bounds, found: Any) -> Bounds:
    column = ".".join(getattr(found, "attribute", ()))
    if isinstance(found, (ds.EqualTo, ds.EqualNullSafe, ds.In)):
        values = found.value if isinstance(found, ds.In) else (found.value,)
        if isinstance(found, ds.EqualNullSafe) and found.value is None:
            return bounds  # rows without a value are wanted, which no set names
        return _narrowed_to(bounds, column, [value for value in values if value is not None])
    if column not in _RANGES:
        return bounds
    low, end = _range(found)
    if low is not None:
        name = f"min_{_RANGES[column]}"
        bounds = _with(bounds, name, max(getattr(bounds, name), low))
    if end is not None:
        name = f"end_{_RANGES[column]}"
        bounds = _with(bounds, name, min(getattr(bounds, name), end))
    return bounds


def _with(bounds: Bounds, name: str, value: Any) -> Bounds:
    return replace(bounds, **{name: value})


def _narrowed_to(bounds: Bounds, column: str, values: list[Any]) -> Bounds:
    if column in _SETS:
        before: frozenset[Any] | None = getattr(bounds, _SETS[column])
        chosen = frozenset(values) if before is None else before.intersection(values)
        return _with(bounds, _SETS[column], chosen)
    if not values or column not in _RANGES:
        return bounds
    low = ds.GreaterThanOrEqual((column,), min(values))
    return bounds.within((low, ds.LessThanOrEqual((column,), max(values))))


def _range(found: Any) -> tuple[int | None, int | None]:
    """Return the lower bound and the exclusive upper one; None for a bound that the filter does not
    give.
    """
    value = getattr(found, "value", None)
    exact = True
    if isinstance(value, datetime) and value.tzinfo is not None:
        # The value is cut to its millisecond, so `>` and `<` include that millisecond, too.
        value, exact = (value - _EPOCH) // _MILLISECOND, False
    if not isinstance(value, int):
        return None, None
    if isinstance(found, ds.GreaterThan):
        return value + exact, None
    if isinstance(found, ds.GreaterThanOrEqual):
        return value, None
    if isinstance(found, ds.LessThan):
        return None, value + (not exact)
    if isinstance(found, ds.LessThanOrEqual):
        return None, value + 1
    return None, None


def push_where_allowed(reader: Any, *, wanted: bool) -> None:
    """Have Spark's filters narrow the `bounds` of this reader, if it is `wanted` (the option
    `pushFilters`) and this Spark pushes filters.

    It is not wanted by default: Spark 4.1 to 4.3 keeps the plan of a Python source for the last
    filters that it pushed, for all scans of the result of one `load`. So after `frame.where(...)`
    also `frame` itself, and the other branch of a union, have its rows only.
    """
    if HAS_FILTERS and wanted:
        reader.pushFilters = _PushesWhereAllowed(reader)


class _PushesWhereAllowed:
    """Stands in for a reader's `pushFilters`.

    While `spark.sql.python.filterPushdown.enabled` is off (the default), Spark refuses a reader
    that overrides the method, though it could simply not call it. Spark recognizes an override by
    `__func__`, which here is that of the inherited method. So the sources work either way.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return ds.DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> list[Any]:
        self._reader.bounds = self._reader.bounds.within(filters)
        return filters

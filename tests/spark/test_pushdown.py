"""Filters narrow a read, but never so far that a matching row is missing."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from tests.seeds import examples

from cometmq.spark.ranges.pushdown import Bounds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TESTS: dict[Any, Any] = {
    ds.EqualTo: operator.eq,
    ds.EqualNullSafe: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
    ds.In: lambda value, values: value in values,
}

names = st.sampled_from(["a", "b", "c"])
offsets = st.integers(0, 20)
# Rows have whole milliseconds, filters any moment.
stored = st.integers(0, 20).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
moments = st.integers(0, 21_000).map(lambda us: EPOCH + timedelta(microseconds=us))
VALUES = {
    "topic": (names, names),
    "broker": (names, names),
    "tags": (names, names),
    "queue_id": (offsets, offsets),
    "queue_offset": (offsets, offsets),
    "store_time": (stored, moments),
    "keys": (names, names),
}
rows = st.fixed_dictionaries({column: values for column, (values, _) in VALUES.items()})


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(list(VALUES)))
    kind = draw(st.sampled_from(list(TESTS)))
    values = VALUES[column][1]
    value = tuple(draw(st.lists(values, max_size=3))) if kind is ds.In else draw(values)
    found = kind((column,), value)
    return draw(st.sampled_from((found, ds.Not(found), ds.IsNotNull((column,)))))


def holds(found: Any, row: dict[str, Any]) -> bool:
    if isinstance(found, ds.Not):
        return not holds(found.child, row)
    if isinstance(found, ds.IsNotNull):
        return True
    return bool(TESTS[type(found)](row[found.attribute[0]], found.value))


@settings(max_examples=examples(1000))
@given(st.lists(filters(), max_size=4), rows)
def test_what_the_filters_let_pass_is_looked_at(given: list[Any], row: dict[str, Any]) -> None:
    bounds = Bounds().within(given)
    if all(holds(found, row) for found in given):
        assert bounds.takes(row["topic"], row["broker"], row["queue_id"])
        assert bounds.min_offset <= row["queue_offset"] < bounds.end_offset
        time_ms = (row["store_time"] - EPOCH) // timedelta(milliseconds=1)
        assert bounds.min_time_ms <= time_ms < bounds.end_time_ms
        assert bounds.tags is None or row["tags"] in bounds.tags


def test_what_is_narrowed() -> None:
    bounds = Bounds().within(
        [
            ds.EqualTo(("topic",), "a"),
            ds.In(("queue_id",), (1, 2)),
            ds.GreaterThan(("queue_offset",), 5),
            ds.LessThanOrEqual(("queue_offset",), 9),
            ds.GreaterThanOrEqual(("store_time",), EPOCH + timedelta(milliseconds=7)),
            ds.LessThan(("store_time",), EPOCH + timedelta(milliseconds=9)),
        ]
    )
    assert bounds.takes("a", "b", 1)
    assert not bounds.takes("b", "b", 1)
    assert not bounds.takes("a", "b", 3)
    assert (bounds.min_offset, bounds.end_offset) == (6, 10)
    assert bounds.min_time_ms == 7
    assert bounds.end_time_ms in (9, 10)


def test_filters_that_contradict_each_other_leave_nothing() -> None:
    bounds = Bounds().within([ds.EqualTo(("topic",), "a"), ds.EqualTo(("topic",), "b")])
    assert not bounds.takes("a", "x", 0)
    assert not bounds.takes("b", "x", 0)


def test_rows_without_a_value_may_be_asked_for() -> None:
    bounds = Bounds().within([ds.EqualNullSafe(("tags",), None)])
    assert bounds.tags is None

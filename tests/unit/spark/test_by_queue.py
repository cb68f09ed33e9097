"""Offsets and times by topic, broker and queue, as options give them."""

from __future__ import annotations

import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.model.queue import MessageQueue
from cometmq.spark.options import Options
from cometmq.spark.ranges.by_queue import EARLIEST, LATEST, offsets_option, times_option

QUEUES = [MessageQueue("orders", broker, at) for broker in ("a", "b") for at in (0, 1)]


def options(**given: str) -> Options:
    return Options("rocketmq", given, ("startingOffsets", "startingTimestamp", "byQueue"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("EARLIEST", [EARLIEST] * 4),
        ('{"orders": "Latest"}', [LATEST] * 4),
        ('{"orders": {"a": -2, "b": -1}}', [EARLIEST, EARLIEST, LATEST, LATEST]),
        ('{"orders": {"a": {"0": 17, "01": 0}, "b": -1}}', [17, 0, LATEST, LATEST]),
        ('{"orders": {"a": {"0": 17}, "b": {"1": "earliest"}}}', [17, None, None, EARLIEST]),
    ],
)
def test_offsets(text: str, values: list[int | str | None]) -> None:
    found = offsets_option(options(startingOffsets=text), "startingOffsets", LATEST)
    assert [found.of(queue) for queue in QUEUES] == values
    assert found.unknown(QUEUES) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"orders": 17}', "gives all queues of orders the offset 17; that is for single queues"),
        ('{"orders": {"a": {"0": -3}}}', "orders@a:0 the offset -3; below zero only -2"),
        ('{"orders": "newest"}', "gives orders 'newest'; words are earliest and latest"),
        ('{"orders": {"a": {"x": 1}}}', "queue id that is no number: 'x'"),
        ('{"orders": {"a": {"0": {"0": 1}}}}', "does not fit"),
        ("soon", "does not fit"),
    ],
)
def test_offsets_that_do_not_fit(text: str, words: str) -> None:
    with pytest.raises(IllegalArgumentError, match=words):
        offsets_option(options(startingOffsets=text), "startingOffsets", LATEST)


def test_entries_of_no_queue_are_named() -> None:
    text = '{"orders": {"a": {"7": 1}, "c": -1}, "order": -2}'
    found = offsets_option(options(startingOffsets=text), "startingOffsets", LATEST)
    assert found.unknown(QUEUES) == ["order", "orders@a:7", "orders@c"]


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1795431600000", 1795431600000),
        ("2026-11-23T11:00:00Z", 1795431600000),
        ("2026-11-23T12:00:00.250+01:00", 1795431600250),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    one = times_option(options(startingTimestamp=text), "startingTimestamp", "byQueue")
    table = times_option(
        options(byQueue=f'{{"orders": {{"a": "{text}"}}}}'), "startingTimestamp", "byQueue"
    )
    assert one is not None
    assert table is not None
    assert [one.time_of(queue) for queue in QUEUES] == [time_ms] * 4
    assert [table.time_of(queue) for queue in QUEUES] == [time_ms, time_ms, None, None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-23T12:00:00", "needs a zone: for example 2026-11-23T12:00:00Z"),
        ("2026-11-23", "needs a zone: for example 2026-11-23T00:00:00Z"),
        ("--5", "must be ms since the epoch or a time such as"),
        ("yesterday", "must be ms since the epoch or a time such as"),
        ("-5", "must lie in 0"),
        ("99999999999999999999", "must lie in 0"),
        ("1969-12-31T23:59:59Z", "must not be before 1970"),
    ],
)
def test_times_that_do_not_fit(text: str, words: str) -> None:
    with pytest.raises(IllegalArgumentError, match=words):
        times_option(options(startingTimestamp=text), "startingTimestamp", "byQueue")

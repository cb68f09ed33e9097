"""Parts of `audit` and `trace` that need no Spark that runs."""

from __future__ import annotations

import pytest

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.audit.rows import Bounds, disjoint
from cometmq.pipelines.audit.settings import Config
from cometmq.pipelines.trace.report import upper_bound_ms
from cometmq.spark.gaps import Gap
from cometmq.spark.rows.columns import COLUMNS, columns_in


def gap(start: int, end: int, queue_id: int = 0) -> Gap:
    return Gap("orders", "broker-a", queue_id, start, end, "")


def test_an_offset_lies_in_one_range_only() -> None:
    ranges = [(gap(8, 20), "b"), (gap(0, 10), "a"), (gap(3, 5), "c"), (gap(0, 4, 1), "d")]
    of_log = Gap(None, "broker-a", None, 0, 99, "damage")
    assert disjoint([*ranges, (of_log, "e")]) == [
        ("orders", "broker-a", 0, 0, 10, "a"),
        ("orders", "broker-a", 0, 10, 20, "b"),
        ("orders", "broker-a", 1, 0, 4, "d"),
    ]


@pytest.mark.parametrize(
    ("log", "archived", "begin"),
    [
        ((0, 10), None, 0),
        # Without an archive nobody has what was in front of the log.
        ((5, 10), None, 5),
        # What the archive was to have is looked for, and not what was gone before it began.
        ((5, 10), (0, 7), 0),
        ((5, 10), (3, 7), 3),
        ((5, 10), (7, 7), 5),
    ],
)
def test_where_an_audit_begins(
    log: tuple[int, int], archived: tuple[int, int] | None, begin: int
) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    assert Bounds({queue: log}, {queue: archived} if archived else {}).begin(queue) == begin


@pytest.mark.parametrize(
    ("key", "expression"),
    [
        (None, "cast(null as string)"),
        ("eventId", "properties['eventId']"),
        ("keys[0]", "cast(get(keys, 0) as string)"),
        ("msg_id", "cast(msg_id as string)"),
        ("body", "cast(body as string)"),
    ],
)
def test_a_business_key_is_a_property_or_an_expression(key: str | None, expression: str) -> None:
    assert Config(topics=["orders"], business_key=key).key_expression() == expression


def test_what_an_expression_mentions() -> None:
    assert columns_in("cast(get(keys, 0) as string) || Tags") == {"keys", "tags"}
    assert columns_in("sys_flag * 2 = 4") == {"sys_flag"}
    assert columns_in("hash( *) = 4") == set(COLUMNS)


@pytest.mark.parametrize(
    ("step", "bound"), [(-1, 0), (0, 1), (3, 2), (9, 9), (10, 12), (19, 99), (29, 999)]
)
def test_steps_of_the_histogram_end_at_whole_milliseconds(step: int, bound: int) -> None:
    assert upper_bound_ms(step) == bound

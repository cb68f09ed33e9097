"""The causes of an audit one by one: rows as an audit has them when it compares, made by hand.

Causes that are made for real are in test_pipeline_audit.py; some causes need a broker that waits for
days, or one that lies.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from cometmq.pipelines.audit import Config
from cometmq.pipelines.audit.causes import LEDGER, OFFSETS, TRACE, Basis, Differences

Row = dict[str, Any]
# What is changed of a row; the cause of the difference, and whether it explains it.
Case = tuple[Row, str, bool]

CUT_MS: Final = 1_800_000_000_000
SETTLED_MS: Final = CUT_MS - 10_000
EARLIER_MS: Final = CUT_MS - 3_600_000
EXPIRED_MS: Final = CUT_MS - 100 * 3_600_000
SCHEMA: Final = """
    topic string, broker string, queue_id int, queue_offset bigint, log_count bigint,
    archive_count bigint, differs boolean, msg_id string, key string, store_ms bigint, body_crc int,
    origin string, delayed boolean, untraced boolean, prepared bigint, wanted_0 boolean,
    stray boolean, low bigint, end bigint, first bigint, archived_to bigint, committed_0 bigint,
    late boolean, copy int, copies bigint, is_resend boolean, is_commit_again boolean, key_copy int,
    log_gap string, archive_gap string, lost_file string,
    sent bigint, send_failed bigint, committed bigint, delayed_send bigint, recalled bigint,
    half bigint, half_ended bigint, given_up bigint, consumed_0 bigint, consume_failed_0 bigint,
    dead_0 bigint, retry_0 bigint, retry_waits_0 bigint, retry_redriven_0 bigint,
    retry_delayed_0 bigint, sent_ms bigint, due_ms bigint, done_ms bigint
"""
NAMES: Final = [column.split()[0] for column in SCHEMA.split(",")]
# A message that is everywhere where it has to be.
WHOLE: Final[Row] = {
    **dict.fromkeys(NAMES, 0),
    "topic": "orders",
    "broker": "broker-a",
    "queue_offset": 50,
    "msg_id": "M",
    "low": 10,
    "end": 100,
    "archived_to": 90,
    "committed_0": 80,
    **dict.fromkeys(("store_ms", "sent_ms", "done_ms"), EARLIER_MS),
    **dict.fromkeys(("log_count", "archive_count", "copy", "copies", "sent", "consumed_0"), 1),
    **dict.fromkeys(("differs", "delayed", "untraced", "stray", "late"), False),
    **dict.fromkeys(("is_resend", "is_commit_again"), False),
    "wanted_0": True,
    **dict.fromkeys(("key", "key_copy", "origin", "prepared", "due_ms")),
    **dict.fromkeys(("log_gap", "archive_gap", "lost_file")),
}
PLACELESS: Final = {
    **{name: None for name in NAMES[1:31] if name not in ("msg_id",)},
    "consumed_0": 0,
    "done_ms": None,
}
NOWHERE: Final = {"log_count": 0, "archive_count": 0, "sent": 0, "consumed_0": 0, "msg_id": None}
UNKNOWN: Final = "unexplained"

# By difference.
CASES: Final[dict[str, list[Case]]] = {
    "sent, not stored": [
        ({"sent": 0, "send_failed": 1}, "the send failed", True),
        ({"half": 1, "given_up": 1}, "transaction given up", True),
        # The broker moves it away, and ends the half message by that.
        ({"half_ended": 1, "given_up": 1}, "transaction given up", True),
        ({"half_ended": 1}, "transaction rolled back", True),
        ({"half_ended": 1, "committed": 1}, UNKNOWN, False),
        ({"half": 1}, "transaction undecided", True),
        ({"delayed_send": 1, "recalled": 1}, "recalled by its sender", True),
        ({"delayed_send": 1, "due_ms": CUT_MS + 1}, "delayed, not due yet", True),
        ({"delayed_send": 1, "due_ms": SETTLED_MS}, "delayed, not due yet", True),
        ({"delayed_send": 1, "due_ms": SETTLED_MS - 1}, "delayed, and overdue", False),
        ({"sent_ms": CUT_MS + 1}, "sent after the cut", True),
        ({"sent_ms": CUT_MS}, UNKNOWN, False),
        ({"sent_ms": EXPIRED_MS}, "expired before it was archived", True),
        ({}, UNKNOWN, False),
    ],
    "gap in the offsets": [
        ({"queue_offset": 5, "lost_file": "f"}, "the archive's file is gone", False),
        ({"queue_offset": 5, "archive_gap": "x"}, "expired before it was archived", True),
        ({"queue_offset": 5, "archived_to": 5}, "expired before it was archived", True),
        ({"queue_offset": 5, "archived_to": 6}, UNKNOWN, False),
        ({"log_gap": "retention"}, "expired during the audit", True),
        ({"log_gap": "damage"}, "the log says: damage", False),
        ({}, UNKNOWN, False),
    ],
    "stored, not sent": [
        ({"sent": 0, "send_failed": 1}, "its sender got an error", True),
        ({"sent": 0, "origin": "redriven"}, "redriven", True),
        ({"sent": 0, "untraced": True}, "not traced: TRACE_ON is false", True),
        ({"sent": 0, "store_ms": SETTLED_MS + 1}, "stored just before the cut", True),
        (
            {"sent": 0, "store_ms": EXPIRED_MS - 1},
            "stored before the first record of a send",
            True,
        ),
        ({"sent": 0}, UNKNOWN, False),
    ],
    "stored twice": [
        ({"log_count": 2}, "one place, several logs", False),
        ({"copy": 2, "origin": "replayed"}, "replayed", True),
        ({"copy": 2, "is_resend": True}, "sent again by its client", True),
        ({"copy": 2, "is_commit_again": True}, "transaction committed again", True),
        ({"copy": 2}, UNKNOWN, False),
    ],
    "business key twice": [
        ({"key": "K", "key_copy": 2, "origin": "replayed"}, "replayed", True),
        ({"key": "K", "key_copy": 2}, UNKNOWN, False),
    ],
    "stored, not archived": [
        ({"archive_count": 0, "lost_file": "f"}, "the archive's file is gone", False),
        ({"archive_count": 0, "archived_to": 50}, "not archived yet", True),
        ({"archive_count": 0, "archive_gap": "x"}, "the archive found it gone", False),
        ({"archive_count": 0}, UNKNOWN, False),
    ],
    "archived, not in the log": [
        ({"log_count": 0, "log_gap": "retention"}, "expired during the audit", True),
        ({"log_count": 0, "log_gap": "damage"}, "the log says: damage", False),
        ({"log_count": 0}, UNKNOWN, False),
    ],
    "archived twice": [
        ({"archive_count": 2, "stray": True}, "in a file that the archive does not know", False),
        ({"archive_count": 2}, UNKNOWN, False),
    ],
    "archived, but not as stored": [({"differs": True}, UNKNOWN, False)],
    "stored, not consumed": [
        ({"consumed_0": 0, "wanted_0": False}, "not subscribed", True),
        (
            {"consumed_0": 0, "log_count": 0, "queue_offset": 9, "committed_0": 9},
            "expired before it was consumed",
            True,
        ),
        ({"consumed_0": 0, "committed_0": 50}, "not consumed yet", True),
        ({"consumed_0": 0, "committed_0": None}, "not consumed yet", True),
        ({"consumed_0": 0, "dead_0": 1}, "dead-lettered", True),
        ({"consumed_0": 0, "dead_0": 1, "retry_0": 1, "retry_redriven_0": 1}, UNKNOWN, False),
        ({"consumed_0": 0, "retry_0": 1, "retry_waits_0": 1}, "waits to be consumed again", True),
        ({"consumed_0": 0, "retry_delayed_0": 1}, "waits to be consumed again", True),
        ({"consumed_0": 0, "store_ms": SETTLED_MS + 1}, "stored just before the cut", True),
        ({"consumed_0": 0}, UNKNOWN, False),
    ],
    "consumed twice": [
        ({"consumed_0": 2, "retry_0": 1}, "sent back, and consumed again", True),
        ({"consumed_0": 2, "retry_delayed_0": 1}, "sent back, and consumed again", True),
        ({"consumed_0": 2}, UNKNOWN, False),
    ],
    "consumed, not stored": [
        ({"sent": 0, "consumed_0": 1, "done_ms": CUT_MS + 1}, "consumed after the cut", True),
        (
            {"sent": 0, "consumed_0": 1, "done_ms": EXPIRED_MS - 1},
            "expired before it was archived",
            True,
        ),
        ({"sent": 0, "consumed_0": 1, "done_ms": CUT_MS}, UNKNOWN, False),
    ],
}
# Differences of what has no place, and of places that nothing is known of.
BASES: Final[dict[str, Row]] = {
    "sent, not stored": WHOLE | PLACELESS,
    "consumed, not stored": WHOLE | PLACELESS,
    "gap in the offsets": WHOLE | NOWHERE,
}
Found = tuple[str, str | None, str, bool, int]


def found(spark: Any, rows: list[Row], reported: Basis) -> list[list[Found]]:
    """The differences of each row."""
    from pyspark.sql import functions as f

    frame = spark.createDataFrame(
        [(at, *(row[name] for name in NAMES)) for at, row in enumerate(rows)], f"at int, {SCHEMA}"
    )
    frame = frame.withColumn("store_time", f.timestamp_millis("store_ms"))
    differences = frame.select("at", Differences(reported).column().alias("all")).collect()
    by_row = {row["at"]: [tuple(each) for each in row["all"]] for row in differences}
    return [by_row[at] for at in range(len(rows))]


def reported(sent_by: str = TRACE, consumed_by: str = LEDGER, **settings: Any) -> Basis:
    config = Config(topics=["orders"], groups=["billing"], archive="/a", **settings)
    return Basis(
        config,
        sent_by,
        {"billing": consumed_by},
        frozenset(["billing"]),
        CUT_MS,
        {"orders": EXPIRED_MS},
        {"orders": EXPIRED_MS},
    )


def test_each_cause_has_its_condition(spark: Any) -> None:
    rows, wanted = [], []
    for difference, cases in CASES.items():
        for changed, cause, explained in cases:
            rows.append(BASES.get(difference, WHOLE) | changed)
            wanted.append((difference, cause, explained))
    for row, (difference, cause, explained), differences in zip(
        rows, wanted, found(spark, rows, reported()), strict=True
    ):
        these = [each for each in differences if each[0] == difference]
        assert [each[2:4] for each in these] == [(cause, explained)], row


def test_a_message_that_is_everywhere_differs_nowhere(spark: Any) -> None:
    late = {"log_count": 0, "queue_offset": 5}  # retention has taken it, the archive has it
    for by in (reported(), reported(OFFSETS, OFFSETS)):
        assert found(spark, [dict(WHOLE), WHOLE | late], by) == [[], []]


def test_a_copy_is_consumed_with_the_message_that_it_is_a_copy_of(spark: Any) -> None:
    copy = WHOLE | {"copy": 2, "copies": 2, "consumed_0": 1, "is_resend": True}
    (differences,) = found(spark, [copy], reported())
    assert differences == [
        ("stored twice", None, "sent again by its client", True, 1),
        ("stored, not consumed", "billing", "another copy of it was consumed", True, 1),
    ]


@pytest.mark.parametrize("given", [{}, {"fail_on": ["dead-lettered"]}])
def test_a_cause_that_is_not_accepted_explains_nothing(spark: Any, given: dict[str, Any]) -> None:
    (differences,) = found(spark, [WHOLE | {"consumed_0": 0, "dead_0": 1}], reported(**given))
    assert differences == [("stored, not consumed", "billing", "dead-lettered", not given, 1)]

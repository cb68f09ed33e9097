"""The id of a batch stands for each message of the batch."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.client.namespaces import Namespace
from cometmq.pipelines.audit import Config, batch_ids
from cometmq.pipelines.audit.evidence import Evidence
from cometmq.pipelines.small_tables import small_table

pytestmark = pytest.mark.spark

Row = tuple[str, str, str, int | None]


def of(spark: Any, messages: list[tuple[str, str, str | None, int]]) -> Any:
    schema = "topic string, msg_id string, batch_msg_id string, queue_offset bigint"
    return small_table(spark, messages, schema)


def same(frame: Any) -> Any:
    return frame


def dealt_out(spark: Any, messages: Any, reported: list[Row]) -> list[Row]:
    """Deal out by all batches, and by those that are named, if any is; the result has to be the same."""
    schema = "topic string, msg_id string, what string, time_ms bigint"
    evidence = small_table(spark, reported, schema)
    results = []
    for members in (batch_ids.batches(messages), None):
        found = batch_ids.of_messages(evidence, messages, members, same)
        results.append(sorted((tuple(row) for row in found.collect()), key=repr))
    assert results[0] == results[1]
    return results[0]


def test_evidence_of_a_batch_is_dealt_out_to_its_messages(spark: Any) -> None:
    messages = of(
        spark,
        [
            *(("orders", f"A{at}", "B", 10 + at) for at in range(4)),
            ("orders", "ALONE", None, 20),
            ("refunds", "R", "B", 0),
        ],
    )
    reported: list[Row] = [
        *(("orders", "B", "consumed 0", at) for at in range(3)),
        *(("orders", f"A{at}", "sent", None) for at in range(4)),
        ("orders", "B", "dead 0", None),
        ("orders", "B", "consumed 1", 1),
        ("orders", "ALONE", "consumed 0", 9),
        ("orders", "UNKNOWN", "consumed 0", 9),
        ("refunds", "B", "consumed 0", 5),
    ]
    assert dealt_out(spark, messages, reported) == sorted(
        [
            *(("orders", f"A{at}", "consumed 0", at) for at in range(3)),
            *(("orders", f"A{at}", "sent", None) for at in range(4)),
            # Not one of those that were consumed.
            ("orders", "A3", "dead 0", None),
            ("orders", "A0", "consumed 1", 1),
            ("orders", "ALONE", "consumed 0", 9),
            ("orders", "UNKNOWN", "consumed 0", 9),
            ("refunds", "R", "consumed 0", 5),
        ],
        key=repr,
    )
    # More than the batch has messages: one was consumed twice.
    twice: list[Row] = [("orders", "B", "consumed 0", at) for at in range(5)]
    assert dealt_out(spark, messages, twice) == [
        ("orders", "A0", "consumed 0", 0),
        ("orders", "A0", "consumed 0", 4),
        *(("orders", f"A{at}", "consumed 0", at) for at in range(1, 4)),
    ]


def test_messages_of_a_batch_that_are_consumed_together_are_as_many_consumptions(
    spark: Any,
) -> None:
    messages = of(spark, [("orders", f"A{at}", "B", at) for at in range(3)])
    messages = messages.union(of(spark, [("orders", "ALONE", None, 9)]))
    schema = (
        "kind string, msg_id string, grp string, success boolean, time_ms bigint, request_id string"
    )
    # The second event of ALONE is one that was traced twice.
    reported = [("SubAfter", one, "g", True, 1, "R") for one in ("B", "B", "ALONE", "ALONE")]
    config = Config(topics=["orders"], groups=["g"])
    log: Any = None  # neither log nor what waits is asked
    evidence = Evidence(spark, config, log, {}, None, Namespace(None))
    known = batch_ids.known_ids(messages, batch_ids.batches(messages))
    found = evidence.consumed_by_trace(small_table(spark, reported, schema), known).collect()
    assert sorted(tuple(row) for row in found) == [
        ("orders", "ALONE", "consumed 0", 1),
        ("orders", "B", "consumed 0", 1),
        ("orders", "B", "consumed 0", 1),
    ]


def test_an_id_that_a_message_has_for_itself_names_no_batch(spark: Any) -> None:
    """A client chooses its messages' ids, and so could take the evidence of others away."""
    messages = of(spark, [("orders", "MINE", "YOURS", 0), ("orders", "YOURS", None, 1)])
    reported: list[Row] = [("orders", "YOURS", "consumed 0", 1)]
    assert dealt_out(spark, messages, reported) == reported
    known = batch_ids.known_ids(messages, batch_ids.batches(messages)).collect()
    assert sorted(tuple(row) for row in known) == [
        ("orders", "MINE", False),
        ("orders", "YOURS", False),
    ]


def test_only_the_messages_of_named_batches_are_brought_together(spark: Any) -> None:
    messages = of(spark, [("orders", f"A{at}", f"B{at // 4}", at) for at in range(40)])
    schema = "topic string, msg_id string, what string, time_ms bigint"

    def named(*ids: str) -> Any:
        reported = [("orders", one, "consumed 0", 1) for one in ids]
        return batch_ids.named_batches(messages, small_table(spark, reported, schema), same)

    assert named() is None
    # Evidence that names messages by their own ids needs nothing of the batches.
    assert named("A1", "UNKNOWN") is None
    found = named("A1", "B2", "B2").collect()
    assert sorted((row.batch, row.place, row.size, row.own) for row in found) == [
        ("B2", at, 4, f"A{8 + at}") for at in range(4)
    ]


def test_evidence_of_very_many_ids_is_dealt_out_by_all_batches(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_ids, "MOST_BROADCAST", 2)
    messages = of(spark, [("orders", f"A{at}", f"B{at // 2}", at) for at in range(8)])
    reported: list[Row] = [("orders", f"B{at}", "dead 0", None) for at in range(3)]
    assert dealt_out(spark, messages, reported) == [
        ("orders", "A1", "dead 0", None),
        ("orders", "A3", "dead 0", None),
        ("orders", "A5", "dead 0", None),
    ]

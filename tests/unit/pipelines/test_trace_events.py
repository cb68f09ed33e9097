"""The events in the bodies of trace messages, as rows."""

from __future__ import annotations

from typing import Any

from cometmq.client.tracing.codec import (
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    encode_trace,
)
from cometmq.pipelines.trace.events import EVENT_SCHEMA, MALFORMED, event_rows

NAMES = [field.split()[0] for field in EVENT_SCHEMA.split(", ")]


def rows(*contexts: TraceContext) -> list[dict[str, Any]]:
    body = "".join(map(encode_trace, contexts)).encode()
    return [dict(zip(NAMES, row, strict=True)) for row in event_rows("T1", body)]


def test_a_send() -> None:
    bean = TraceBean("A1", "orders", store_host="127.0.0.1:10911", body_length=5)
    (row,) = rows(TraceContext(TraceType.PUB, [bean], 1000, group="p", cost_ms=7))
    assert row == dict.fromkeys(NAMES) | {
        "kind": "Pub",
        "topic": "orders",
        "grp": "p",
        "msg_id": "A1",
        "time_ms": 1000,
        "cost_ms": 7,
        "success": True,
        "retry_times": 0,
        "store_host": "127.0.0.1:10911",
    }


def test_a_send_of_a_batch_is_a_row_for_each_message() -> None:
    batch = TraceContext(TraceType.PUB, [TraceBean("A1,A2,A3", "orders")], 1000, group="p")
    assert [row["msg_id"] for row in rows(batch)] == ["A1", "A2", "A3"]


def test_a_consumption_is_two_rows_of_one_request() -> None:
    bean = TraceBean("A1", retry_times=2)
    before = TraceContext(TraceType.SUB_BEFORE, [bean], 1000, group="c", request_id="R")
    after = TraceContext(
        TraceType.SUB_AFTER,
        [bean],
        1010,
        group="c",
        request_id="R",
        cost_ms=10,
        success=False,
        context_code=ContextCode.EXCEPTION,
    )
    first, second = rows(before, after)
    assert (first["kind"], first["retry_times"], first["topic"]) == ("SubBefore", 2, None)
    assert first["code"] is None
    assert (second["kind"], second["code"], second["success"]) == ("SubAfter", "EXCEPTION", False)
    assert first["request_id"] == second["request_id"] == "R"
    assert first["grp"] == second["grp"] == "c"


def test_releases_that_leave_the_group_out() -> None:
    (row,) = (
        dict(zip(NAMES, row, strict=True))
        for row in event_rows("T1", b"SubAfter\x01R\x01A1\x0110\x01true\x01k\x017\x02")
    )
    assert (row["grp"], row["time_ms"], row["code"], row["cost_ms"]) == (None, None, "7", 10)


def test_the_end_of_a_transaction() -> None:
    bean = TraceBean("A1", "orders", message_type=MessageType.TRANSACTION_COMMIT)
    bean.transaction_state = "COMMIT_MESSAGE"
    (row,) = rows(TraceContext(TraceType.END_TRANSACTION, [bean], 5, group="p"))
    assert (row["kind"], row["transaction_state"]) == ("EndTransaction", "COMMIT_MESSAGE")


def test_what_is_no_trace_is_counted_as_malformed() -> None:
    for body in (b"Pub\x011\x02", b"\xff\xfe", b"Pub\x01x\x01x\x02"):
        (row,) = event_rows("T1", body)
        assert row[:4] == (MALFORMED, None, None, "T1")
        assert len(row) == len(NAMES)


def test_kinds_of_later_releases_are_passed_over() -> None:
    assert list(event_rows("T1", b"Later\x011\x02")) == []

"""The comparison of what mqadmin prints at our servers and at Java's finds what differs."""

from __future__ import annotations

import pytest
from tests.interop.mqadmin.case import Case, failures, fields, unequal
from tests.interop.mqadmin.runner import Printed

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.refused_requests import REFUSED

ROWS = "#QID  #Max\n0     {}  2026-11-22 22:40:5{} 127.0.0.1:{} 7F0000010000A5C70000000000000AF{}\n"
STATUS = Case("topicStatus", says="#QID")


def found(case: Case, ours: str, java: str, line: int = 5) -> list[str]:
    return list(failures(case, line, Printed(ours, ""), Printed(java, "")))


def test_times_addresses_and_ids_may_differ() -> None:
    assert not found(STATUS, ROWS.format(2, 1, 10911, 6), ROWS.format(2, 9, 33333, 7))


def test_a_figure_that_differs_is_told_of_both_sides() -> None:
    ours, java = found(STATUS, ROWS.format(2, 1, 1, 6), ROWS.format(3, 1, 1, 6))
    assert ours == "only at ours: 0 2 TIME ADDRESS ID"
    assert java == "only at Java's: 0 3 TIME ADDRESS ID"


def test_a_line_that_is_there_once_more_is_told() -> None:
    assert found(STATUS, "#QID\n1\n1", "#QID\n1") == ["only at ours: 1"]


def test_two_outputs_that_say_nothing_are_no_success() -> None:
    reported = found(STATUS, "", "")
    assert len(reported) == 2
    assert "at our servers it does not say '#QID'" in reported[0]


def test_an_error_at_one_of_them_is_told() -> None:
    (reported,) = failures(STATUS, 5, Printed("#QID", "boom"), Printed("#QID", ""))
    assert "other errors: ours 'boom'" in reported


def test_refusals_with_other_codes_are_told() -> None:
    ours, java = (Printed("", f"#QID CODE: {code}  DESC: no") for code in (26, 1))
    (reported,) = failures(STATUS, 5, ours, java)
    assert "other errors" in reported


@pytest.mark.parametrize(
    ("case", "reported"),
    [
        (Case("brokerStatus", says="a", more=True), ["only at Java's: c = 3"]),
        (Case("getBrokerConfig", says="a", both=True), []),
        (Case("topicList", says="a", only="^a"), []),
        (Case("topicList", says="a", masks=((r"^[bc] .*", ""),)), []),
        (Case("topicList", says="a", unlike="a reason"), []),
        (Case("topicList", says="a", unlike="a reason", unlike_in=(4,)), None),
    ],
)
def test_what_a_case_leaves_out_is_left_out_and_nothing_else(
    case: Case, reported: list[str] | None
) -> None:
    whole = ["only at ours: b = 2", "only at Java's: c = 3"]
    ours, java = "a = 1\nd = 4\nb = 2", "a = 1\nd = 4\nc = 3"
    assert found(case, ours, java) == (whole if reported is None else reported)


def test_what_brokers_of_4_9_do_otherwise_is_left_out_at_that_line_alone() -> None:
    case = Case("queryMsgById", says="Properties")
    ours, java = "Properties: {KEYS=k, TRACE_ON=true, TAGS=A}", "Properties: {KEYS=k, TAGS=A}"
    assert not found(case, ours, java, line=4)
    assert len(found(case, ours, java, line=5)) == 2


def test_a_refusal_without_its_reason_is_told() -> None:
    case = Case("addBroker", refused=RequestCode.ADD_BROKER)
    reason = REFUSED[RequestCode.ADD_BROKER]
    assert not list(failures(case, 5, Printed("", f"CODE: 3 DESC: {reason}"), None))
    (reported,) = failures(
        case, 5, Printed("", "CODE: 3 DESC: request type 902 not supported"), None
    )
    assert "it does not say" in reported


def test_files_are_compared_field_by_field() -> None:
    ours, java = ("\n".join(fields({"a": {"b": [1, n]}})) for n in (2, 3))
    reported = list(unequal(Case("exportConfigs", says="x"), 5, ours, java))
    assert reported == ["only at ours: /a/b[] = 2", "only at Java's: /a/b[] = 3"]

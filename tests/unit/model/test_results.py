from __future__ import annotations

from typing import Any

import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.model.results import ConsumeReport, ConsumeResult


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"result": "SUCCESS"}, "'SUCCESS'; it must be a ConsumeResult"),
        ({"ack_index": "x"}, "ack_index is 'x', it must be a whole number in -1.."),
        ({"ack_index": -2}, "ack_index is -2"),
        ({"ack_index": True}, "ack_index is True"),
        ({"delay_level": None}, "delay_level is None, it must be a whole number in -1.."),
        ({"delay_level": 2**31}, "delay_level is 2147483648"),
        ({"suspend_current_queue_time_ms": 0.5}, "suspend_current_queue_time_ms is 0.5"),
    ],
)
def test_a_report_that_says_nothing_is_refused_in_the_listener(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(IllegalArgumentError, match=says):
        ConsumeReport(**given)


def test_the_bounds_of_a_report_are_taken() -> None:
    report = ConsumeReport(ConsumeResult.SUCCESS, -1, -1, 0)
    assert (report.ack_index, report.delay_level) == (-1, -1)

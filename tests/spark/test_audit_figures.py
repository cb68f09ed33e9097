"""The pictures of an audit name what they leave out, and leave out what matters least."""

from __future__ import annotations

from cometmq.pipelines.audit.figures import difference_figure
from cometmq.pipelines.audit.report import Cell


def cell(queue_id: int, hour: int = 0, unexplained: int = 0) -> Cell:
    day, hour_of_day = divmod(hour, 24)
    name = f"2026-11-{20 + day}T{hour_of_day:02}"
    return Cell("orders", "broker-a", queue_id, name, sent=10, unexplained=unexplained)


def test_queues_that_differ_are_on_the_map_of_differences() -> None:
    cells = [cell(queue_id) for queue_id in range(100, 160)] + [cell(999, unexplained=7)]
    figure = difference_figure(cells)
    assert "broker-a:999" in figure.svg
    assert "21 queues with fewer differences are in the JSON" in figure.caption


def test_the_map_of_differences_says_how_many_hours_it_leaves_out() -> None:
    figure = difference_figure([cell(0, hour) for hour in range(50)])
    assert figure.caption.endswith("UTC; 2 hours before are in the JSON.")
    assert "JSON" not in difference_figure([cell(0)]).caption

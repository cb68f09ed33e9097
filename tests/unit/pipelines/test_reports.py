"""A report as JSON and as a self-contained page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cometmq.cli.pipeline.screen import print_report
from cometmq.pipelines.page import shown, write_page
from cometmq.pipelines.report import Figure, Report, Section, Table, now


class Counted(Report):
    count: int

    def sections(self) -> list[Section]:
        return [
            Table("Queues", ["queue", "messages"], [["empty", None], ["orders <0>", self.count]]),
            Table("Gaps", ["from"], [], empty="no gap"),
            Figure("Hours", "<svg id='hours'></svg>", caption="by time of storing"),
        ]


@pytest.fixture
def report() -> Counted:
    return Counted(
        pipeline="archive", started=now(), holds=False, summary="1 queue & a gap", count=12345
    )


def test_the_json_has_its_fields(report: Counted, tmp_path: Path) -> None:
    path = tmp_path / "reports" / "archive.json"
    report.write_json(path)
    read = json.loads(path.read_text())
    assert read["pipeline"] == "archive"
    assert read["holds"] is False
    assert read["count"] == 12345
    assert datetime.fromisoformat(read["started"]) <= datetime.fromisoformat(read["ended"])


def test_the_page_stands_alone(report: Counted, tmp_path: Path) -> None:
    path = tmp_path / "archive.html"
    write_page(report, path)
    html = path.read_text()
    assert "1 queue &amp; a gap" in html
    assert "orders &lt;0&gt;" in html
    assert '<td class="number">12,345</td>' in html
    # A number that is missing stands where numbers do.
    assert '<th class="number">messages</th>' in html
    assert '<td class="number">-</td>' in html
    assert "no gap" in html
    assert "<svg id='hours'></svg>" in html
    assert "src=" not in html
    assert "href=" not in html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (1234.56, "1,234.6"),
        (datetime(2026, 11, 20, 16, 1, 2, tzinfo=UTC), "2026-11-20 16:01:02"),
        ("orders", "orders"),
    ],
)
def test_cells_are_shown(value: object, text: str) -> None:
    assert shown(value) == text


class Wide(Report):
    def sections(self) -> list[Section]:
        names = [f"column number {at}" for at in range(7)]
        return [Table("Wide", [*names, "count"], [[*names, 123_456_789]])]


def test_a_number_in_a_wide_table_stays_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Wide(pipeline="trace", started=now(), holds=True, summary="wide"), [])
    assert "123,456,789" in capsys.readouterr().out

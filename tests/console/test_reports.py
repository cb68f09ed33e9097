"""Reports of pipelines: listed, opened, and nothing outside their directory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from tests.console.running import Served, Visitor, running_console

from cometmq.console.pages import reports as reports_page
from cometmq.console.views import report_files
from cometmq.console.views.report_files import (
    MAX_REPORT_BYTES,
    ReportFile,
    ReportList,
    read_page,
    read_report,
)
from cometmq.testing import Cluster


def write(root: Path, name: str, **values: Any) -> None:
    report = {
        "pipeline": name.rpartition("/")[2],
        "started": "2026-11-23T10:00:00Z",
        "ended": "2026-11-23T10:02:05Z",
        "holds": True,
        "summary": f"{name} is done",
        **values,
    }
    path = root / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report))


def read_list(listed: ReportList) -> tuple[list[ReportFile], bool]:
    """Read a list on a loop of its own: Playwright's runs on the thread of the tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(listed.read())).result()


@pytest.fixture(scope="module")
def reporting(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("reported")
    reports = root / "reports"
    write(
        reports, "archive", messages=12345, path="/data/archive", gaps=[{"topic": "t", "lost": 3}]
    )
    (reports / "archive.html").write_text("<script>alert(1)</script><p>figures</p>")
    write(reports, "nightly/audit", holds=False, summary="<b>3 messages</b> are missing")
    (reports / "notes.json").write_text('["no report"]')
    (reports / "broken.json").write_text("{")
    write(root, "secret")
    (root / "secret.html").write_text("secret")
    (reports / "link.json").symlink_to(root / "secret.json")
    (reports / "link.html").symlink_to(root / "secret.html")
    with running_console(cluster.namesrv, root / "console", reports=reports) as made:
        yield made


@pytest.fixture(scope="module")
def visitor(reporting: Served) -> Visitor:
    return Visitor(reporting, "reader")


def test_reports_are_listed_with_their_outcome(visitor: Visitor) -> None:
    page = visitor.get("/reports")
    assert "all is well archive" in page.text
    assert "look at it nightly/audit" in page.text
    assert "<b>3 messages</b>" in page.text
    assert "<b>3" not in page.html
    assert "2 min 5 s" in page.text
    for other in ("notes", "broken", "secret", "link"):
        assert other not in page.text
    assert "No report fits" in visitor.get("/reports", q="nothing").text


def test_a_report_is_opened(visitor: Visitor) -> None:
    page = visitor.get("/reports", name="archive")
    assert "archive is done" in page.text
    assert "messages 12,345" in page.text
    assert "topic lost t 3" in page.text
    assert "Its page, with figures" in page.text
    assert "Its page" not in visitor.get("/reports", name="nightly/audit").text


def test_the_page_of_a_report_is_in_a_sandbox(visitor: Visitor) -> None:
    answer = visitor.get("/reports/page", name="archive")
    assert answer.html == "<script>alert(1)</script><p>figures</p>"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "script-src" not in policy
    assert "allow-" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        "../secret", "nightly/../../secret", "/etc/passwd", "link", "", "nightly", "a\0b", "%2e%2e/secret",
        "x" * 5000, "..", "archive.json/../archive/../../secret",
    ],
)  # fmt: skip
def test_nothing_outside_the_directory_is_read(visitor: Visitor, name: str) -> None:
    if name:
        assert visitor.get("/reports", name=name).status == 404
    answer = visitor.get("/reports/page", name=name)
    assert (answer.status, b"secret" in answer.body and "secret" not in name) == (404, False)


def test_a_console_without_reports_says_how_to_get_them(reader: Visitor) -> None:
    assert "--reports DIR" in reader.get("/reports").text
    assert reader.get("/reports/page", name="archive").status == 404


def test_files_that_are_no_reports(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "large.json").write_bytes(b" " * (MAX_REPORT_BYTES + 1))
    os.mkfifo(tmp_path / "pipe.json")
    write(tmp_path, "one/two/three/kept")
    write(tmp_path, "one/two/three/four/left-out")
    found, is_all = read_list(ReportList(tmp_path))
    assert is_all
    assert {report.name: bool(report.fault) for report in found} == {
        "one/two/three/kept": False,
        "large": True,
    }
    assert read_report(tmp_path, "pipe") is None
    with pytest.raises(ValueError, match="nested"):
        read_report(tmp_path, "deep")
    with pytest.raises(ValueError, match="larger"):
        read_report(tmp_path, "large")
    assert read_page(tmp_path, "one/two/three/kept") is None


def test_a_list_reads_so_much_at_once_and_the_rest_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of large reports was read whole, every few seconds."""
    for name in ("a", "b", "c"):
        write(tmp_path, name, filler="x" * 600)
    monkeypatch.setattr(report_files, "MAX_LISTED_BYTES", 1000)
    listed = ReportList(tmp_path)
    counts = []
    for _ in range(4):
        found, is_all = read_list(listed)
        counts.append((len(found), is_all))
    assert counts == [(1, False), (2, False), (3, True), (3, True)]
    write(tmp_path, "b", summary="changed", filler="")
    found, is_all = read_list(listed)
    assert is_all
    assert [report.summary for report in found if report.name == "b"] == ["changed"]
    (tmp_path / "a.json").unlink()
    assert [report.name for report in (read_list(listed))[0]] == ["b", "c"]


def _read_and_measured(root: Path) -> tuple[list[ReportFile], bool, int]:
    tracemalloc.start()
    found, is_all = read_list(ReportList(root))
    return found, is_all, tracemalloc.get_traced_memory()[1]


def test_a_list_keeps_a_line_of_a_large_report(tmp_path: Path) -> None:
    """Each was decoded whole, into ten times its size, and its summary kept whatever its length."""
    write(tmp_path, "large", summary="x" * 1_000_000, rows=[[] for _ in range(300_000)])
    write(tmp_path, "odd", started={"no": "time"}, ended=["x" * 1000])
    write(tmp_path, "wrong", holds="yes")
    # In a process of its own: here the threads of cluster and consoles allocate megabytes meanwhile.
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        found, is_all, most = alone.submit(_read_and_measured, tmp_path).result()
    assert is_all
    reported = {report.name: report for report in found}
    assert reported.keys() == {"large", "odd"}
    assert len(reported["large"].summary) == 501
    assert reported["large"].ended_ms == 1_795_428_125_000
    assert (reported["odd"].started_ms, reported["odd"].ended_ms) == (None, None)
    # The file once, and its summary.
    assert most < 2 * (tmp_path / "large.json").stat().st_size + 1_000_000


def test_a_directory_with_too_many_entries_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write(tmp_path, f"r{number}")
    monkeypatch.setattr(report_files, "MAX_ENTRIES", 3)
    found, is_all = read_list(ReportList(tmp_path))
    assert (len(found), is_all) == (3, False)


def test_so_many_reports_are_read_at_once(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_page, "MAX_READS", 0)
    for path in ("/reports", "/reports/page"):
        refused = visitor.get(path, name="archive")
        assert refused.status == 429
        assert "0 reports are being read" in refused.text
    monkeypatch.undo()
    assert visitor.get("/reports/page", name="archive").status == 200


def test_a_page_shows_a_part_of_a_huge_report(visitor: Visitor, reporting: Served) -> None:
    reports = reporting.root.parent / "reports"
    values: dict[str, Any] = {f"fact{number}": number for number in range(1000)}
    values["long"] = {"text": "x" * 200_000}
    values["wide"] = [{f"c{number}": "y" * 600 for number in range(100)}] * 210
    write(reports, "huge", **values)
    try:
        page = visitor.get("/reports", name="huge")
        assert page.status == 200
        assert len(page.body) < 5_000_000
        assert "800 further values are in the file" in page.text
        assert "70 further columns are in the file" in page.text
        assert re.search(r"The first 1\d\d rows; the file has all", page.text)
    finally:
        (reports / "huge.json").unlink()


def test_numbers_that_are_none_do_not_break_a_report(visitor: Visitor, reporting: Served) -> None:
    reports = reporting.root.parent / "reports"
    text = '{"pipeline": "p", "holds": true, "summary": "odd", "a": NaN, "b": 1e999, "c": [{"d": Infinity}], "e": %d}'
    # As a float it is infinite.
    (reports / "odd.json").write_text(text % (2**1024 - 1))
    try:
        page = visitor.get("/reports", name="odd")
        assert (page.status, "odd" in page.text) == (200, True)
    finally:
        (reports / "odd.json").unlink()

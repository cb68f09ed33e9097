"""The page of the audit log: filters, search, export."""

# ruff: noqa: RUF001 - Chinese has a punctuation of its own

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from tests.console.running import Served, Visitor, running_console

from cometmq import AdminClient
from cometmq.console.pages import audit, exports
from cometmq.testing import Cluster


@pytest.fixture(scope="module")
def acted(
    cluster: Cluster, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A console with a few actions, of which one has failed and one was refused."""
    with running_console(cluster.namesrv, tmp_path_factory.mktemp("audit")) as served:
        operator, reader = Visitor(served), Visitor(served, "reader")
        for name in ("audit-one", "audit-two"):
            admin.topics.create(name)
            operator.act("/topics/delete", name=name, confirm=name, why=f"ticket of {name}")
        reader.post("/topics/delete", name="audit-one")
        yield served


@pytest.fixture(scope="module")
def visitor(acted: Served) -> Visitor:
    return Visitor(acted, "reader")


def test_an_action_is_shown_once_with_who_why_and_outcome(visitor: Visitor) -> None:
    page = visitor.get("/audit", q="audit-one")
    assert page.text.count("delete topic audit-one") == 1
    assert "ticket of audit-one" in page.text
    assert "operator (operator) 127.0.0.1" in page.text
    assert "audit-two" not in page.text


@pytest.mark.parametrize(
    ("asked", "there", "absent"),
    [
        ({"outcome": "refused"}, "delete topic refused", "ticket"),
        ({"who": "reader"}, "delete topic refused", "ticket"),
        ({"what": "delete topic"}, "ticket of audit-two", "1 to 1 of"),
        ({"until": "2020-01-01T00:00"}, "No action matches yet", "ticket"),
        ({"since": "2020-01-01T00:00", "q": "ticket"}, "ticket of audit-one", "log in done"),
        ({"since": "9999-12-31T23:59"}, "No action matches yet", "ticket"),
        ({"since": "1h", "q": "ticket"}, "ticket of audit-one", "log in done"),
        ({"until": "1h"}, "No action matches yet", "ticket"),
        ({"outcome": "no outcome"}, "ticket of audit-one", "Nobody has"),
    ],
)
def test_filters(visitor: Visitor, asked: dict[str, str], there: str, absent: str) -> None:
    page = visitor.get("/audit", **asked)
    assert there in page.text
    assert absent not in page.text


@pytest.mark.parametrize("path", ["/audit", "/audit/export"])
def test_what_is_no_time_is_refused_and_does_not_take_all(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path, since="yesterday")
    assert answer.status == 400
    assert "'yesterday' is no time; give a date" in answer.text
    assert "ticket" not in answer.text


def test_an_export_has_the_lines_of_the_files(visitor: Visitor) -> None:
    answer = visitor.get("/audit/export", q="audit-one")
    assert answer.headers["content-disposition"].startswith("attachment")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["outcome"] for line in lines] == ["begun", "done"]
    assert len({line["action"] for line in lines}) == 1
    everything = visitor.get("/audit/export").body.splitlines()
    assert len(everything) > len(lines)
    assert b'"what": "log in"' in everything[0]


def test_a_file_that_cannot_be_written_is_not_taken_for_the_audit_log(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running_console(cluster.namesrv, tmp_path) as served:
        (tmp_path / "schemas.json").mkdir()
        visitor = Visitor(served)
        text = json.dumps({"type": "string"})
        page = visitor.act("/schemas/give", name="mine", kind="avro", text=text)
        assert "schemas.json" in page.text
        assert "audit log cannot be written" not in page.text
        ours = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [entry["outcome"] for entry in ours if entry["target"] == "mine"] == [
            "begun",
            "failed",
        ]


def test_so_many_exports_run_at_once(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has ten files open for as long as its browser takes."""
    for _ in range(audit.MAX_AUDIT_EXPORTS + 1):  # each gives its place back
        assert visitor.get("/audit/export").status == 200
    monkeypatch.setattr(audit, "MAX_AUDIT_EXPORTS", 0)
    assert visitor.get("/audit/export").status == 429


def test_an_export_ends_with_its_session(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose account was removed went on to get the log for up to half an hour."""
    monkeypatch.setattr("cometmq.console.users.audit._LINES_AT_ONCE", 1)
    monkeypatch.setattr(exports, "check_session", gone)
    lines = visitor.get("/audit/export").body.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[-1])["incomplete"].startswith("Your session has ended")


def gone(_: Request) -> None:
    raise HTTPException(401, "Your session has ended: log in and repeat it.")


def test_an_export_ends_with_its_time(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that took a little now and then kept its place among the few exports for ever."""
    monkeypatch.setattr(audit, "MAX_AUDIT_EXPORT_S", 0.0)
    monkeypatch.setattr("cometmq.console.users.audit._LINES_AT_ONCE", 1)
    last = visitor.get("/audit/export").body.splitlines()[-1]
    assert "the limit MAX_AUDIT_EXPORT_S is 0;" in json.loads(last)["incomplete"]
    reported = visitor.send(
        "GET", "/audit/export", headers={"Accept-Language": "zh"}
    ).body.splitlines()
    assert json.loads(reported[-1])["incomplete"] == (
        "导出用时过长，上限 MAX_AUDIT_EXPORT_S 为 0；其余请按时间范围（从、到）导出"
    )

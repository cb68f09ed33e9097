"""Reports of pipelines: the list, one report, and the page that its pipeline has written."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, account_of, console_of
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import render
from cometmq.console.views.report_files import (
    ReportFile,
    has_page,
    read_page,
    read_report,
    time_ms_of,
)
from cometmq.console.web.places import Places
from cometmq.model.reports.keyed_text import text_of

routes: Final = Routes()
_AGE_S: Final = 5.0
# Each reading may hold 16 MiB of JSON, or 64 MiB of a page, until its browser has taken it.
MAX_READS: Final = 4
# How much of a report a page shows; its file has all.
_SHOWN_PARTS: Final = 40
_SHOWN_FACTS: Final = 200
_SHOWN_COLUMNS: Final = 30
_SHOWN_ROWS: Final = 200
_SHOWN_CELL: Final = 500
_SHOWN_TEXT: Final = 20_000
_SHOWN_CHARACTERS: Final = 2_000_000
# A report's page has styles and pictures of its own. It runs no script, and belongs to no site, so it
# cannot act in the name of its reader.
_PAGE_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
# Longer numbers take long to write in decimal digits, and the longest are more than a float can be.
_LONG_BITS: Final = 1000
_COMMON: Final = frozenset({"pipeline", "started", "ended", "holds", "summary"})


@routes.page("/reports")
async def reports(request: Request) -> Response:
    """Show the reports in the directory, the newest first; with a name, that report."""
    console = console_of(request)
    root = console.config.reports
    name = request.query_params.get("name", "")
    listed = console.reports
    if root is None or listed is None:
        return render(request, "reports.html", {"root": None, "rows": None, "error": None})
    if name:
        return await _one(request, name)
    error: OSError | None = None
    found: list[ReportFile] = []
    is_all = True
    try:
        found, is_all = await console.recent.get("reports", _AGE_S, listed.read)
    except OSError as fault:
        error = fault
    order = {report.name: number for number, report in enumerate(found)}
    rows = page_of(
        request,
        found,
        text=lambda report: f"{report.name} {report.pipeline} {report.summary}",
        key=lambda report: order[report.name],
    )
    values = {"root": str(root), "rows": rows, "error": error, "is_all": is_all}
    return render(request, "reports.html", values)


@contextmanager
def _reading(request: Request) -> Iterator[None]:
    """Count a file that is read and sent. Raises HTTPException if there are too many."""
    places, account = console_of(request).report_reads, account_of(request)
    places.check(account, Refused.REPORTS_READ(count=places.count), "MAX_READS", MAX_READS)
    with places.taken(account):
        yield


async def _one(request: Request, name: str) -> Response:
    console = console_of(request)
    root = console.config.reports
    assert root is not None, "asked for by reports only"

    def read() -> dict[str, Any] | None:
        report = read_report(root, name)
        return None if report is None else {**_parts(report), "has_page": has_page(root, name)}

    try:
        with _reading(request):
            shown = await asyncio.to_thread(read)
    except (OSError, ValueError) as error:
        raise HTTPException(
            422, Refused.REPORT_UNREADABLE(name=name, error=text_of(error))
        ) from error
    if shown is None:
        raise HTTPException(404, Refused.NO_REPORT(name=name))
    return render(request, "report.html", {"name": name, **shown})


def _parts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of the page: first the fields that all reports have, then those of this
    pipeline alone, which are facts, tables of objects, and other values; each within bounds.
    """
    facts: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    texts: dict[str, str] = {}
    left = _SHOWN_CHARACTERS
    left_out = 0
    for name, value in report.items():
        if name in _COMMON or (not value and isinstance(value, list | dict)):
            continue
        is_fact = _is_plain(value)
        if len(facts) >= _SHOWN_FACTS if is_fact else len(tables) + len(texts) >= _SHOWN_PARTS:
            left_out += 1
            continue
        title = _cut(name, _SHOWN_CELL)
        if is_fact:
            facts[title] = _cell(value)
        elif isinstance(value, list) and all(isinstance(row, dict) for row in value):
            tables[title], left = _table(value, left)
        else:
            texts[title] = _cut(json.dumps(value, ensure_ascii=False, indent=2), _SHOWN_TEXT)
    return {
        "pipeline": _cut(report["pipeline"], _SHOWN_CELL),
        "holds": report["holds"],
        "summary": _cut(report["summary"], _SHOWN_TEXT),
        "started_ms": time_ms_of(report.get("started")),
        "ended_ms": time_ms_of(report.get("ended")),
        "facts": facts,
        "tables": tables,
        "texts": texts,
        "left_out": left_out,
    }


def _table(value: list[dict[str, Any]], left: int) -> tuple[dict[str, Any], int]:
    """Return what is shown of a list of objects, and how many of `left` characters are left then."""
    shown = value[:_SHOWN_ROWS]
    columns = list(dict.fromkeys(key for row in shown for key in row))
    rows: list[list[object]] = []
    for row in shown:
        cells = [_cell(row.get(key)) for key in columns[:_SHOWN_COLUMNS]]
        left -= sum(len(str(cell)) for cell in cells)
        if left < 0:
            break
        rows.append(cells)
    named = [_cut(column, _SHOWN_CELL) for column in columns[:_SHOWN_COLUMNS]]
    table = {
        "columns": named,
        "rows": rows,
        "numeric": [at for at in range(len(named)) if _is_numeric([row[at] for row in rows])],
        "total": len(value),
        "more_columns": len(columns) - len(named),
    }
    return table, left


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _is_plain(value: object) -> bool:
    """Return whether a value is text or a number that can be written as one."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _is_numeric(cells: list[object]) -> bool:
    """Return whether a column holds numbers, some of which may be missing."""
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(type(cell) in (int, float) for cell in known)


def _cell(value: object) -> object:
    """Return what a page shows of a value; of a long text or number its beginning."""
    if isinstance(value, int) and value.bit_length() > _LONG_BITS:
        return _cut(hex(value), _SHOWN_CELL)
    if isinstance(value, str):
        return _cut(value, _SHOWN_CELL)
    if _is_plain(value):
        return value
    return _cut(json.dumps(value, ensure_ascii=False), _SHOWN_CELL)


@routes.page("/reports/page")
async def page(request: Request) -> Response:
    """Give the page that a pipeline has written, in a sandbox."""
    console, name = console_of(request), request.query_params.get("name", "")
    root = console.config.reports
    try:
        with _reading(request):
            data = None if root is None else await asyncio.to_thread(read_page, root, name)
    except (OSError, ValueError) as error:
        raise HTTPException(
            422, Refused.REPORT_PAGE_UNREADABLE(name=name, error=text_of(error))
        ) from error
    if data is None:
        raise HTTPException(404, Refused.NO_REPORT_PAGE(name=name))
    return _Page(console.report_reads, account_of(request), data)


class _Page(Response):
    """Sends the page of a report, and counts as a reading of it until it is sent."""

    def __init__(self, places: Places, account: str, data: bytes) -> None:
        super().__init__(
            data,
            media_type="text/html; charset=utf-8",
            headers={"content-security-policy": _PAGE_POLICY},
        )
        self._places = places
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._places.taken(self._account):
            await super().__call__(scope, receive, send)

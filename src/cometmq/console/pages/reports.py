"""Reports of pipelines: the list, one report, and the page that its pipeline has written."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.paging import page_of
from cometmq.console.rendering import render
from cometmq.console.report_files import (
    ReportFile,
    has_page,
    list_reports,
    read_page,
    read_report,
    time_ms_of,
)
from cometmq.console.routes import Routes, console_of

routes: Final = Routes()
_AGE_S: Final = 5.0
_SHOWN_ROWS: Final = 200
_SHOWN_CHARACTERS: Final = 100_000
# A report's page has styles and pictures of its own. It runs no script, and belongs to no site, so it
# cannot act in the name of who reads it.
_PAGE_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
_COMMON: Final = frozenset({"pipeline", "started", "ended", "holds", "summary"})


@routes.page("/reports")
async def reports(request: Request) -> Response:
    """Show the reports in the directory, the newest first; with a name, that report."""
    console = console_of(request)
    root = console.config.reports
    name = request.query_params.get("name", "")
    if root is None:
        return render(request, "reports.html", {"root": None, "rows": None, "error": None})
    if name:
        return await _one(request, name)
    error: OSError | None = None
    found: list[ReportFile] = []
    is_all = True
    try:
        found, is_all = await console.recent.get(
            "reports", _AGE_S, lambda: asyncio.to_thread(list_reports, root)
        )
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


async def _one(request: Request, name: str) -> Response:
    root = console_of(request).config.reports
    assert root is not None, "asked for by reports only"
    try:
        report = await asyncio.to_thread(read_report, root, name)
    except (OSError, ValueError) as error:
        raise HTTPException(422, f"the report {name[:200]} cannot be read: {error}") from error
    if report is None:
        raise HTTPException(404, f"there is no report {name[:200]!r} in the directory of reports")
    values = {
        "name": name,
        "report": report,
        "started_ms": time_ms_of(report.get("started")),
        "ended_ms": time_ms_of(report.get("ended")),
        "has_page": await asyncio.to_thread(has_page, root, name),
        "parts": _parts(report),
    }
    return render(request, "report.html", values)


def _parts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that only this pipeline has: facts, tables of objects, and other values."""
    facts, tables, texts = {}, {}, {}
    for name, value in report.items():
        if name in _COMMON:
            continue
        if _is_plain(value):
            facts[name] = value
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            columns = list(dict.fromkeys(key for row in value for key in row))
            rows = [[_cell(row.get(key)) for key in columns] for row in value[:_SHOWN_ROWS]]
            numeric = [at for at in range(len(columns)) if _is_numeric([row[at] for row in rows])]
            tables[name] = {
                "columns": columns,
                "rows": rows,
                "numeric": numeric,
                "total": len(value),
            }
        elif value or isinstance(value, float):
            text = json.dumps(value, ensure_ascii=False, indent=2)
            texts[name] = text[:_SHOWN_CHARACTERS]
    return {"facts": facts, "tables": tables, "texts": texts}


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
    if _is_plain(value):
        return value
    return json.dumps(value, ensure_ascii=False)


@routes.page("/reports/page")
async def page(request: Request) -> Response:
    """Give the page that a pipeline has written, in a sandbox."""
    root, name = console_of(request).config.reports, request.query_params.get("name", "")
    try:
        data = None if root is None else await asyncio.to_thread(read_page, root, name)
    except (OSError, ValueError) as error:
        raise HTTPException(422, f"the page of {name[:200]} cannot be read: {error}") from error
    if data is None:
        raise HTTPException(404, f"there is no page of a report {name[:200]!r}")
    return Response(
        data,
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _PAGE_POLICY},
    )

"""Lists and reads the reports that pipelines have written to a directory.

A pipeline writes NAME.json and NAME.html. Whatever else is there is left out, and nothing outside the
directory is read, whatever a link in it points to. Everything here blocks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

MAX_REPORTS: Final = 1_000
MAX_DEPTH: Final = 3
MAX_ENTRIES: Final = 20_000
MAX_REPORT_BYTES: Final = 16 * 1024 * 1024
MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
# Enough for the first fields, which tell of the whole.
_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReportFile:
    """Is a report in the directory. `name` is its path there, without .json.

    `holds` and the times are None where the file does not tell them; `fault` says why it cannot be
    read. `has_page` says that there is an HTML page of it, too.
    """

    name: str
    pipeline: str
    started_ms: int | None
    ended_ms: int | None
    holds: bool | None
    summary: str
    has_page: bool
    written_ms: int
    fault: str = ""


def list_reports(root: Path) -> tuple[list[ReportFile], bool]:
    """Return the reports in a directory, the newest first, and whether these are all.

    Raises OSError if the directory cannot be read.
    """
    found: list[ReportFile] = []
    is_all = True
    for path in _json_files(root):
        if len(found) >= MAX_REPORTS:
            is_all = False
            break
        if (report := _listed(root, path)) is not None:
            found.append(report)
    found.sort(key=lambda report: (-(report.ended_ms or report.written_ms), report.name))
    return found, is_all


def read_report(root: Path, name: str) -> dict[str, Any] | None:
    """Return what the JSON of a report holds; None if there is no such report.

    Raises OSError if it cannot be read, ValueError if it is no report.
    """
    path = _inside(root, f"{name}.json")
    if path is None:
        return None
    with path.open("rb") as file:
        data = file.read(MAX_REPORT_BYTES + 1)
    if len(data) > MAX_REPORT_BYTES:
        raise ValueError(f"it is larger than {MAX_REPORT_BYTES} bytes")
    found = _decoded(data)
    if not _is_report(found):
        raise ValueError("it is not what a pipeline writes")
    assert isinstance(found, dict)
    return found


def read_page(root: Path, name: str) -> bytes | None:
    """Return the HTML page of a report; None if there is none. Raises OSError, or ValueError for one
    that is too large.
    """
    path = _inside(root, f"{name}.html")
    if path is None:
        return None
    with path.open("rb") as file:
        data = file.read(MAX_PAGE_BYTES + 1)
    if len(data) > MAX_PAGE_BYTES:
        raise ValueError(f"it is larger than {MAX_PAGE_BYTES} bytes")
    return data


def has_page(root: Path, name: str) -> bool:
    """Return whether a report has an HTML page."""
    return _inside(root, f"{name}.html") is not None


def _inside(root: Path, name: str) -> Path | None:
    """Return a file of the directory, None if there is none, or if it lies elsewhere."""
    if not name or "\0" in name or len(name) > 1000:
        return None
    top = root.resolve()
    try:
        path = (top / name).resolve(strict=True)
    except OSError:
        return None
    return path if path.is_relative_to(top) and path.is_file() else None


def _json_files(root: Path) -> Iterator[Path]:
    left = MAX_ENTRIES
    waiting = [(root, 0)]
    while waiting:
        directory, depth = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH and not entry.name.startswith("."):
                        waiting.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)


def _listed(root: Path, path: Path) -> ReportFile | None:
    """Return what a list tells of a file; None if it is no report."""
    name = path.relative_to(root).as_posix().removesuffix(".json")
    try:
        written_ms = int(path.stat().st_mtime * 1000)
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            whole = head + file.read() if _HEAD_BYTES <= size <= MAX_REPORT_BYTES else head
        has_page = path.with_suffix(".html").is_file()
        if size > MAX_REPORT_BYTES:
            fault = f"it is larger than {MAX_REPORT_BYTES} bytes"
            return ReportFile(name, name, None, None, None, "", has_page, written_ms, fault)
        found = _decoded(whole)
    except OSError as error:
        return ReportFile(name, name, None, None, None, "", False, 0, str(error))
    except ValueError:
        return None
    if not _is_report(found):
        return None
    return ReportFile(
        name,
        str(found["pipeline"]),
        time_ms_of(found.get("started")),
        time_ms_of(found.get("ended")),
        found["holds"],
        found["summary"],
        has_page,
        written_ms,
    )


def _decoded(data: bytes) -> Any:
    """Decode JSON. Raises ValueError, for JSON that is nested too deeply, too."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _is_report(found: object) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("pipeline"), str)
        and isinstance(found.get("holds"), bool)
        and isinstance(found.get("summary"), str)
    )


def time_ms_of(text: object) -> int | None:
    """Return a time that a report has, in ms since the epoch."""
    if not isinstance(text, str):
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None

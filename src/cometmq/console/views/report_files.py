"""List and read the reports that pipelines have written to a directory.

A pipeline writes NAME.json and NAME.html. All other files are left out, and nothing outside the
directory is read, even if a link in it points there. The functions block.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.console.refusals import Refused

MAX_REPORTS: Final = 1_000
MAX_DEPTH: Final = 3
MAX_ENTRIES: Final = 20_000
MAX_REPORT_BYTES: Final = 16 * 1024 * 1024
MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
# A list reads new and changed files only, and at most this many bytes; the others follow with the next
# list.
MAX_LISTED_BYTES: Final = 64 * 1024 * 1024
# How many letters of a text the list shows and remembers, for up to MAX_REPORTS files.
_LISTED_LETTERS: Final = 500


@dataclass(frozen=True, slots=True)
class ReportFile:
    """Is a report in the directory. `name` is its path there, without .json.

    `holds` and the times are None if the file does not have them; `fault` says why it cannot be
    read.
    """

    name: str
    pipeline: str
    started_ms: int | None
    ended_ms: int | None
    holds: bool | None
    summary: str
    written_ms: int
    fault: str = ""


class _Body(msgspec.Struct):
    """Has the fields of a report that the list needs. All others are skipped, so that a large file
    makes no objects.
    """

    pipeline: str
    holds: bool
    summary: str
    started: msgspec.Raw = msgspec.Raw()
    ended: msgspec.Raw = msgspec.Raw()


class ReportList:
    """Lists the reports of a directory, and remembers the contents of their files.

    For the loop's thread only; another one reads, a list at a time.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reading = asyncio.Lock()
        # By path: the file's times and size, and its report; None if it is none.
        self._known: dict[Path, tuple[tuple[int, int, int], ReportFile | None]] = {}

    async def read(self) -> tuple[list[ReportFile], bool]:
        """Return the reports, the newest first, and whether these are all.

        Raises OSError if the directory cannot be read.
        """
        async with self._reading:
            return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[list[ReportFile], bool]:
        paths, is_all = _json_files(self._root)
        found: list[ReportFile] = []
        known, self._known = self._known, {}
        left = MAX_LISTED_BYTES
        for path in paths:
            if len(found) >= MAX_REPORTS:
                is_all = False
                break
            try:
                at = path.stat()
            except OSError:
                continue  # it is gone
            mark = at.st_mtime_ns, at.st_ctime_ns, at.st_size
            seen = known.get(path)
            if seen is None or seen[0] != mark:
                if 0 < left < at.st_size <= MAX_REPORT_BYTES:
                    left = 0
                if left <= 0:
                    is_all = False
                    continue
                left -= min(at.st_size, MAX_REPORT_BYTES)
                seen = mark, _listed(self._root, path, at)
            self._known[path] = seen
            if seen[1] is not None:
                found.append(seen[1])
        found.sort(key=lambda report: (-(report.ended_ms or report.written_ms), report.name))
        return found, is_all


def read_report(root: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON of a report; None if there is no such report.

    Raises OSError if it cannot be read, ValueError if it is no report.
    """
    path = _inside(root, f"{name}.json")
    if path is None:
        return None
    with path.open("rb") as file:
        data = file.read(MAX_REPORT_BYTES + 1)
    if len(data) > MAX_REPORT_BYTES:
        raise ValueError(Refused.REPORT_LARGE(most=MAX_REPORT_BYTES))
    found = _decoded(data)
    if not _is_report(found):
        raise ValueError(Refused.NO_PIPELINE_REPORT())
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
        raise ValueError(Refused.REPORT_LARGE(most=MAX_PAGE_BYTES))
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


def _json_files(root: Path) -> tuple[list[Path], bool]:
    """Return the files that may be reports, and whether all of the directory was looked at."""
    left = MAX_ENTRIES
    waiting = [(root, 0)]
    found: list[Path] = []
    while waiting:
        directory, depth = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return found, False
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH and not entry.name.startswith("."):
                        waiting.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
    return found, True


def _listed(root: Path, path: Path, at: os.stat_result) -> ReportFile | None:
    """Return a file's entry in the list; None if it is no report."""
    name = path.relative_to(root).as_posix().removesuffix(".json")
    written_ms = int(at.st_mtime * 1000)
    if at.st_size > MAX_REPORT_BYTES:
        fault = Refused.REPORT_LARGE(most=MAX_REPORT_BYTES)
        return ReportFile(name, name, None, None, None, "", written_ms, fault)
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(at.st_size), type=_Body)
    except OSError as error:
        return ReportFile(name, name, None, None, None, "", written_ms, str(error))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return ReportFile(
        name,
        _beginning(found.pipeline),
        _time_ms_in(found.started),
        _time_ms_in(found.ended),
        found.holds,
        _beginning(found.summary),
        written_ms,
    )


def _beginning(text: str) -> str:
    return text if len(text) <= _LISTED_LETTERS else f"{text[:_LISTED_LETTERS]}…"


def _time_ms_in(field: msgspec.Raw) -> int | None:
    # Longer than any time.
    return time_ms_of(msgspec.json.decode(field)) if 0 < len(bytes(field)) <= 100 else None


def _decoded(data: bytes) -> Any:
    """Decode JSON. Raises ValueError, for JSON that is nested too deeply, too."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(Refused.REPORT_NESTED()) from error


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

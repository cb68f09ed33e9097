"""Find the line of the user's code that made something, or that something waits at."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Final, NamedTuple

import cometmq

# Lines of asyncio and of the rest of the standard library do not help a user that looks for their own.
_paths = sysconfig.get_paths()
_INSTALLED: Final = tuple({_paths["purelib"] + os.sep: 0, _paths["platlib"] + os.sep: 0})
_STANDARD: Final = (_paths["stdlib"] + os.sep, _paths["platstdlib"] + os.sep, "<frozen ")
_VIRTUAL: Final = f"{Path(__file__).parent}{os.sep}"
_OURS: Final = f"{Path(cometmq.__file__).parent}{os.sep}"

_MACHINERY, _LIBRARY, _USERS = range(3)
_ranks: dict[str, int] = {}


class Line(NamedTuple):
    path: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number} in {self.function}"


def _rank(path: str) -> int:
    rank = _ranks.get(path)
    if rank is None:
        if path.startswith(_VIRTUAL):
            rank = _MACHINERY
        elif path.startswith((_OURS, *_INSTALLED)):
            rank = _LIBRARY
        else:
            rank = _MACHINERY if path.startswith(_STANDARD) else _USERS
        _ranks[path] = rank
    return rank


def is_users(line: Line) -> bool:
    """Return whether a line is outside of cometmq, of what is installed and of Python."""
    return _rank(line.path) == _USERS


def _line(code: CodeType, number: int | None) -> Line:
    return Line(code.co_filename, number or code.co_firstlineno, code.co_qualname)


def innermost_of_users(error: BaseException | None) -> tuple[Line, TracebackType] | None:
    """Return the innermost line of the user's that an error came by, and a traceback of it alone."""
    found = None
    entry = None if error is None else error.__traceback__
    while entry is not None:
        line = _line(entry.tb_frame.f_code, entry.tb_lineno)
        if is_users(line):
            found = line, TracebackType(None, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        entry = entry.tb_next
    return found


def calling_line() -> tuple[Line | None, bool]:
    """Return the line that called, and whether it is the user's.

    That is the innermost one outside of cometmq and what is installed, or else of these.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect` would be slow
    innermost: FrameType | None = None
    # Each new task and most timers call this, about ten frames deep, so a call for each frame would be costly.
    ranks = _ranks
    while frame is not None:
        code = frame.f_code
        rank = ranks.get(code.co_filename)
        if rank is None:
            rank = _rank(code.co_filename)
        if rank == _USERS:
            return _line(code, frame.f_lineno), True
        if rank == _MACHINERY:
            if code.co_name == "_run_once":
                break  # who called the loop did not call this
        elif innermost is None:
            innermost = frame
        frame = frame.f_back
    return None if innermost is None else _line(innermost.f_code, innermost.f_lineno), False


def waiting_lines(coroutine: object) -> list[Line]:
    """Return where `coroutine` waits: the user's line, and the innermost one below it.

    Lines of the standard library are left out, unless there are no others.
    """
    lines = [(_rank(line.path), line) for line in _awaits(coroutine)]
    users = [line for rank, line in lines if rank == _USERS][-1:]
    libraries = [line for rank, line in lines if rank == _LIBRARY][-1:]
    return users + libraries or [line for _, line in lines][-1:]


def _awaits(awaitable: object) -> Iterator[Line]:
    """Go from `awaitable` to what it awaits, and so on."""
    while awaitable is not None:
        for prefix in ("cr", "gi", "ag"):
            frame = getattr(awaitable, f"{prefix}_frame", None)
            if frame is not None:
                yield _line(frame.f_code, frame.f_lineno)
                awaitable = (
                    getattr(awaitable, "cr_await", None)
                    or getattr(awaitable, "gi_yieldfrom", None)
                    or getattr(awaitable, "ag_await", None)
                )
                break
        else:
            return

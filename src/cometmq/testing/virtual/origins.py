"""Finds the line of the user's code that made something, or that something waits at."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import cometmq

# Lines of these say nothing to whoever looks for his own.
_MACHINERY: Final = (
    *(f"{Path(at).parent}{os.sep}" for at in (asyncio.__file__, concurrent.futures.__file__)),
    f"{Path(__file__).parent}{os.sep}",
    threading.__file__,
    contextlib.__file__,
    "<frozen ",
)
_OURS: Final = f"{Path(cometmq.__file__).parent}{os.sep}"

_MACHINE, _PRODUCT, _USER = range(3)
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
        if path.startswith(_MACHINERY):
            rank = _MACHINE
        else:
            rank = _PRODUCT if path.startswith(_OURS) else _USER
        _ranks[path] = rank
    return rank


def _line(code: CodeType, number: int | None) -> Line:
    return Line(code.co_filename, number or code.co_firstlineno, code.co_qualname)


def calling_line() -> tuple[Line | None, bool]:
    """Return the line that called, and whether it is the user's.

    That is the innermost one outside of asyncio and cometmq, or else of cometmq.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect` would be slow
    of_product: Line | None = None
    while frame is not None:
        rank = _rank(frame.f_code.co_filename)
        if rank == _USER:
            return _line(frame.f_code, frame.f_lineno), True
        if rank == _PRODUCT and of_product is None:
            of_product = _line(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return of_product, False


def waiting_lines(coroutine: Coroutine[Any, Any, Any]) -> list[Line]:
    """Return where `coroutine` waits: the user's line, and the innermost one below it.

    Lines of asyncio are left out, unless there are no others.
    """
    lines = [(_rank(line.path), line) for line in _awaits(coroutine)]
    users = [line for rank, line in lines if rank == _USER][-1:]
    products = [line for rank, line in lines if rank == _PRODUCT][-1:]
    return users + products or [line for _, line in lines][-1:]


def _awaits(awaitable: Any) -> Iterator[Line]:
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

"""Run the cases of a module at once, most of whose time is waiting for what a server does late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


@contextmanager
def at_once(
    request: pytest.FixtureRequest,
    run: Callable[[str], T],
    *,
    places: int,
    only_waits: Callable[[str], bool] = lambda case: False,
) -> Iterator[dict[str, Future[T]]]:
    """Run what the chosen tests of the module have as their parameter `case`, so many at a time, and
    give the futures. Cases that only wait run all at once, beside the others. A case that several parameters
    of the fixture share runs once for each. A case that has not begun when the module ends does not run.
    """
    specs = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    ]
    chosen = [spec.params["case"] for spec in specs if spec is not None and "case" in spec.params]
    with ThreadPoolExecutor(places) as pool, ThreadPoolExecutor(max(1, len(chosen))) as waiting:
        runs = {
            case: (waiting if only_waits(case) else pool).submit(run, case)
            for case in dict.fromkeys(chosen)
        }
        try:
            yield runs
        finally:
            for future in runs.values():
                future.cancel()


def made(directory: Path) -> Path:
    """Make the directory of a case below a directory that the fixture gets from pytest. Do not call `mktemp`
    from several threads: one thread makes a directory that the others then delete.
    """
    directory.mkdir()
    return directory

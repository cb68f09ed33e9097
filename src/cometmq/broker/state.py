"""Writing the broker's JSON tables to disk without holding up the loop (Java: ConfigManager)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from cometmq.runtime.json_file import JsonFile

log = structlog.get_logger(__name__)


class StateWriter:
    """One thread that writes state files in the order in which they were asked for.

    Changes that come while a file waits to be written leave in one write. For the loop's thread.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-writer")
        self._due: dict[JsonFile, Callable[[], str]] = {}

    def soon(self, file: JsonFile, text: Callable[[], str]) -> None:
        """Write `text()`, read at the end of this turn of the loop, to `file`."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._submit)
        self._due[file] = text

    def now(self, file: JsonFile, text: Callable[[], str]) -> None:
        """Write `text()` and whatever was asked for before it, and wait: milliseconds, in which the
        loop stands still. For what must be on disk before a request is answered.
        """
        self._due.pop(file, None)
        self._executor.submit(_write, file, text()).result()

    def close(self) -> None:
        """Write what is due and wait for it."""
        self._submit()
        self._executor.shutdown(wait=True)

    def _submit(self) -> None:
        due, self._due = self._due, {}
        for file, text in due.items():
            self._executor.submit(_write, file, text())


def _write(file: JsonFile, text: str) -> None:
    try:
        file.write(text)
    except OSError as error:
        # The table in memory stays right and the next change writes it all again.
        log.error(  # noqa: TRY400 - the reason says it all
            "state file not written", path=str(file.path), reason=str(error)
        )

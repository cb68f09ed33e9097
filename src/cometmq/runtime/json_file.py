"""State files: small JSON texts that are replaced as a whole (Java: ConfigManager, MixAll).

A new text goes to `<name>.tmp`, is synced, and takes the name; the previous file stays as
`<name>.bak`, which is read when the main file is missing, empty or does not decode.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from cometmq.errors import CometMQError, ConfigError
from cometmq.runtime.durable import sync

log = structlog.get_logger(__name__)

T = TypeVar("T")


class JsonFile:
    """One state file. `read` and `write` block and suit any thread, `save` is for the loop's."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._backup = self.path.with_name(self.path.name + ".bak")
        # Writers run in executor threads, and one that lost its awaiter to a cancellation may
        # still be at work when the next begins.
        self._writing = threading.Lock()
        self._turn = asyncio.Lock()
        self._newest: str | None = None

    def read(self, decode: Callable[[str], T]) -> T | None:
        """The decoded main file, else the decoded backup; None when there is nothing to read.

        `decode` says that a text is damaged by a ValueError or one of our own errors. ConfigError
        is raised when a file has content and neither of the two decodes: starting empty would
        overwrite what an operator can still repair.
        """
        damaged: CometMQError | ValueError | None = None
        for path in (self.path, self._backup):
            try:
                text = path.read_text(encoding="utf-8")
                if not text.strip():
                    continue
                value = decode(text)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
            except (CometMQError, ValueError) as error:
                log.warning("state file is damaged", path=str(path), reason=str(error))
                damaged = error
                continue
            if path is self._backup:
                log.warning("state file restored from its backup", path=str(self.path))
            return value
        if damaged is not None:
            raise ConfigError(
                f"{self.path} does not decode and no backup does ({damaged}); "
                "repair the file, or move it away to start empty"
            ) from damaged
        return None

    def write(self, text: str) -> None:
        """Replace the file by `text`, durably. Raises OSError; the file is then as before."""
        with self._writing:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(self.path.name + ".tmp")
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(self._backup)
            temporary.replace(self.path)
            sync(self.path.parent)

    async def save(self, text: str) -> None:
        """`write` in an executor thread; texts that pile up meanwhile are saved as the newest one.

        Returns when this text or a newer one is durable. Raises OSError.
        """
        self._newest = text
        async with self._turn:
            await self._save_newest()

    async def _save_newest(self) -> None:
        newest = self._newest
        if newest is None:
            return
        await asyncio.get_running_loop().run_in_executor(None, self.write, newest)
        # A failure leaves the text for whoever waits behind us.
        if self._newest is newest:
            self._newest = None

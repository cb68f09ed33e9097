"""Reads and writes state files: small JSON texts, replaced whole (Java: ConfigManager, MixAll).

A new text is written to `<name>.tmp`, synced and renamed to `<name>`. The previous file stays as
`<name>.bak`, which is read when the main file is missing, empty or does not decode. All three files
are for their owner alone (Java leaves that to the umask).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import structlog

from cometmq.errors import CometMQError, ConfigError
from cometmq.runtime.durable import PRIVATE_FILE
from cometmq.runtime.file_lock import locked
from cometmq.runtime.files import Files
from cometmq.runtime.surroundings import current

log = structlog.get_logger(__name__)

T = TypeVar("T")


class JsonFile:
    """One state file. `read` and `write` block and suit any thread; `save` is for the loop's.

    With `keep_permissions`, meant for a file that an operator made, each new file gets the
    permissions of the one it replaces. With `is_shared` other processes write it, too: `write` raises
    BlockingIOError while one of them does. `files` says where the file lies, by default where the
    calling code has its files.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        keep_permissions: bool = False,
        is_shared: bool = False,
        files: Files | None = None,
    ) -> None:
        self.path = Path(path)
        self._files = current().files if files is None else files
        self._keep_permissions = keep_permissions
        self._is_shared = is_shared
        self._backup = self.path.with_name(self.path.name + ".bak")
        # Writers run in executor threads. When a caller of `save` is cancelled, its writer may
        # still be at work while the next one begins.
        self._writing = threading.Lock()
        self._turn = asyncio.Lock()
        self._newest: str | None = None

    def read(self, decode: Callable[[str], T]) -> T | None:
        """Return the decoded main file, else the decoded backup, else None.

        None says that both are missing or empty. `decode` raises ValueError or one of our own
        errors to say that a text is damaged. `read` raises ConfigError when a file cannot be read,
        or has content and neither of the two decodes: starting empty would overwrite what an
        operator can still repair.
        """
        damaged: CometMQError | ValueError | None = None
        for path in (self.path, self._backup):
            try:
                text = self._files.read(path).decode()
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

    def write(self, text: str | Iterable[str]) -> None:
        """Replace the file durably by `text`, which may come in pieces.

        Raises OSError; the file is then as before.
        """
        pieces = [text] if isinstance(text, str) else text
        lock = self.path.with_name(self.path.name + ".lock")
        with self._writing, locked(lock) if self._is_shared else nullcontext():
            self._files.make_directories(self.path.parent)
            temporary = self.path.with_name(self.path.name + ".tmp")
            self._files.write_new(temporary, (piece.encode() for piece in pieces), self._mode())
            if self._files.exists(self.path):
                self._keep_as_backup()
            self._files.replace(temporary, self.path)
            self._files.sync(self.path.parent)

    def _keep_as_backup(self) -> None:
        """Give the present file the name of the backup, too.

        It keeps its own name until the new file takes that. A configuration file is read without
        its backup: by those who look at it meanwhile, and by the next start if this process dies.
        """
        second = self._backup.with_name(self._backup.name + ".tmp")
        self._files.remove(second)
        try:
            self._files.link(self.path, second)
        except OSError:  # not every file system has links
            self._files.replace(self.path, self._backup)
            return
        self._files.replace(second, self._backup)
        # It is still there if both names were the same file's already, since a process died here.
        self._files.remove(second)

    def _mode(self) -> int:
        mode = self._files.permissions(self.path) if self._keep_permissions else None
        return PRIVATE_FILE if mode is None else mode

    async def save(self, text: str) -> None:
        """Write `text` in an executor thread; of texts that pile up meanwhile, write the newest.

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
        # After a failure the text stays for the next caller in line to write.
        if self._newest is newest:
            self._newest = None

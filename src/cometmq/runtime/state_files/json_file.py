"""Read and write state files: small JSON texts, replaced whole (Java: ConfigManager, MixAll).

A new text is written to `<name>.tmp`, synced and renamed to `<name>`. The previous file stays as
`<name>.bak`, which is read when the main file is missing or damaged. A main file that is damaged
when the next text is written becomes `<name>.damaged`, never the backup. Only their owner may read
these files (Java leaves that to the umask).

A JSON object ends with the key "checksum" (see `seals`), which Java's brokers ignore and do not
write. So a text without it is accepted unchecked.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from cometmq.errors import CometMQError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.state_files.durable import PRIVATE_FILE
from cometmq.runtime.state_files.file_lock import locked
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.state_files.seals import Seal, seal, sealed
from cometmq.runtime.surroundings import current

log = get_logger(__name__)

T = TypeVar("T")


class _Found(NamedTuple, Generic[T]):
    """Holds the state of a file: a value, or damaged for a reason, or missing (neither)."""

    value: T | None = None
    damage: Exception | None = None


class _Judged(NamedTuple):
    """Holds the length and checksum of a text and whether it was found whole."""

    length: int
    crc: int
    is_sound: bool


class JsonFile:
    """One state file. `read` and `write` block and suit any thread; `save` is for the loop's.

    With `keep_permissions`, meant for a file that an operator made, each new file gets the
    permissions of the one it replaces, and no checksum. With `is_shared` other processes write it,
    too: `write` raises BlockingIOError while one of them does. `files` says where the file lies, by
    default where the calling code has its files.
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
        self._temporary = self.path.with_name(self.path.name + ".tmp")
        self._damaged = self.path.with_name(self.path.name + ".damaged")
        # Writers run in executor threads. When a caller of `save` is cancelled, its writer may
        # still be at work while the next one begins.
        self._writing = threading.Lock()
        self._turn = asyncio.Lock()
        self._newest: str | None = None
        # The state in which `read` found the main file.
        self._judged: _Judged | None = None

    @property
    def is_operators(self) -> bool:
        """Whether an operator made the file."""
        return self._keep_permissions

    @property
    def is_missing(self) -> bool:
        """Whether there is certainly no main file. Blocks, as `read` does."""
        try:
            return not self._files.exists(self.path)
        except OSError:
            return False

    def read(self, decode: Callable[[str], T]) -> T | None:
        """Return the decoded main file, else the decoded backup, else None.

        None says that both are missing. A newer text that a crash left as `.tmp` is used if it is
        whole. `decode` raises ValueError or one of our own errors to say that a text is damaged.
        `read` raises ConfigError when a file cannot be read, or when one is damaged, an empty one
        included, and no other is whole: starting empty would overwrite what an operator can still
        repair.
        """
        with self._writing:
            return self._read(decode)

    def _read(self, decode: Callable[[str], T]) -> T | None:
        main = self._look(self.path, decode)
        if self._has_unfinished():
            unfinished = self._look(self._temporary, decode)
            if unfinished.value is not None:
                self._finish(is_sound=main.value is not None)
                return unfinished.value
        if main.value is not None:
            return main.value
        if main.damage is not None:
            log.error("state file is damaged", path=str(self.path), reason=str(main.damage))
        backup = self._look(self._backup, decode)
        if backup.value is not None:
            log.warning("state file restored from its backup", path=str(self.path))
            self._restore()
            return backup.value
        damage = main.damage or backup.damage
        if damage is not None:
            raise ConfigError(
                f"{self.path} is damaged and no backup is whole ({damage}); "
                "repair the file, or move it away to start empty"
            ) from damage
        return None

    def _look(self, path: Path, decode: Callable[[str], T]) -> _Found[T]:
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return _Found()
        except OSError as error:
            if path is self._temporary:
                return _Found(damage=error)
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            found = _Found(decode(self._text_of(path, data)))
        except (CometMQError, ValueError) as error:
            found = _Found(damage=error)
        if path is self.path:
            self._judged = _Judged(len(data), zlib.crc32(data), found.damage is None)
        return found

    def _text_of(self, path: Path, data: bytes) -> str:
        """Return a file's text without its checksum. Raises ValueError for a damaged one."""
        text, state = sealed(data)
        if not text.strip():
            raise ValueError("it is empty")
        if state is Seal.BROKEN:
            raise ValueError(
                "it does not have the checksum in its last line; if the change was intended, "
                'remove the key "checksum"'
            )
        if state is Seal.OF_ANOTHER_LENGTH:
            log.warning("state file was changed by hand and is used as it is", path=str(path))
        return text.decode()

    def _has_unfinished(self) -> bool:
        """Say whether a write left a complete text without ending, and the file was not written
        since.
        """
        unfinished_ns = self._files.modified_ns(self._temporary)
        main_ns = self._files.modified_ns(self.path)
        return unfinished_ns is not None and (main_ns is None or unfinished_ns >= main_ns)

    def _restore(self) -> None:
        """Make a second whole copy of the backup: a damaged one may follow before the next write."""
        try:
            data = self._files.read(self._backup)
            self._files.write_new(self._temporary, [data], self._mode())
            self._put_in_place(is_sound=False)
        except OSError as error:
            log.warning("state file not put in place", path=str(self.path), reason=str(error))

    def _finish(self, *, is_sound: bool) -> None:
        log.warning(
            "state file continues with the version that a crash had not put in place",
            path=str(self.path),
        )
        try:
            self._put_in_place(is_sound=is_sound)
        except OSError as error:
            # The text is lost then, and the next write replaces it.
            log.warning("state file not put in place", path=str(self.path), reason=str(error))

    def write(self, text: str | Iterable[str]) -> None:
        """Replace the file durably by `text`, which may come in pieces.

        Raises OSError; the file is then as before.
        """
        pieces = (piece.encode() for piece in ([text] if isinstance(text, str) else text))
        lock = self.path.with_name(self.path.name + ".lock")
        with self._writing, locked(lock) if self._is_shared else nullcontext():
            self._files.make_directories(self.path.parent)
            whole = pieces if self._keep_permissions else seal(pieces)
            self._files.write_new(self._temporary, whole, self._mode())
            try:
                self._put_in_place(is_sound=self._is_sound())
            except OSError:
                # A start would take it for a text that a crash left, although the change was
                # refused.
                with suppress(OSError):
                    self._files.remove(self._temporary)
                raise

    def _put_in_place(self, *, is_sound: bool) -> None:
        """Rename the temporary file to the main file, and the main file to the backup."""
        if self._files.exists(self.path):
            if not is_sound:
                log.error(
                    "state file is damaged and is kept under another name",
                    path=str(self.path),
                    kept=str(self._damaged),
                )
            self._keep_as(self._backup if is_sound else self._damaged)
        self._files.replace(self._temporary, self.path)
        self._files.sync(self.path.parent)

    def _is_sound(self) -> bool:
        """Say whether the present main file may become the backup."""
        try:
            data = self._files.read(self.path)
        except OSError:
            return False
        text, state = sealed(data)
        if state in (Seal.HOLDS, Seal.BROKEN) or not text.strip():
            return state is Seal.HOLDS
        judged = self._judged
        if judged is not None and judged[:2] == (len(data), zlib.crc32(data)):
            return judged.is_sound
        return self._keep_permissions or _is_json(text)

    def _keep_as(self, name: Path) -> None:
        """Give the present file another name, too.

        It keeps its own name until the new file takes that. A configuration file is read without
        its backup: by anybody who looks at it meanwhile, and by the next start if this process
        dies.
        """
        second = name.with_name(name.name + ".tmp")
        self._files.remove(second)
        try:
            self._files.link(self.path, second)
        except OSError:  # not every file system has links
            self._files.replace(self.path, name)
            return
        self._files.replace(second, name)
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


def _is_json(text: bytes) -> bool:
    try:
        text.decode()
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True

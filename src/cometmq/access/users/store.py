"""Keep users and policies in a file, written before a change is in force.

The file is `users.json` in the store's `config` directory (a name server's: beside its key-value
file), JSON in the form of RocketMQ's UserInfo and AclInfo, for its owner alone. It has passwords in
clear, as Java's RocksDB has: a signature can only be checked with the secret key itself.

A change is in force, and answered, when the disk has it. Changes that come while the disk is at work
are written together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from cometmq.access.users.book import Book, Change, State, UserRefusedError, book_of
from cometmq.errors import CometMQError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.seals import Seal, sealed
from cometmq.runtime.workers import Workers

log = get_logger(__name__)

FILE_NAME: Final = "users.json"

ChangeT = TypeVar("ChangeT", bound=Change)

PassOn: TypeAlias = Callable[[Request[Any]], Awaitable[RemotingCommand]]


class UserStore:
    """Users and policies of one server. For the loop's thread.

    `on_change` are called with the former book and the one now in force.
    """

    def __init__(self, directory: Path, *, files: Files, workers: Workers) -> None:
        self._file = JsonFile(directory / FILE_NAME, files=files)
        self._files = files
        self._worker = workers.worker("users")
        self._turn = asyncio.Lock()
        # Tasks that wait for it get it in the order in which they came.
        self._making = asyncio.Lock()
        # In force; and with the changes that are still to be written, which no one sees yet.
        self.book = Book()
        self._next = self.book
        # How many changes were made, how many of these the disk has, and up to which they failed.
        self._made = self._written = self._failed = 0
        self.on_change: list[Callable[[Book, Book], None]] = []
        # On a slave: has the master make the change that a request asks for, and returns its answer.
        self.pass_on: PassOn | None = None
        # Whether the file was read or written, so it must exist.
        self._is_kept = False
        # On a master: returns when its slaves have the users as they are now.
        self.confirmed: Callable[[], Awaitable[None]] = _at_once
        self._closed = False

    @property
    def path(self) -> Path:
        return self._file.path

    async def open(self) -> bool:
        """Read the file; return whether there was one. Raises ConfigError.

        A damaged file keeps the server from starting. Its backup is not taken instead: it may have a
        user or a password that the last change has taken away.
        """
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._worker, self._read)
        if found is not None:
            self.book = self._next = found
            self._is_kept = True
        return found is not None

    def _read(self) -> Book | None:
        path = self.path
        backup = path.with_name(path.name + ".bak")
        remedy = (
            f"repair it, or put {backup.name}, the state before the last change, in its place "
            "(look at it first: it may have users or passwords that were taken away since)"
        )
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            if self._files.exists(backup):
                raise ConfigError(
                    f"{path} is missing, but {backup.name} is there: {remedy}"
                ) from None
            return None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        text, state = sealed(data)
        if state is Seal.BROKEN:
            raise ConfigError(
                f"{path} does not have the checksum in its last line, so it is damaged or was changed by "
                f'hand: remove the key "checksum" if the change was intended, or {remedy}'
            )
        try:
            return book_of(msgspec.json.decode(text, type=State))
        except (msgspec.DecodeError, UnicodeDecodeError, UserRefusedError) as error:
            raise ConfigError(
                f"{path} is damaged, so its users are unknown: {_reason_of(error)}; {remedy}"
            ) from None

    async def change(self, change: Change) -> None:
        """Make a change, and return when it is on the disk and in force.

        Raises UserRefusedError if the change cannot be made, CometMQError if the disk fails; then
        nothing is changed.
        """
        async with self._making:
            mine = self._make(change)
        await self._write(mine)

    async def change_by(self, prepare: Callable[[], ChangeT]) -> ChangeT:
        """Make the change that `prepare` returns, and return it; a thread calls `prepare`.

        Changes that come behind it are made after it. Raises what `change` and `prepare` raise.
        """
        async with self._making:
            loop = asyncio.get_running_loop()
            change = await loop.run_in_executor(None, prepare)
            mine = self._make(change)
        await self._write(mine)
        return change

    def _make(self, change: Change) -> int:
        """Return the number of a change; 0 if it changes nothing."""
        following = change(self._next)
        if following is self._next:
            return 0
        if following.version <= self._next.version:  # not a copy of a later one of a master
            following = replace(following, version=self._next.version + 1)
        self._next = following
        self._made += 1
        return self._made

    async def _write(self, mine: int) -> None:
        if not mine:
            return
        async with self._turn:
            if self._written < mine and self._failed < mine:
                await self._write_all()
        if self._failed >= mine > self._written:
            raise CometMQError(
                f"{self.path} could not be written, so nothing was changed; see that its disk has "
                "room and works",
                code=ResponseCode.SYSTEM_ERROR,
            )

    async def _write_all(self) -> None:
        book, made = self._next, self._made
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._worker, self._write_file, book)
        except OSError as error:
            log.warning("users not written", path=str(self.path), reason=str(error))
            # Changes made meanwhile build upon those that failed.
            self._next, self._failed = self.book, self._made
            return
        before, self.book, self._written = self.book, book, made
        for notify in self.on_change:
            notify(before, book)

    def _write_file(self, book: Book) -> None:
        text = msgspec.json.format(msgspec.json.encode(book.state()), indent=1)
        self._file.write(text.decode())
        self._is_kept = True

    async def look(self) -> None:
        """Write the file again if somebody removed it."""
        if not self._closed:
            # After a pending write: until then the book in force is the one that the file had.
            async with self._turn:
                future = self._worker.submit(self._write_missing, self.book)
                await asyncio.wrap_future(future)

    def _write_missing(self, book: Book) -> None:
        if not self._is_kept or not self._file.is_missing:
            return
        log.warning("users file is missing and is written again", path=str(self.path))
        try:
            self._write_file(book)
        except OSError as error:
            log.warning("users not written", path=str(self.path), reason=str(error))

    def close(self) -> None:
        """Wait until the write that is under way is on the disk. Idempotent."""
        if not self._closed:
            self._closed = True
            self._worker.submit(self._write_missing, self.book).result()
            self._worker.shutdown(wait=True)


async def _at_once() -> None:
    pass


def _reason_of(error: Exception) -> str:
    # A decoder's text may quote the file, which has passwords; its path and position do not.
    return str(error) if isinstance(error, UserRefusedError) else "it is no such JSON"

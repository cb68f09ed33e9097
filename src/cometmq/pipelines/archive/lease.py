"""Keep other archives out of a path whose file system has no locks.

An archive that runs there has a file that says so, and writes it again every few seconds. If the file stays
the same for `PATIENCE_S`, its archive is dead, and the next one takes over. An archive that lost
its path this way (because its process slept, for example) notices before its next change and stops.
No clock of another machine is asked. File systems of this machine have locks, and need no lease.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import msgspec

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.locations import Location
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.state_files.file_lock import locked

log = get_logger(__name__)

PATIENCE_S: Final = 20.0
# How often the file is renewed in that time.
_BEATS: Final = 4


@contextmanager
def held(path: Location) -> Iterator[Callable[[], None]]:
    """Hold an archive by its file `path`. Yield a function that raises if another one took over.

    Raise BlockingIOError if another archive is alive, OSError if the file cannot be made.
    """
    if (file := path.local) is not None:
        with locked(file):
            yield lambda: None
    else:
        with Lease(path) as lease:
            yield lease.check


class Holder(msgspec.Struct, frozen=True):
    """The contents of the file: `owner` is the archive's unique name, `beat` counts the
    renewals.
    """

    owner: str
    process: str
    beat: int


class Lease:
    """Holds the file `path` while the context manager is entered.

    patience_s: how long the file of another archive must stay the same to be taken over.
    pause: waits for a number of seconds.
    """

    def __init__(
        self,
        path: Location,
        patience_s: float | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._path = path
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._ended = threading.Event()
        self._pause = pause or self._ended.wait
        self._me = Holder(
            SYSTEM_RANDOMNESS.token_hex(16), f"{os.uname().nodename} {os.getpid()}", 0
        )
        self._thread = threading.Thread(target=self._renew, name="archive-lease", daemon=True)

    def __enter__(self) -> Self:
        """Raise BlockingIOError if another archive is alive, OSError if the store does not answer."""
        seen = self._read()
        if seen is not None:
            log.info(
                "waiting whether the archive that holds the path is alive", path=str(self._path)
            )
            self._pause(self._patience_s)
            now = self._read()
            if now is not None and now != seen:
                raise BlockingIOError(f"{self._path} is held by {_name_of(now)}")
            if now is not None:
                self._path.remove()
        try:
            self._path.create(msgspec.json.encode(self._me))
        except FileExistsError as error:
            # An object store may repeat a request whose answer was lost.
            if not self._is_mine(self._read()):
                raise BlockingIOError(f"{self._path} has just been taken") from error
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        # The next archive takes over a file that stays, after a while.
        with suppress(OSError):
            if self._is_mine(self._read()):
                self._path.remove()

    def check(self) -> None:
        """Raise ConfigError if another archive has taken over, OSError if that cannot be found
        out.
        """
        holder = self._read()
        if not self._is_mine(holder):
            raise ConfigError(
                f"another archive ({_name_of(holder)}) has taken over {self._path.parent}, because "
                f"this one did not renew {self._path.name} for {self._patience_s:g} s; nothing is "
                "lost. Let one archive at a time work there"
            )

    # Inside

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def _is_mine(self, content: bytes | None) -> bool:
        holder = _holder(content)
        return holder is not None and holder.owner == self._me.owner

    def _renew(self) -> None:
        while not self._ended.wait(self._patience_s / _BEATS):
            try:
                if not self._is_mine(self._read()):
                    return
                self._me = msgspec.structs.replace(self._me, beat=self._me.beat + 1)
                self._path.write(msgspec.json.encode(self._me))
            except OSError as error:
                log.warning("the archive's hold on its path is not renewed", reason=str(error))


def _holder(content: bytes | None) -> Holder | None:
    """Return the holder of the file, None if it is missing or damaged."""
    try:
        return msgspec.json.decode(content or b"", type=Holder)
    except msgspec.DecodeError:
        return None


def _name_of(content: bytes | None) -> str:
    holder = _holder(content)
    return holder.process if holder else "of an unknown process"

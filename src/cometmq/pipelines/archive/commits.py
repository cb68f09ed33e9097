"""How an archive changes: by commits of which each is there as a whole or not at all.

A commit is written to `_pending.json`, with all that will be true after it; from then on it counts. It
is carried out by steps of which each may be done twice (files are moved from `_staging` into `data`,
manifests and the state are written), and taken away. Whoever opens the archive next carries out what a
killed one has left over, and throws away the rest of `_staging`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from uuid import uuid4

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.layout import (
    Hour,
    Layout,
    Manifest,
    SafeRange,
    State,
)
from cometmq.runtime.durable import sync, write_atomically
from cometmq.spark.gaps import Gap, noted_gaps

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
# What says that file system or kernel cannot exchange two names.
_NO_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


class Commit(msgspec.Struct, frozen=True):
    """What is true after it.

    files: those of the batch `state.next_batch - 1` come into the directories that are there.
    directories: each of `manifests` has a directory in `staged` that takes the place of the one in data.
    nothing: only manifests, state and marks change.
    """

    moves: Literal["files", "directories", "nothing"]
    manifests: tuple[Manifest, ...]
    state: State
    # A directory in `_staging`.
    staged: str = ""
    safe: tuple[SafeRange, ...] | None = None
    # Found by the batch that this is.
    gaps: tuple[Gap, ...] = ()


class Archive:
    """The archive in a directory, held by this process for as long as it is entered.

    state: as of the last commit. manifests: all of them by topic and hour.
    """

    def __init__(self, path: str | Path) -> None:
        self.layout = Layout(path)
        self.state = State()
        self.manifests: dict[Hour, Manifest] = {}
        self._lock_fd = -1

    def __enter__(self) -> Self:
        """Raises ConfigError when another archive is at work there, or what is there is none."""
        layout = self.layout
        try:
            layout.data.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"path is {str(layout.path)!r}, where no archive can be made: {error.strerror}; "
                "name a directory that this user can write to"
            ) from error
        try:
            self._lock()
            self._recover()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._unlock()

    def new_staging(self) -> Path:
        """A directory's name that nobody else has, not made yet: so a job of a killed driver that is
        still at work writes into none of ours.
        """
        self.layout.staging.mkdir(exist_ok=True)
        return self.layout.staging / uuid4().hex

    def gaps_noted(self, directory: Path) -> tuple[Gap, ...]:
        """Those in a directory of `new_staging`, which is taken away."""
        gaps = noted_gaps(directory)
        shutil.rmtree(directory, ignore_errors=True)
        return gaps

    def commit(self, commit: Commit) -> None:
        """Staged files are on the disk before anything says that they are there."""
        if commit.staged:
            for path in sorted(self._staged(commit).rglob("*.parquet")):
                sync(path)
        write_atomically(self.layout.pending, msgspec.json.encode(commit))
        self._carry_out(commit)

    # Inside

    def _lock(self) -> None:
        try:
            # Not lockf, which a second archive in this process would get, too.
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another archive is at work in path {str(self.layout.path)!r}: wait for it or stop "
                "it, or give this one another path"
            ) from error

    def _unlock(self) -> None:
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)

    def _recover(self) -> None:
        layout = self.layout
        try:
            pending = msgspec.json.decode(layout.pending.read_bytes(), type=Commit)
        except FileNotFoundError:
            pending = None
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{layout.pending} is damaged ({error}): restore it from a copy of the archive"
            ) from error
        if pending is not None:
            self._carry_out(pending)
        shutil.rmtree(layout.staging, ignore_errors=True)
        if not layout.state.exists() and any(layout.data.iterdir()):
            raise ConfigError(
                f"{layout.data} holds files, but {layout.state.name} is not beside it: restore that "
                "from a copy of the archive, or name another path"
            )
        self.state = layout.load_state()
        self.manifests = {manifest.key: manifest for manifest in layout.load_manifests()}

    def _carry_out(self, commit: Commit) -> None:
        layout = self.layout
        for manifest in commit.manifests:
            if commit.moves == "files":
                self._move_files(commit, manifest)
            elif commit.moves == "directories":
                self._exchange(commit, manifest)
            write_atomically(layout.manifest_of(manifest.key), msgspec.json.encode(manifest))
            self.manifests[manifest.key] = manifest
        if commit.safe is not None:
            write_atomically(layout.safe, msgspec.json.Encoder().encode_lines(commit.safe))
        if commit.gaps:
            name = f"{batch_name(commit.state.next_batch - 1)}.json"
            write_atomically(layout.gaps / name, msgspec.json.Encoder().encode_lines(commit.gaps))
        write_atomically(layout.state, msgspec.json.encode(commit.state))
        self.state = commit.state
        layout.pending.unlink()
        if commit.staged:
            shutil.rmtree(self._staged(commit), ignore_errors=True)

    def _staged(self, commit: Commit) -> Path:
        return self.layout.staging / commit.staged

    def _move_files(self, commit: Commit, manifest: Manifest) -> None:
        to = self.layout.data_of(manifest.key)
        to.mkdir(parents=True, exist_ok=True)
        staged = self._staged(commit) / manifest.key.directory
        for file in manifest.files:
            if file.batch == commit.state.next_batch - 1 and not (to / file.name).exists():
                (staged / file.name).rename(to / file.name)
        sync(to)

    def _exchange(self, commit: Commit, manifest: Manifest) -> None:
        """What the manifest names lies in data or, in front of the exchange, in staging."""
        ours = self.layout.data_of(manifest.key)
        staged = self._staged(commit) / manifest.key.directory
        if staged.exists() and not all((ours / file.name).exists() for file in manifest.files):
            exchange(staged, ours)
            sync(ours.parent)


def batch_name(number: int) -> str:
    """What the files of a batch are called, in front of what tells them apart."""
    return f"b{number:08d}"


def exchange(new: Path, old: Path) -> None:
    """Have two directories change their places, at once where the file system can do that.

    Elsewhere (NFS) there is a moment without `old`. A process that dies in it is continued by
    another call.
    """
    if old.exists():
        libc = ctypes.CDLL(None, use_errno=True)
        swap = getattr(libc, "renameat2", None)
        names = os.fsencode(new), os.fsencode(old)
        if swap is not None and not swap(
            _AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE
        ):
            return
        code = ctypes.get_errno() if swap is not None else errno.ENOSYS
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), str(new), None, str(old))
        old.rename(new.with_name(f"{new.name}.old"))
    new.rename(old)

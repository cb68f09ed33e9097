"""Change an archive by commits: each takes effect as a whole or not at all.

A commit is written to `_pending.json` with everything that will be true after it, and counts from
then on. It is then carried out in steps that may each be repeated (move files from `_staging` into
`data`, write manifests and state), and `_pending.json` is removed. Whoever opens the archive next
carries out the commit of a killed process, and removes what else is in `_staging`.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.layout import (
    Hour,
    Layout,
    Manifest,
    SafeRange,
    State,
    load,
)
from cometmq.runtime.durable import exchange_names, sync, write_atomically
from cometmq.runtime.file_lock import locked
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.spark.gaps import Gap, noted_gaps


class Commit(msgspec.Struct, frozen=True):
    """A commit holds what is true after it. `moves` says what is moved from staging into data:

    files: the files of the batch `state.next_batch - 1` move into the existing directories.
    directories: a directory in `staged` replaces the directory in data, for each of `manifests`.
    nothing: only manifests, state and marks change.
    """

    moves: Literal["files", "directories", "nothing"]
    manifests: tuple[Manifest, ...]
    state: State
    # The name of a directory in `_staging`.
    staged: str = ""
    safe: tuple[SafeRange, ...] | None = None
    # The gaps that this batch has found.
    gaps: tuple[Gap, ...] = ()


class Archive:
    """The archive in a directory, locked by this process while the context manager is entered.

    state: of the last commit. manifests: all manifests, by topic and hour.
    """

    def __init__(self, path: str | Path) -> None:
        self.layout = Layout(path)
        self.state = State()
        self.manifests: dict[Hour, Manifest] = {}
        self._lock = ExitStack()

    def __enter__(self) -> Self:
        """Lock the archive and finish a commit that was cut short.

        Raise ConfigError when another process archives there, or when the directory is no archive.
        """
        layout = self.layout
        with ExitStack() as stack:
            try:
                layout.data.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(layout.lock))
            except BlockingIOError as error:
                raise ConfigError(
                    f"another archive is at work in path {str(layout.path)!r}: wait for it or stop "
                    "it, or give this one another path"
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"path is {str(layout.path)!r}, where no archive can be made: {error.strerror}; "
                    "name a directory that this user can write to"
                ) from error
            self._recover()
            self._lock = stack.pop_all()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def new_staging(self) -> Path:
        """Return a directory name that nobody else uses; the directory does not exist yet.

        So a job of a killed driver that is still running writes into none of our directories.
        """
        self.layout.staging.mkdir(exist_ok=True)
        return self.layout.staging / SYSTEM_RANDOMNESS.token_hex(16)

    def gaps_noted(self, directory: Path) -> tuple[Gap, ...]:
        """Return the gaps noted in a directory named by `new_staging`, and remove the directory."""
        gaps = noted_gaps(directory)
        shutil.rmtree(directory, ignore_errors=True)
        return gaps

    def commit(self, commit: Commit) -> None:
        """Sync the staged files, write the commit, and carry it out.

        Staged files reach the disk before anything says that they exist.
        """
        if commit.staged:
            for path in sorted(self._staged(commit).rglob("*.parquet")):
                sync(path)
        write_atomically(self.layout.pending, msgspec.json.encode(commit))
        self._carry_out(commit)

    # Inside

    def _recover(self) -> None:
        layout = self.layout
        pending = load(layout.pending, msgspec.json.Decoder(Commit).decode)
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
        """Exchange a directory in staging with the one in data, unless an earlier attempt did so.

        The files that the manifest names lie in staging before the exchange and in data after it.
        """
        ours = self.layout.data_of(manifest.key)
        staged = self._staged(commit) / manifest.key.directory
        if staged.exists() and not all((ours / file.name).exists() for file in manifest.files):
            exchange(staged, ours)
            sync(ours.parent)


def batch_name(number: int) -> str:
    """Return the prefix of the names of a batch's files."""
    return f"b{number:08d}"


def exchange(new: Path, old: Path) -> None:
    """Exchange two directories, atomically where the file system can do that.

    On other file systems (NFS) `old` is missing for a moment. If the process dies in that moment,
    another call finishes the exchange.
    """
    if old.exists():
        if exchange_names(new, old):
            return
        old.rename(new.with_name(f"{new.name}.old"))
    new.rename(old)

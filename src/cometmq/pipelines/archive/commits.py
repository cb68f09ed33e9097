"""Change an archive by commits: each takes effect as a whole or not at all.

A commit is a file of its own in `_commits`, with everything that will be true after it. It is in
force once its file exists. The files are numbered in order, and one is created only if there is
none of its number: of two archives that take themselves for the only one, one commits and the other
one fails. The commit is then carried out in steps that may each be repeated (move files from
`_staging` into `data`, write manifests and, as the last step, the state, which has the commit's
number). The next archive to open the directory carries out the commit of a killed process, and
removes everything else in `_staging`.

A compaction exchanges two directories on this machine. Elsewhere it moves the new files into `data`,
writes the manifest, and then removes the files that the new ones stand for.

Version 0.2 wrote each commit to `_pending.json`, which it removed when the commit was carried out. One
that a killed process left behind is carried out like the numbered ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NoReturn, Self

import msgspec
from msgspec.structs import replace

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.layout import (
    VERSIONS,
    Hour,
    Layout,
    Manifest,
    SafeRange,
    State,
    load,
)
from cometmq.pipelines.archive.lease import held
from cometmq.pipelines.archive.schemas import Schema, check_readable, wanted
from cometmq.pipelines.locations import Location
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.state_files.durable import SHARED_DIRECTORY, make_directories
from cometmq.spark.gaps import Gap, noted_gaps

# This many files with gaps are folded into one, because every proof reads all of them.
_MOST_GAP_FILES: Final = 64
# This many carried-out commits are kept, so that an archive that slept while others worked finds its
# number taken.
_KEPT_COMMITS: Final = 64


class Commit(msgspec.Struct, frozen=True):
    """A commit holds the state after it. `moves` says which files move from staging into data:

    files: the files of the batch `state.next_batch - 1` move into the existing directories.
    replaced: the files of that batch stand for `removed`, which are removed from data.
    directories: as `replaced`, in a commit of version 0.2, which has staged the files that stay, too.
    nothing: only manifests, state and marks change.

    sources: the names in staging of files that have another name there.
    removed: names of files by the index of their manifest in `manifests`.
    """

    moves: Literal["files", "replaced", "directories", "nothing"]
    manifests: tuple[Manifest, ...]
    state: State
    # The name of a directory in `_staging`.
    staged: str = ""
    safe: tuple[SafeRange, ...] | None = None
    # The gaps that this batch has found.
    gaps: tuple[Gap, ...] = ()
    sources: dict[str, str] = {}
    removed: tuple[tuple[str, ...], ...] = ()


class Archive:
    """The archive in a directory, locked by this process while the context manager is entered.

    gap_logs: of a remote archive, a directory that workers and driver see, where workers note which
        messages are gone. None: such messages fail their job.

    state: of the last commit. manifests: all manifests, by topic and hour.
    """

    def __init__(
        self, path: str | os.PathLike[str] | Location, gap_logs: Path | None = None
    ) -> None:
        self.layout = Layout(path)
        self._gap_logs = gap_logs
        # Raises if another archive has taken over, which only remote file systems allow.
        self._hold: Callable[[], None] = lambda: None
        self.state = State()
        self.manifests: dict[Hour, Manifest] = {}
        # Called after each commit that this process makes.
        self.after_commit: Callable[[], None] = lambda: None
        self._lock = ExitStack()

    def __enter__(self) -> Self:
        """Lock the archive and finish a commit that was cut short.

        Raise ConfigError when another process archives there, or when the directory is no archive.
        """
        layout = self.layout
        with ExitStack() as stack:
            try:
                self._lock_in(stack)
            except BlockingIOError as error:
                raise ConfigError(
                    f"another archive is at work in path {str(layout.path)!r}: wait for it or stop "
                    "it, or give this one another path"
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"path is {str(layout.path)!r}, where no archive can be created: "
                    f"{error.strerror or error}; name a directory that this user can write to"
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

    def new_staging(self) -> Location:
        """Return a directory name that nobody else uses; the directory does not exist yet.

        So a job of a killed driver that is still running writes into none of our directories.
        """
        return self.layout.staging / SYSTEM_RANDOMNESS.token_hex(16)

    @contextmanager
    def staging(self) -> Iterator[Location]:
        """Yield a name as `new_staging` does, and remove what is staged there if no commit followed."""
        where = self.new_staging()
        try:
            yield where
        except Exception:
            # A commit in force needs its files, also if it was not carried out.
            if not self._numbered(self.state.commits + 1).exists():
                where.remove()
            raise

    def new_gap_log(self) -> Path | None:
        """Return a directory name for a job to note gaps in, None if they are to fail the job."""
        if (where := self.new_staging().local) is not None:
            return where
        return self._gap_logs and self._gap_logs / SYSTEM_RANDOMNESS.token_hex(16)

    @property
    def schemas(self) -> dict[int, Schema]:
        return self.state.all_schemas()

    def schema(self, number: int | None = None) -> Schema:
        """Return the schema with a number, or the schema of new files if no number is given."""
        return self.schemas[self.state.form if number is None else number]

    def schemas_of(self, hours: Iterable[Hour]) -> dict[Location, Schema]:
        """Return the schema of each file that the manifests of these hours name."""
        known = self.schemas
        return {
            self.layout.data_of(hour) / file.name: known[file.form]
            for hour in hours
            if hour in self.manifests
            for file in self.manifests[hour].files
        }

    def choose_schema(self, *, compact: bool) -> bool:
        """Set the kind of the next files, and say whether it was possible.

        The schema cannot change while files are not proved: a proof reads the log's side of all of
        them in one schema. Raise ConfigError if that schema cannot be read here.
        """
        schema = wanted(self.schemas, compact=compact)
        if self.state.form == schema.number:
            return True
        if any(one.proved_to < one.to for one in self.state.queues):
            if foreign := self.schema().foreign:
                raise ConfigError(
                    f"{self.layout.path} has messages without a proof in files with "
                    f"{', '.join(f'{name} of the type {kind}' for name, kind in foreign.items())}, "
                    "which messages do not have here: run the CometMQ that archived them once more, "
                    "and then this one"
                )
            return False
        listed = self.state.schemas
        if schema.number not in self.schemas:
            listed = (*listed, schema)
        state = replace(self.state, form=schema.number, schemas=listed)
        self.commit(Commit("nothing", (), state))
        return True

    def gaps_noted(self, directory: Path | None) -> tuple[Gap, ...]:
        """Return the gaps noted in a directory named by `new_gap_log`, and remove the directory."""
        if directory is None:
            return ()
        gaps = noted_gaps(directory)
        shutil.rmtree(directory, ignore_errors=True)
        return gaps

    def commit(self, commit: Commit) -> None:
        """Sync the staged files, write the commit, and carry it out.

        Staged files reach the disk before anything says that they exist. Raise ConfigError if
        another archive has taken over.
        """
        number = self.state.commits + 1
        state = replace(commit.state, commits=number, version=VERSIONS[-1])
        commit = replace(commit, state=state)
        if commit.staged:
            kept = self._kept(commit) if commit.moves == "replaced" else {}
            self.layout.path.files.settle(str(self._staged(commit)), kept)
        self._announce(commit)
        self._carry_out(commit)
        self.after_commit()

    def commits_after(self, number: int) -> list[Commit] | None:
        """Return the commits behind a number in their order, None if one of them is not kept any more."""
        decode = msgspec.json.Decoder(Commit).decode
        found = []
        for later in range(number + 1, self.state.commits + 1):
            commit = load(self._numbered(later), decode)
            if commit is None:
                return None
            found.append(commit)
        return found

    # Inside

    def _lock_in(self, stack: ExitStack) -> None:
        """Hold the archive's lock until the stack is closed. Raise OSError."""
        if (data := self.layout.data.local) is not None:
            make_directories(data, SHARED_DIRECTORY)
        self._hold = stack.enter_context(held(self.layout.lock))

    def _kept(self, commit: Commit) -> dict[str, str]:
        """Return where files have to stand in staging that a compaction keeps, by their paths."""
        return {
            str(self.layout.data_of(one.key) / file.name): str(
                self._staged(commit) / one.key.directory / file.name
            )
            for one in commit.manifests
            for file in one.files
            if file.batch != _batch(commit)
        }

    def _announce(self, commit: Commit) -> None:
        """Write a commit under its number, if nobody else has done so."""
        path = self._numbered(commit.state.commits)
        content = msgspec.json.encode(commit)
        self._hold()
        try:
            path.create(content)
        except FileExistsError as error:
            # An object store may repeat a request whose answer was lost.
            if path.read_bytes() != content:
                raise ConfigError(
                    f"another archive has committed {path}: let one archive at a time work in "
                    f"{self.layout.path}, and start this one again"
                ) from error
        try:
            self._hold()
        except ConfigError:
            # An archive that took over may have removed the staged files, and must not find this
            # commit.
            path.remove()
            raise

    def _recover(self) -> None:
        layout = self.layout
        self.state = layout.load_state()
        decode = msgspec.json.Decoder(Commit).decode
        if self._finish(layout.pending, decode):
            layout.pending.remove()
        first = self._numbered(1)
        if not layout.state.exists() and set(layout.commits.sizes()) - {first.name}:
            self._refuse_without_state()
        while self._finish(self._numbered(self.state.commits + 1), decode):
            pass
        layout.staging.remove()
        if not layout.state.exists() and layout.data.sizes():
            self._refuse_without_state()
        self.state = layout.load_state()
        self.manifests = {manifest.key: manifest for manifest in layout.load_manifests()}
        check_readable(layout.path, self.schemas.values())

    def _refuse_without_state(self) -> NoReturn:
        layout = self.layout
        raise ConfigError(
            f"{layout.data} holds files, but {layout.state.name} is not beside it: restore that from "
            "a copy of the archive, or name another path"
        )

    def _finish(self, path: Location, decode: Callable[[bytes], Commit]) -> bool:
        """Carry out the commit in a file, if there is one, and return whether that was done."""
        commit = load(path, decode)
        if commit is None:
            return False
        if self._is_void(commit):
            # Another archive took over before this one committed, and removed its staged files. Nothing
            # of the commit was carried out, so its messages are archived again.
            path.remove()
            return False
        self._carry_out(commit)
        return True

    def _is_void(self, commit: Commit) -> bool:
        """Return whether files of a commit are gone of which none is in data."""
        staged = self._staged(commit)
        missing = moved = False
        for manifest in commit.manifests:
            there = self.layout.data_of(manifest.key).sizes()
            waiting = (staged / manifest.key.directory).sizes()
            for file in new_files(commit, manifest):
                moved |= file in there
                missing |= file not in there and commit.sources.get(file, file) not in waiting
        return missing and not moved

    def _carry_out(self, commit: Commit) -> None:
        layout = self.layout
        for at, manifest in enumerate(commit.manifests):
            self._hold()
            self._move_files(commit, manifest)
            layout.manifest_of(manifest.key).write(msgspec.json.encode(manifest))
            self.manifests[manifest.key] = manifest
            if commit.removed:
                old = layout.data_of(manifest.key)
                old.files.remove_all(str(old / name) for name in commit.removed[at])
        self._hold()
        if commit.safe is not None:
            layout.safe.write(msgspec.json.Encoder().encode_lines(commit.safe))
        if commit.gaps:
            lines = msgspec.json.Encoder().encode_lines(commit.gaps)
            (layout.gaps / f"{batch_name(_batch(commit))}.json").write(lines)
        layout.state.write(msgspec.json.encode(commit.state))
        self.state = commit.state
        if (unneeded := commit.state.commits - _KEPT_COMMITS) > 0:
            self._numbered(unneeded).remove()
        if commit.staged:
            self._staged(commit).remove()
        if commit.gaps:
            self._fold_gaps(_batch(commit))

    def _fold_gaps(self, number: int) -> None:
        """Write the gaps of all files into one, and then remove the others.

        A reader of gaps in between, or after a kill, finds some of them twice, and counts them
        once. No commit writes a file of this name, so that one which is carried out again spoils
        nothing.
        """
        old = self.layout.gap_files()
        if len(old) <= _MOST_GAP_FILES:
            return
        folded = self.layout.gaps / f"folded-{number:08d}.json"
        self._hold()
        folded.write(msgspec.json.Encoder().encode_lines(self.layout.load_gaps()))
        for path in old:
            if path != folded:
                path.remove()

    def _staged(self, commit: Commit) -> Location:
        return self.layout.staging / commit.staged

    def _numbered(self, number: int) -> Location:
        return self.layout.commits / f"{number:020d}.json"

    def _move_files(self, commit: Commit, manifest: Manifest) -> None:
        """Bring the files of a manifest from staging into data, those that are not there yet."""
        to = self.layout.data_of(manifest.key)
        staged = self._staged(commit) / manifest.key.directory
        names = new_files(commit, manifest)
        moves = {name: str(staged / commit.sources.get(name, name)) for name in names}
        if commit.moves == "files":
            to.files.move_into(str(to), moves)
        elif commit.moves != "nothing":
            whole = [file.name for file in manifest.files]
            to.files.replace(str(to), str(staged), moves, whole)


def new_files(commit: Commit, manifest: Manifest) -> list[str]:
    """Return the files of a manifest that a commit brings into data."""
    if commit.moves == "nothing":
        return []
    return [file.name for file in manifest.files if file.batch == _batch(commit)]


def _batch(commit: Commit) -> int:
    """Return the number of the batch that a commit adds, if it adds files."""
    return commit.state.next_batch - 1


def batch_name(number: int) -> str:
    """Return the prefix of the names of a batch's files."""
    return f"b{number:08d}"

"""Change an archive by commits: each takes effect as a whole or not at all.

A commit is written to `_pending.json` with everything that will be true after it, and counts from
then on. It is then carried out in steps that may each be repeated (move files from `_staging` into
`data`, write manifests and state), and `_pending.json` is removed. Whoever opens the archive next
carries out the commit of a killed process, and removes what else is in `_staging`.

On remote file systems a commit is a file of its own in `_commits`, numbered in order and created
only if there is none of that number. So of two archives that take themselves for the only one, one
commits and the other one fails. Names cannot be exchanged there: a compaction moves the new files
into `data`, writes the manifest, and then removes the files that the new ones stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

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
from cometmq.pipelines.archive.lease import Lease
from cometmq.pipelines.archive.schemas import Schema, check_readable, wanted
from cometmq.pipelines.locations import (
    Location,
    RemotePath,
    move_all,
    remove_all,
    remove_tree,
    sizes_below,
    write_whole,
)
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS
from cometmq.runtime.state_files.durable import exchange_names, sync
from cometmq.runtime.state_files.file_lock import locked
from cometmq.spark.gaps import Gap, noted_gaps

# So many files with gaps are folded into one: every proof reads all of them.
_MOST_GAP_FILES: Final = 64
# So many commits of a remote archive are kept after they were carried out, so that an archive that
# slept while others worked finds its number taken.
_KEPT_COMMITS: Final = 64


class Commit(msgspec.Struct, frozen=True):
    """A commit holds what is true after it. `moves` says what is moved from staging into data:

    files: the files of the batch `state.next_batch - 1` move into the existing directories.
    directories: a directory in `staged` replaces the directory in data, for each of `manifests`.
    replaced: the files of that batch move as in `files`, and then `removed` are removed from data.
    nothing: only manifests, state and marks change.

    sources: the names in staging of files that have another name there.
    removed: names of files by the index of their manifest in `manifests`.
    """

    moves: Literal["files", "directories", "replaced", "nothing"]
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

    def __init__(self, path: str | Location, gap_logs: Path | None = None) -> None:
        self.layout = Layout(path)
        self._gap_logs = gap_logs
        # Raises if another archive has taken over, which only remote file systems allow.
        self._hold: Callable[[], None] = lambda: None
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
                self._lock_in(stack)
            except BlockingIOError as error:
                raise ConfigError(
                    f"another archive is at work in path {str(layout.path)!r}: wait for it or stop "
                    "it, or give this one another path"
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"path is {str(layout.path)!r}, where no archive can be made: "
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
        if isinstance(self.layout.staging, Path):
            self.layout.staging.mkdir(exist_ok=True)
        return self.layout.staging / SYSTEM_RANDOMNESS.token_hex(16)

    def new_gap_log(self) -> Path | None:
        """Return a directory name for a job to note gaps in, None if they are to fail the job."""
        if isinstance(self.layout.path, Path):
            where = self.new_staging()
            assert isinstance(where, Path)
            return where
        return self._gap_logs and self._gap_logs / SYSTEM_RANDOMNESS.token_hex(16)

    @property
    def schemas(self) -> dict[int, Schema]:
        return self.state.all_schemas()

    def schema(self, number: int | None = None) -> Schema:
        """Return the schema of a number, of new files if none is given."""
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
        """Have the next files be of this kind, and say whether they are.

        While something is not proved, the schema stays as it is: a proof reads the log's side of all
        that is not proved in one schema. Raise ConfigError if that cannot be read here.
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
        version = max(self.state.version, min(schema.number, VERSIONS[-1]))
        state = replace(self.state, version=version, form=schema.number, schemas=listed)
        self.commit(Commit("nothing", (), state))
        return True

    def gaps_noted(self, directory: Path | None) -> tuple[Gap, ...]:
        """Return the gaps noted in a directory named by `new_gap_log`, and remove the directory."""
        if directory is None:
            return ()
        gaps = noted_gaps(directory)
        remove_tree(directory)
        return gaps

    def commit(self, commit: Commit) -> None:
        """Sync the staged files, write the commit, and carry it out.

        Staged files reach the disk before anything says that they exist. Raise ConfigError if
        another archive has taken over.
        """
        number = self.state.commits + 1
        commit = replace(commit, state=replace(commit.state, commits=number))
        staged = self._staged(commit)
        if isinstance(staged, Path):
            if commit.staged:
                for path in sorted(staged.rglob("*.parquet")):
                    sync(path)
            write_whole(self.layout.pending, msgspec.json.encode(commit))
        else:
            self._announce(commit)
        self._carry_out(commit)

    # Inside

    def _lock_in(self, stack: ExitStack) -> None:
        """Hold the archive's lock until the stack is closed. Raise OSError."""
        lock = self.layout.lock
        if isinstance(lock, RemotePath):
            self._hold = stack.enter_context(Lease(lock)).check
            return
        (lock.parent / "data").mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(lock))

    def _announce(self, commit: Commit) -> None:
        """Write a commit under its number, if nobody else has done so."""
        path = self._numbered(commit.state.commits)
        assert isinstance(path, RemotePath)
        content = msgspec.json.encode(commit)
        self._hold()
        try:
            path.files.create(str(path), content)
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
            # Whoever took over may have removed what is staged, and must not find this.
            path.unlink()
            raise

    def _recover(self) -> None:
        layout = self.layout
        decode = msgspec.json.Decoder(Commit).decode
        pending = load(layout.pending, decode)
        if pending is not None:
            self._carry_out(pending)
        if isinstance(layout.path, RemotePath):
            self._recover_remote(decode)
        remove_tree(layout.staging)
        if not layout.state.exists() and sizes_below(layout.data):
            raise ConfigError(
                f"{layout.data} holds files, but {layout.state.name} is not beside it: restore that "
                "from a copy of the archive, or name another path"
            )
        self.state = layout.load_state()
        self.manifests = {manifest.key: manifest for manifest in layout.load_manifests()}
        check_readable(layout.path, self.schemas.values())

    def _recover_remote(self, decode: Callable[[bytes], Commit]) -> None:
        """Carry out the commits that follow the state, which is one at most."""
        self.state = self.layout.load_state()
        while True:
            path = self._numbered(self.state.commits + 1)
            commit = load(path, decode)
            if commit is None:
                return
            if self._is_void(commit):
                # Its archive was taken over from before it committed, and what it had staged was
                # removed. Nothing of it was carried out, so its messages are archived again.
                path.unlink()
                return
            self._carry_out(commit)

    def _is_void(self, commit: Commit) -> bool:
        """Return whether files of a commit are gone of which none is in data."""
        staged = self._staged(commit)
        missing = moved = False
        for manifest in commit.manifests:
            there = sizes_below(self.layout.data_of(manifest.key))
            waiting = sizes_below(staged / manifest.key.directory)
            for file in new_files(commit, manifest):
                moved |= file in there
                missing |= file not in there and commit.sources.get(file, file) not in waiting
        return missing and not moved

    def _carry_out(self, commit: Commit) -> None:
        layout = self.layout
        for at, manifest in enumerate(commit.manifests):
            self._hold()
            if commit.moves in ("files", "replaced"):
                self._move_files(commit, manifest)
            elif commit.moves == "directories":
                self._exchange(commit, manifest)
            write_whole(layout.manifest_of(manifest.key), msgspec.json.encode(manifest))
            self.manifests[manifest.key] = manifest
            if commit.removed:
                self._remove(manifest, commit.removed[at])
        self._hold()
        if commit.safe is not None:
            write_whole(layout.safe, msgspec.json.Encoder().encode_lines(commit.safe))
        if commit.gaps:
            name = f"{batch_name(commit.state.next_batch - 1)}.json"
            write_whole(layout.gaps / name, msgspec.json.Encoder().encode_lines(commit.gaps))
        write_whole(layout.state, msgspec.json.encode(commit.state))
        self.state = commit.state
        if isinstance(layout.path, Path):
            layout.pending.unlink()
        elif (old := commit.state.commits - _KEPT_COMMITS) > 0:
            self._numbered(old).unlink()
        if commit.staged:
            remove_tree(self._staged(commit))
        if commit.gaps:
            self._fold_gaps(commit.state.next_batch - 1)

    def _fold_gaps(self, number: int) -> None:
        """Write the gaps of all files into one, and then remove the others.

        Whoever loads gaps in between, or after a kill, finds some of them twice, and counts them once.
        No commit writes a file of this name, so that one which is carried out again spoils nothing.
        """
        old = self.layout.gap_files()
        if len(old) <= _MOST_GAP_FILES:
            return
        folded = self.layout.gaps / f"folded-{number:08d}.json"
        self._hold()
        write_whole(folded, msgspec.json.Encoder().encode_lines(self.layout.load_gaps()))
        for path in old:
            if path != folded:
                path.unlink()

    def _staged(self, commit: Commit) -> Location:
        return self.layout.staging / commit.staged

    def _numbered(self, number: int) -> Location:
        return self.layout.commits / f"{number:020d}.json"

    def _move_files(self, commit: Commit, manifest: Manifest) -> None:
        to = self.layout.data_of(manifest.key)
        staged = self._staged(commit) / manifest.key.directory
        if isinstance(to, RemotePath):
            there = sizes_below(to)
            assert isinstance(staged, RemotePath), "staging is where data is"
            move_all(
                (staged / commit.sources.get(name, name), to / name)
                for name in new_files(commit, manifest)
                if name not in there
            )
            return
        assert isinstance(staged, Path), "staging is where data is"
        to.mkdir(parents=True, exist_ok=True)
        for name in new_files(commit, manifest):
            if not (to / name).exists():
                (staged / name).rename(to / name)
        sync(to)

    def _remove(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Remove files of a remote archive that others stand for now."""
        directory = self.layout.data_of(manifest.key)
        assert isinstance(directory, RemotePath), "directories are exchanged on this machine"
        remove_all(directory / name for name in names)

    def _exchange(self, commit: Commit, manifest: Manifest) -> None:
        """Exchange a directory in staging with the one in data, unless an earlier attempt did so.

        The files that the manifest names lie in staging before the exchange and in data after it.
        """
        ours = self.layout.data_of(manifest.key)
        staged = self._staged(commit) / manifest.key.directory
        assert isinstance(ours, Path), "remote directories are not exchanged"
        assert isinstance(staged, Path), "remote directories are not exchanged"
        if staged.exists() and not all((ours / file.name).exists() for file in manifest.files):
            exchange(staged, ours)
            sync(ours.parent)


def new_files(commit: Commit, manifest: Manifest) -> list[str]:
    """Return the files of a manifest that a commit brings into data."""
    if commit.moves == "nothing":
        return []
    return [file.name for file in manifest.files if file.batch == commit.state.next_batch - 1]


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

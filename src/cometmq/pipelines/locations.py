"""Name files and directories of this machine and of remote file systems alike.

A `Location` is a name in some `Files`: `LocalFiles` are on this machine, or mounted there;
`RemoteFiles` are reached by requests, as in an object store. Object stores have no directories and
rename nothing: a file appears as a whole by `write` or `create`, and `move` may be a copy and a
removal.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import total_ordering
from pathlib import Path, PurePath
from typing import Final, Self

from cometmq.pipelines.s3_access import S3Access
from cometmq.runtime.state_files.durable import (
    SHARED_DIRECTORY,
    create_atomically,
    exchange_names,
    make_directories,
    sync,
    write_atomically,
)

_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*(/.*)?", re.IGNORECASE)
# A request to an object store takes some 10 to 50 ms, of which nearly all is waiting.
_SIDE_BY_SIDE: Final = 16


class Files(ABC):
    """A file system. Paths are names of this machine or URIs; errors are OSErrors."""

    @abstractmethod
    def read(self, path: str, /) -> bytes:
        """Return the contents of a file. Raise FileNotFoundError."""

    @abstractmethod
    def write(self, path: str, data: bytes, /) -> None:
        """Write a file, which replaces one of that name. Readers see all of it or the one before."""

    @abstractmethod
    def create(self, path: str, data: bytes, /) -> None:
        """Write a file as a whole if there is none of that name, else raise FileExistsError.

        Of several callers one succeeds.
        """

    @abstractmethod
    def remove(self, path: str, /) -> None:
        """Remove a file, or all below a directory, if it is there."""

    @abstractmethod
    def sizes(self, directory: str, /) -> dict[str, int]:
        """Return the sizes in bytes of all files below a directory, by their names relative to
        it.
        """

    @abstractmethod
    def exists(self, path: str, /) -> bool:
        """Return whether there is a file, or anything below a directory of that name."""

    @abstractmethod
    def local(self, path: str, /) -> Path | None:
        """Return the path as programs of this machine know it, None if they reach it by requests."""

    @abstractmethod
    def read_all(self, paths: Iterable[str], /) -> list[bytes]:
        """Read several files. Raise FileNotFoundError."""

    @abstractmethod
    def remove_all(self, paths: Iterable[str], /) -> None:
        """Remove several files. Ignore names without a file."""

    # Staged files, and how they get to their places

    @abstractmethod
    def named(self, path: str, name: str, /) -> str:
        """Give a staged file another name if that copies nothing; return the name that it has now."""

    @abstractmethod
    def settle(self, staged: str, kept: Mapping[str, str], /) -> None:
        """Have all below a staged directory survive a loss of power.

        kept: files that are staged beside the new ones for `replace`, by the paths of their originals.
        """

    @abstractmethod
    def move_into(self, directory: str, moves: Mapping[str, str], /) -> None:
        """Move staged files into a directory, by the names that they get there.

        A file that is there already is left alone, so that a repetition goes on where the attempt
        before it ended.
        """

    @abstractmethod
    def replace(
        self, directory: str, staged: str, moves: Mapping[str, str], names: Collection[str], /
    ) -> None:
        """Have a directory hold the files `names`, some of which `moves` brings from `staged`.

        Where directories can be exchanged, it then holds nothing else. May be repeated.
        """


class LocalFiles(Files):
    """The file systems of this machine. The effect of a method survives a loss of power."""

    def read(self, path: str, /) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes, /) -> None:
        make_directories(Path(path).parent, SHARED_DIRECTORY)
        write_atomically(Path(path), data)

    def create(self, path: str, data: bytes, /) -> None:
        make_directories(Path(path).parent, SHARED_DIRECTORY)
        create_atomically(Path(path), data)

    def remove(self, path: str, /) -> None:
        """Remove a file, or a directory as far as possible."""
        if Path(path).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    def sizes(self, directory: str, /) -> dict[str, int]:
        found = {}
        for at, _, names in os.walk(directory):
            for name in names:
                path = Path(at, name)
                with suppress(FileNotFoundError):  # an archive that is at work removes files
                    found[path.relative_to(directory).as_posix()] = path.stat().st_size
        return found

    def exists(self, path: str, /) -> bool:
        return Path(path).exists()

    def local(self, path: str, /) -> Path | None:
        return Path(path)

    def read_all(self, paths: Iterable[str], /) -> list[bytes]:
        return [Path(path).read_bytes() for path in paths]

    def remove_all(self, paths: Iterable[str], /) -> None:
        for path in paths:
            Path(path).unlink(missing_ok=True)

    def named(self, path: str, name: str, /) -> str:
        written = Path(path)
        written.rename(written.with_name(name))
        # Hadoop's checksum bears the file's old name, so no reader would use it.
        written.with_name(f".{written.name}.crc").unlink(missing_ok=True)
        return name

    def settle(self, staged: str, kept: Mapping[str, str], /) -> None:
        for original, path in kept.items():
            _link(Path(original), Path(path))
        if not Path(staged).exists():
            return
        for at, _, names in os.walk(staged):
            for name in names:
                if not _is_hidden(name):
                    sync(Path(at, name))
            sync(Path(at))
        # The job that staged the files has made the directory, and perhaps the one around it.
        for directory in Path(staged).parents[:2]:
            sync(directory)

    def move_into(self, directory: str, moves: Mapping[str, str], /) -> None:
        to = Path(directory)
        make_directories(to, SHARED_DIRECTORY)
        for name, path in moves.items():
            if not (to / name).exists():
                Path(path).rename(to / name)
        sync(to)

    def replace(
        self, directory: str, staged: str, _moves: Mapping[str, str], names: Collection[str], /
    ) -> None:
        """Exchange the two directories, unless an earlier attempt did so.

        All files lie in `staged` before the exchange and in `directory` after it.
        """
        ours = Path(directory)
        if Path(staged).exists() and not all((ours / name).exists() for name in names):
            exchange(Path(staged), ours)
            sync(ours.parent)


class RemoteFiles(Files):
    """A file system that is reached by requests, many of them side by side."""

    @abstractmethod
    def move(self, from_: str, to: str, /) -> None:
        """Give a file another name, which no file has. It appears there as a whole.

        If the process dies, the file may have both names. Raise FileNotFoundError.
        """

    def local(self, _path: str, /) -> Path | None:
        return None

    def s3_access(self, path: str, /) -> S3Access | None:
        """Return the access of other libraries to this path in S3, None in other file systems.

        Credentials may be temporary: call this again before each use. Raise ConfigError if other
        libraries cannot reach the path.
        """
        del path
        return None

    def read_all(self, paths: Iterable[str], /) -> list[bytes]:
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "read-remote") as pool:
            return list(pool.map(self.read, paths))

    def remove_all(self, paths: Iterable[str], /) -> None:
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "remove-remote") as pool:
            list(pool.map(self.remove, paths))

    def named(self, path: str, _name: str, /) -> str:
        """Leave the name, because a renaming may be a copy: the file gets it on its way to data."""
        return path.rpartition("/")[2]

    def settle(self, staged: str, kept: Mapping[str, str], /) -> None:
        """Do nothing: a file that is there stays there, and `replace` leaves the others in place."""

    def move_into(self, directory: str, moves: Mapping[str, str], /) -> None:
        there = self.sizes(directory)
        missing = {name: path for name, path in moves.items() if name not in there}
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "move-remote") as pool:
            targets = (f"{directory}/{name}" for name in missing)
            list(pool.map(self.move, missing.values(), targets))

    def replace(
        self, directory: str, _staged: str, moves: Mapping[str, str], _names: Collection[str], /
    ) -> None:
        """Move the new files beside those that they stand for, which are removed later."""
        self.move_into(directory, moves)


@total_ordering
class Location:
    """A file or directory in some `files`, by its path or URI."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return self._path or "/"

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and self._path == other._path

    def __lt__(self, other: Location) -> bool:
        return self._path < other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __truediv__(self, below: str | PurePath) -> Self:
        return type(self)(self.files, f"{self._path}/{below}")

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return type(self)(self.files, self._path.rpartition("/")[0])

    @property
    def local(self) -> Path | None:
        """The path as programs of this machine know it, None if they reach it by requests."""
        return self.files.local(str(self))

    def exists(self) -> bool:
        return self.files.exists(str(self))

    def read_bytes(self) -> bytes:
        return self.files.read(str(self))

    def write(self, data: bytes) -> None:
        """Write the file as a whole or not at all. Raise OSError; the file is then as before."""
        self.files.write(str(self), data)

    def create(self, data: bytes) -> None:
        """Write the file as a whole. Raise FileExistsError if there is one."""
        self.files.create(str(self), data)

    def remove(self) -> None:
        """Remove the file, or all below the directory, if it is there."""
        self.files.remove(str(self))

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of all files below the directory, by their names relative to
        it, in order.

        Files with a leading dot or underscore anywhere in their names are left out: no reader takes
        them for data.
        """
        found = self.files.sizes(str(self))
        return {
            name: found[name] for name in sorted(found) if not any(map(_is_hidden, name.split("/")))
        }


def is_uri(path: str) -> bool:
    """Return whether a path names a file system, as in s3a://bucket/archive."""
    return _URI.fullmatch(path) is not None


def located(path: str | os.PathLike[str] | Location) -> Location:
    """Return the location of a path of this machine; a location stays as it is."""
    return path if isinstance(path, Location) else Location(LocalFiles(), str(Path(path)))


def contents(paths: Iterable[Location]) -> list[bytes]:
    """Read several files of a file system. Raise OSError."""
    listed = list(paths)
    return listed[0].files.read_all(map(str, listed)) if listed else []


@contextmanager
def readable_here(path: Location) -> Iterator[Path]:
    """Yield a path by which libraries that know no remote files can read this one."""
    if (local := path.local) is not None:
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="cometmq-file-") as directory:
        copy = Path(directory, path.name)
        copy.write_bytes(path.read_bytes())
        yield copy


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


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _link(from_: Path, to: Path) -> None:
    try:
        os.link(from_, to)
    except OSError:  # a file system without hard links
        shutil.copy2(from_, to)

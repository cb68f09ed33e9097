"""Name files and directories of this machine and of remote file systems alike.

A `Path` is on this machine, or mounted there. A `RemotePath` is in a file system that is reached by
requests, such as an object store; it has the methods of `Path` that an archive needs. Object stores
have no directories and rename nothing: a file appears as a whole by `write` or `create`, and
`move` may be a copy and a removal.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import total_ordering
from pathlib import Path, PurePath
from typing import Final, Protocol, Self

from cometmq.runtime.state_files.durable import write_atomically

_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*(/.*)?", re.IGNORECASE)
# A request to an object store takes some 10 to 50 ms, of which nearly all is waiting.
_SIDE_BY_SIDE: Final = 16


class RemoteFiles(Protocol):
    """A file system that is reached by requests. Paths are URIs; errors are OSErrors."""

    def read(self, path: str, /) -> bytes:
        """Return what a file holds. Raise FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes, /) -> None:
        """Write a file, which replaces one of that name. Readers see all of it or the one before."""
        ...

    def create(self, path: str, data: bytes, /) -> None:
        """Write a file as a whole if there is none of that name, else raise FileExistsError.

        Of several callers one succeeds.
        """
        ...

    def move(self, from_: str, to: str, /) -> None:
        """Give a file another name, which no file has. It appears there as a whole.

        If the process dies, the file may have both names. Raise FileNotFoundError.
        """
        ...

    def remove(self, path: str, /) -> None:
        """Remove a file, or all below a directory, if it is there."""
        ...

    def sizes(self, directory: str, /) -> dict[str, int]:
        """Return the bytes of all files below a directory, by their names from there on."""
        ...

    def exists(self, path: str, /) -> bool:
        """Return whether there is a file, or anything below a directory of that name."""
        ...


@total_ordering
class RemotePath:
    """A file or directory in a remote file system."""

    def __init__(self, files: RemoteFiles, uri: str) -> None:
        self.files = files
        self._uri = uri.rstrip("/")

    def __str__(self) -> str:
        return self._uri

    def __repr__(self) -> str:
        return f"RemotePath({self._uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._uri == other._uri

    def __lt__(self, other: RemotePath) -> bool:
        return self._uri < other._uri

    def __hash__(self) -> int:
        return hash(self._uri)

    def __truediv__(self, below: str | PurePath) -> Self:
        name = below.as_posix() if isinstance(below, PurePath) else below
        return type(self)(self.files, f"{self._uri}/{name}")

    @property
    def name(self) -> str:
        return self._uri.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return type(self)(self.files, self._uri.rpartition("/")[0])

    def exists(self) -> bool:
        return self.files.exists(self._uri)

    def is_dir(self) -> bool:
        """Return whether there is anything of this name, which is asked of directories only."""
        return self.exists()

    def read_bytes(self) -> bytes:
        return self.files.read(self._uri)

    def unlink(self) -> None:
        self.files.remove(self._uri)


Location = Path | RemotePath


def is_uri(path: str) -> bool:
    """Return whether a path names a file system, as in s3a://bucket/archive."""
    return _URI.fullmatch(path) is not None


def write_whole(path: Location, data: bytes) -> None:
    """Write a file as a whole or not at all. Raise OSError; the file is then as before."""
    if isinstance(path, RemotePath):
        path.files.write(str(path), data)
    else:
        write_atomically(path, data)


def remove_tree(path: Location) -> None:
    """Remove a directory as far as possible, if it is there."""
    if isinstance(path, RemotePath):
        path.files.remove(str(path))
    else:
        shutil.rmtree(path, ignore_errors=True)


def sizes_below(directory: Location) -> dict[str, int]:
    """Return the bytes of all files below a directory, by their names from there on, in order.

    Files with a leading dot or underscore anywhere in their names are left out: no reader takes
    them for data.
    """
    if isinstance(directory, RemotePath):
        found = directory.files.sizes(str(directory))
    else:
        found = dict(_local_sizes(directory))
    return {
        name: found[name]
        for name in sorted(found)
        if not any(part.startswith((".", "_")) for part in name.split("/"))
    }


def _local_sizes(directory: Path) -> Iterator[tuple[str, int]]:
    for at, _, names in os.walk(directory):
        here = Path(at)
        for name in names:
            path = here / name
            with suppress(FileNotFoundError):  # an archive that is at work removes files
                yield path.relative_to(directory).as_posix(), path.stat().st_size


def contents(paths: Iterable[Location]) -> list[bytes]:
    """Read several files, remote ones side by side. Raise OSError."""
    listed = list(paths)
    if not any(isinstance(path, RemotePath) for path in listed):
        return [path.read_bytes() for path in listed]
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "read-remote") as pool:
        return list(pool.map(lambda path: path.read_bytes(), listed))


def move_all(moves: Iterable[tuple[RemotePath, RemotePath]]) -> None:
    """Give remote files other names, several at a time. Raise OSError."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "move-remote") as pool:
        list(pool.map(lambda one: one[0].files.move(str(one[0]), str(one[1])), moves))


def remove_all(paths: Iterable[RemotePath]) -> None:
    """Remove remote files, several at a time. Raise OSError."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "remove-remote") as pool:
        list(pool.map(RemotePath.unlink, paths))


@contextmanager
def on_this_machine(path: Location) -> Iterator[Path]:
    """Yield a path by which libraries that know no remote files can read this one."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="cometmq-file-") as directory:
        local = Path(directory, path.name)
        local.write_bytes(path.read_bytes())
        yield local

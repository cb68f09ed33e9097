"""Keep the files that published snapshots name.

Tables name files in `_tables/files`. On this machine these are hard links to the files in `data`: the same
file under a second name, at no cost. S3 has no hard links, so it makes copies there itself. A compaction may
then remove a file from `data` while readers of an old snapshot still need it, and a tool that removes files
from a table removes none from the archive. If a file system of this machine has no hard links, files are
copied, too.

After a file has left the archive, its link stays for as long as the tables' history.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.archive.layout import Hour, Layout, load
from cometmq.pipelines.archive.tables.footers import Footer, read_footer
from cometmq.pipelines.locations import Location, RemoteFiles
from cometmq.pipelines.s3_access import S3Access
from cometmq.runtime.state_files.durable import SHARED_DIRECTORY, make_directories, sync

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

log = get_logger(__name__)

# URIs and Delta's log would escape a percent sign once more. No topic's name has a tilde.
_SAFE_ESCAPE: Final = "~"
# A request to S3 mostly waits, so many run at a time.
_SIDE_BY_SIDE: Final = 16


def link_name(hour: Hour, name: str) -> str:
    """Return a file's name below `_tables/files`, in letters that no URI escapes."""
    topic = quote(hour.topic, safe="").replace("%", _SAFE_ESCAPE)
    return f"{topic}/{hour.hour}/{name}"


class Links(ABC):
    """The links of a table to the files of an archive. They lie in `directory`, which is `home/files`."""

    def __init__(self, layout: Layout, home: Location) -> None:
        self.directory = home / "files"
        self._layout = layout
        self._retired = home / "retired.json"
        self._there: set[str] | None = None

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI of `directory`, as tables name it."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The path or URI of `directory`, as deltalake takes it."""

    @abstractmethod
    def access(self) -> S3Access | None:
        """Return the present access to `directory`, None if it is on this machine. Raise ConfigError."""

    @abstractmethod
    def footers(self, links: Sequence[str]) -> list[Footer]:
        """Read the figures of files."""

    def make(self, files: Iterable[tuple[Hour, str]]) -> set[str]:
        """Make the missing links of these files, and return the links of all files that are there.

        A file that is gone from `data` gets none; the next proof names it.
        """
        there = self._known()
        wanted = {link_name(hour, name): self._layout.data_of(hour) / name for hour, name in files}
        missing = {link: wanted[link] for link in sorted(wanted.keys() - there)}
        if missing:
            there |= self._made(missing)
        return wanted.keys() & there

    def drop_retired(self, live: set[str], now_ms: int, history_ms: int) -> int:
        """Remove links whose files left the archive longer ago than the history, and return how
        many.

        The time counts from the first call that finds the file gone. Call it only when no table names
        such a file any more.
        """
        decode = msgspec.json.Decoder(dict[str, int]).decode
        known = load(self._retired, decode) or {}
        there = self._known()
        retired = {link: known.get(link, now_ms) for link in sorted(there - live)}
        old = [link for link, since_ms in retired.items() if since_ms + history_ms <= now_ms]
        self.directory.files.remove_all(str(self.directory / link) for link in old)
        for link in old:
            there.discard(link)
            del retired[link]
        if retired != known:
            self._retired.write(msgspec.json.encode(retired))
        return len(old)

    # Inside

    @abstractmethod
    def _made(self, missing: Mapping[str, Location]) -> set[str]:
        """Make links to these files, and return the names of the links that exist now."""

    @abstractmethod
    def _listed(self) -> Iterable[str]:
        """Return the names of all files at the depth of links."""

    def _known(self) -> set[str]:
        if self._there is None:
            self._there = set(self._listed())
        return self._there


class HardLinks(Links):
    """Links on this machine."""

    @property
    def uri(self) -> str:
        return self._path.as_uri()

    @property
    def place(self) -> str:
        return str(self._path)

    def access(self) -> None:
        return None

    def footers(self, links: Sequence[str]) -> list[Footer]:
        return [read_footer(str(self._path / link)) for link in links]

    # Inside

    @property
    def _path(self) -> Path:
        path = self.directory.local
        assert path is not None, "links_of has looked"
        return path

    def _made(self, missing: Mapping[str, Location]) -> set[str]:
        made, directories = set(), set()
        for link, original in missing.items():
            path = self._path / link
            make_directories(path.parent, SHARED_DIRECTORY)
            try:
                _link(Path(str(original)), path)
            except FileNotFoundError:
                _warn_of_gone(link)
                continue
            made.add(link)
            directories.add(path.parent)
        for directory in directories:
            sync(directory)
        return made

    def _listed(self) -> Iterable[str]:
        found = self._path.glob("*/*/*.parquet")
        return (path.relative_to(self._path).as_posix() for path in found)


class Copies(Links):
    """Copies in S3, made by S3 itself. Each copy appears as a whole."""

    def __init__(
        self, layout: Layout, home: Location, access: Callable[[], S3Access | None]
    ) -> None:
        super().__init__(layout, home)
        self._ask = access
        self._files: tuple[S3Access, S3FileSystem] | None = None

    @property
    def uri(self) -> str:
        # All engines know the scheme s3, only some know s3a.
        return f"s3://{_in_bucket(self.directory)}"

    @property
    def place(self) -> str:
        return self.uri

    def access(self) -> S3Access:
        found = self._ask()
        assert found is not None, "links_of has looked"
        return found

    def footers(self, links: Sequence[str]) -> list[Footer]:
        files = self._arrow()
        base = _in_bucket(self.directory)
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "read-footers") as pool:
            return list(pool.map(lambda link: read_footer(f"{base}/{link}", files), links))

    # Inside

    def _made(self, missing: Mapping[str, Location]) -> set[str]:
        files = self._arrow()
        base = _in_bucket(self.directory)

        def copy(link: str) -> bool:
            try:
                files.copy_file(_in_bucket(missing[link]), f"{base}/{link}")
            except FileNotFoundError:
                _warn_of_gone(link)
                return False
            return True

        with ThreadPoolExecutor(_SIDE_BY_SIDE, "copy-files") as pool:
            return {
                link for link, made in zip(missing, pool.map(copy, missing), strict=True) if made
            }

    def _listed(self) -> Iterable[str]:
        # With those of topics that begin with an underscore, which `Location.sizes` leaves out.
        return (
            name
            for name in self.directory.files.sizes(str(self.directory))
            if name.endswith(".parquet") and name.count("/") == 2  # topic/hour/file
        )

    def _arrow(self) -> S3FileSystem:
        """Return Arrow's S3 file system, with the present credentials."""
        access = self.access()
        if self._files is None or self._files[0] != access:
            self._files = access, access.of_arrow()
        return self._files[1]


def links_of(layout: Layout, home: Location) -> Links:
    """Return the links of a table with this home. Raise ConfigError for a file system without tables."""
    if home.local is not None:
        return HardLinks(layout, home)
    files = home.files
    if isinstance(files, RemoteFiles) and files.s3_access(str(home)) is not None:
        return Copies(layout, home, lambda: files.s3_access(str(home)))
    raise ConfigError(
        f"publish is given and path is {str(layout.path)!r}: only archives in a directory of this "
        "machine (also a mounted one) or in S3 (s3a://bucket/archive) can have tables; leave publish out"
    )


def _in_bucket(path: Location) -> str:
    """Return the bucket and the key of a URI."""
    parts = urlsplit(str(path), allow_fragments=False)
    return f"{parts.netloc}{parts.path}"


def _warn_of_gone(link: str) -> None:
    log.warning("a file of the archive is gone, so the tables leave it out", file=link)


def _link(original: Path, path: Path) -> None:
    try:
        os.link(original, path)
    except FileNotFoundError:
        raise
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        whole = path.with_suffix(".copy")
        shutil.copy2(original, whole)
        sync(whole)
        whole.rename(path)

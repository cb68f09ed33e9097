"""Keep the files that published snapshots name.

Tables name files in `_tables/files`, which are hard links of those in `data`: the same file under a second
name, at no cost. So a compaction may take a file out of `data` while readers of an old snapshot still
need it, and a table's tool that removes files takes none away from the archive. Where a file system has no
hard links, files are copied.

After a file has left the archive, its link stays for as long as the tables' history.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from cometmq.logs.loggers import get_logger
from cometmq.pipelines.archive.layout import Hour, Layout, load
from cometmq.pipelines.locations import Location
from cometmq.runtime.state_files.durable import SHARED_DIRECTORY, make_directories, sync

log = get_logger(__name__)

# URIs and Delta's log would escape a percent sign once more. No topic's name has a tilde.
_SAFE_ESCAPE: Final = "~"


def link_name(hour: Hour, name: str) -> str:
    """Return a file's name below `_tables/files`, in letters that no URI escapes."""
    topic = quote(hour.topic, safe="").replace("%", _SAFE_ESCAPE)
    return f"{topic}/{hour.hour}/{name}"


class Links:
    """The links of a table to the files of an archive. They lie in `files` below `home`, which is a directory
    on this machine.
    """

    def __init__(self, layout: Layout, home: Location) -> None:
        assert home.local is not None, "checked by the configuration"
        self.directory = home.local / "files"
        self._layout = layout
        self._retired = home / "retired.json"
        self._there: set[str] | None = None

    def path(self, link: str) -> Path:
        return self.directory / link

    def make(self, files: Iterable[tuple[Hour, str]]) -> set[str]:
        """Make the missing links of these files, and return the links of all files that are there.

        A file that is gone from `data` gets none; the next proof names it.
        """
        there = self._known()
        wanted = {link_name(hour, name): (hour, name) for hour, name in files}
        directories = set()
        for link in sorted(wanted.keys() - there):
            hour, name = wanted[link]
            original = self._layout.data_of(hour).local
            assert original is not None
            path = self.path(link)
            make_directories(path.parent, SHARED_DIRECTORY)
            try:
                _link(original / name, path)
            except FileNotFoundError:
                log.warning("a file of the archive is gone, so no table gets it", file=link)
                continue
            there.add(link)
            directories.add(path.parent)
        for directory in directories:
            sync(directory)
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
        for link in old:
            self.path(link).unlink(missing_ok=True)
            there.discard(link)
            del retired[link]
        if retired != known:
            self._retired.write(msgspec.json.encode(retired))
        return len(old)

    def _known(self) -> set[str]:
        if self._there is None:
            found = self.directory.glob("*/*/*.parquet")
            self._there = {path.relative_to(self.directory).as_posix() for path in found}
        return self._there


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

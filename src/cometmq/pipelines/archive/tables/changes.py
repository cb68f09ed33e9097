"""Say how tables have to change for commits of the archive: which files come, and which go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final

from cometmq.pipelines.archive.commits import Archive, Commit, new_files
from cometmq.pipelines.archive.layout import Hour
from cometmq.pipelines.archive.tables.contents import Contents
from cometmq.pipelines.archive.tables.footers import Footer
from cometmq.pipelines.archive.tables.links import Links, link_name

_DAY_LETTERS: Final = len("2026-11-20")


@dataclass(frozen=True)
class TableFile:
    """A file of a table. `link` is its name below the directory of links, `day` that of its messages'
    store time.
    """

    link: str
    topic: str
    day: date
    footer: Footer


@dataclass(frozen=True)
class Change:
    """The change of a table for the commit of a number, or for all commits up to it.

    first: the lowest commit that it stands for.
    """

    commit: int
    first: int
    added: tuple[TableFile, ...]
    removed: tuple[TableFile, ...]

    @property
    def rewrites(self) -> bool:
        """Return whether the same rows stand in other files, as after a compaction."""
        came = sum(file.footer.rows for file in self.added)
        return bool(self.removed) and came == sum(file.footer.rows for file in self.removed)


class Changes:
    """Makes the changes of a table with these contents of an archive."""

    def __init__(self, archive: Archive, contents: Contents, links: Links) -> None:
        self._archive = archive
        self._contents = contents
        self._links = links
        self._known: dict[str, TableFile] = {}

    def one_by_one(self, published: int | None) -> list[Change] | None:
        """Return a change for each commit behind `published` that adds or removes files.

        Return None if commits or files in between are gone: `up_to_now` says what to do then.
        """
        if published is None or published > self._archive.state.commits:
            return None
        commits = self._archive.commits_after(published)
        if commits is None:
            return None
        changes = []
        for commit in commits:
            added, removed = self._files_of(commit)
            if commit.moves == "directories" or not self._are_there((*added, *removed)):
                return None
            if added or removed:
                number = commit.state.commits
                changes.append(Change(number, number, self._files(added), self._files(removed)))
        return changes

    def up_to_now(self, published: int | None, live: Mapping[str, TableFile]) -> Change:
        """Return the change that makes a table with the files `live` equal to the archive."""
        files = self._contents.files(self._archive)
        there = self._links.make(files)
        wanted = {link_name(*one): one for one in files if link_name(*one) in there}
        number = self._archive.state.commits
        first = number if published is None or published >= number else published + 1
        return Change(
            number,
            0 if published is None else first,
            self._files(wanted[link] for link in sorted(wanted.keys() - live.keys())),
            tuple(live[link] for link in sorted(live.keys() - wanted.keys())),
        )

    def forget(self) -> None:
        """Forget the figures of files, so that they do not stay in memory."""
        self._known.clear()

    # Inside

    def _are_there(self, files: Iterable[tuple[Hour, str]]) -> bool:
        listed = list(files)
        return len(self._links.make(listed)) == len({link_name(*one) for one in listed})

    def _files(self, files: Iterable[tuple[Hour, str]]) -> tuple[TableFile, ...]:
        links = {link_name(hour, name): hour for hour, name in files}
        new = [link for link in links if link not in self._known]
        for link, footer in zip(new, self._links.footers(new), strict=True):
            hour = links[link]
            day = date.fromisoformat(hour.hour[:_DAY_LETTERS])
            topic = self._contents.topic or hour.topic
            self._known[link] = TableFile(link, topic, day, footer)
        return tuple(self._known[link] for link in links)

    def _files_of(self, commit: Commit) -> tuple[list[tuple[Hour, str]], list[tuple[Hour, str]]]:
        """Return the files of this table that a commit adds, and those that it removes."""
        manifests = [one for one in commit.manifests if self._contents.has(one.key)]
        added = [(one.key, name) for one in manifests for name in new_files(commit, one)]
        removed = [
            (manifest.key, name)
            for manifest, names in zip(commit.manifests, commit.removed, strict=False)
            if self._contents.has(manifest.key)
            for name in names
        ]
        return added, removed

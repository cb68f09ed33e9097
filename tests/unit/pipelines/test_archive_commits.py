"""Commits of an archive: after a kill at any step, the next process finds all of a commit or
nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.pipelines.dying import MOST_STEPS, die_at

from cometmq.errors import ConfigError
from cometmq.pipelines.archive import commits
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.layout import (
    VERSIONS,
    DataFile,
    Hour,
    Layout,
    Manifest,
    QueueState,
    SafeRange,
    State,
)
from cometmq.pipelines.locations import LocalFiles, Location, contents, exchange
from cometmq.spark.gaps import Gap

HOURS = (Hour("orders", "2026-11-20T16"), Hour("%RETRY%g", "2026-11-20T17"))


def file(name: str, batch: int) -> DataFile:
    return DataFile(name, 4, batch)


def stage(archive: Archive, names: dict[Hour, tuple[str, ...]]) -> Path:
    staged = archive.new_staging().local
    assert staged is not None
    for hour, files in names.items():
        directory = staged / hour.directory
        directory.mkdir(parents=True)
        for name in files:
            (directory / name).write_bytes(b"PAR1")
    return staged


def batch(archive: Archive, number: int) -> None:
    """Write two files for each hour."""
    names = tuple(f"b{number:08d}-{at:04d}.parquet" for at in range(2))
    staged = stage(archive, dict.fromkeys(HOURS, names))
    manifests = tuple(
        replace(
            archive.manifests.get(hour, Manifest(*hour)),
            files=(
                *archive.manifests.get(hour, Manifest(*hour)).files,
                *(file(n, number) for n in names),
            ),
        )
        for hour in HOURS
    )
    queue = QueueState("orders", "broker-a", 0, 0, 100 * number, 0)
    gap = Gap("orders", "broker-a", 0, number, number + 1, "retention")
    archive.commit(
        Commit("files", manifests, State(1, number + 1, (queue,)), staged.name, None, (gap,))
    )


def compaction(archive: Archive) -> None:
    """Compact all files of each hour but the first into one."""
    number = archive.state.next_batch
    name = f"c{number:08d}-0000.parquet"
    staged = stage(archive, dict.fromkeys(HOURS, (name,)))
    before = [archive.manifests[hour] for hour in HOURS]
    manifests = tuple(replace(one, files=(one.files[0], file(name, number))) for one in before)
    old = tuple(tuple(file.name for file in one.files[1:]) for one in before)
    state = replace(archive.state, next_batch=number + 1)
    archive.commit(Commit("replaced", manifests, state, staged.name, removed=old))


def marks(archive: Archive) -> None:
    safe = SafeRange("orders", "broker-a", 0, 0, 100, 99, 1, "2026-11-20T16:31:07Z")
    queues = tuple(replace(queue, proved_to=queue.to) for queue in archive.state.queues)
    archive.commit(Commit("nothing", (), replace(archive.state, queues=queues), safe=(safe,)))


def files_of(layout: Layout) -> dict[Hour, set[str]]:
    return {
        Hour.of(path): {one.name for one in path.iterdir()}
        for path in sorted(Path(str(layout.data)).glob("topic=*/hour=*"))
    }


Snapshot = tuple[State, dict[Hour, set[str]], list[SafeRange], tuple[Gap, ...]]


def snapshot(path: Path) -> Snapshot:
    """Return everything that an archive holds and says after it was opened."""
    with Archive(path) as archive:
        layout = archive.layout
        found = files_of(layout)
        assert found == {
            hour: {one.name for one in manifest.files}
            for hour, manifest in archive.manifests.items()
        }
        assert not layout.pending.exists()
        return archive.state, found, layout.load_safe(), layout.load_gaps()


def do(path: Path, change: Callable[[Archive], None]) -> None:
    with Archive(path) as archive:
        change(archive)


def second(archive: Archive) -> None:
    batch(archive, 2)


@pytest.mark.parametrize("change", [second, compaction, marks], ids=lambda one: str(one.__name__))
def test_a_commit_that_is_killed_anywhere_is_all_there_or_not_at_all(
    tmp_path: Path, change: Callable[[Archive], None]
) -> None:
    first = tmp_path / "first"
    do(first, partial(batch, number=1))
    before = snapshot(first)
    shutil.copytree(first, tmp_path / "last")
    do(tmp_path / "last", change)
    after = snapshot(tmp_path / "last")
    assert before != after
    seen = set()
    for step in range(MOST_STEPS):
        path = tmp_path / str(step)
        shutil.copytree(first, path)
        died = die_at(step, path, partial(do, path, change))
        listed = files_of(Layout(path))
        found = snapshot(path)
        assert found in (before, after)
        # A reader between kill and restart sees nothing that is not committed, and nothing twice.
        for hour, names in listed.items():
            old, new = before[1].get(hour, set()), after[1][hour]
            assert names in (old, new) or old <= names <= new
        seen.add(found == after)
        if not died:
            break
    assert not died
    assert seen == {False, True}


def left_by_0_2(archive: Archive, commit: Commit) -> None:
    """Leave a commit as version 0.2 did: staged, written to `_pending.json`, and no further."""
    layout = archive.layout
    if commit.moves == "replaced":
        for manifest in commit.manifests:
            directory = Path(commit.staged) / manifest.key.directory
            kept = manifest.files[0].name
            os.link(
                Path(str(layout.data_of(manifest.key)), kept),
                Path(str(layout.staging)) / directory / kept,
            )
        commit = replace(commit, moves="directories", removed=())
    layout.pending.write(msgspec.json.encode(commit))


@pytest.mark.parametrize("change", [second, compaction, marks], ids=lambda one: str(one.__name__))
def test_a_commit_that_version_0_2_left_open_is_finished_although_that_is_killed_anywhere(
    tmp_path: Path, change: Callable[[Archive], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    do(first, partial(batch, number=1))
    shutil.copytree(first, tmp_path / "last")
    do(tmp_path / "last", change)
    after = snapshot(tmp_path / "last")
    shutil.rmtree(first / "_commits")
    with monkeypatch.context() as patched:
        patched.setattr(Archive, "commit", left_by_0_2)
        do(first, change)
    for step in range(MOST_STEPS):
        path = tmp_path / str(step)
        shutil.copytree(first, path)
        died = die_at(step, path, partial(do, path, lambda archive: None))
        state, *found = snapshot(path)
        uncounted = replace(state, commits=2, version=VERSIONS[-1])
        assert (uncounted, *found) == after
        do(path, lambda archive: batch(archive, archive.state.next_batch))
        assert snapshot(path)[0].next_batch == after[0].next_batch + 1
        if not died:
            break
    assert step
    assert not died


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "half written"])
def test_a_commit_of_version_0_2_that_cannot_count_is_rolled_back(
    tmp_path: Path, announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(tmp_path, partial(batch, number=1))
    before = snapshot(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Archive, "commit", left_by_0_2)
        do(tmp_path, second)
    pending = Layout(tmp_path).pending.local
    assert pending is not None
    if announced:
        shutil.rmtree(tmp_path / "_staging")  # nothing of it was moved, and nothing can be
    else:
        pending.rename(pending.with_name(f".{pending.name}.4711"))
    assert snapshot(tmp_path) == before
    do(tmp_path, second)
    assert snapshot(tmp_path)[0].next_batch == 3


def test_of_two_archives_on_this_machine_that_both_hold_the_path_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(tmp_path, partial(batch, number=1))
    with Archive(tmp_path) as slow:
        # As on a mounted file system whose server has lost its locks.
        (tmp_path / "_lock").unlink()
        do(tmp_path, second)
        after = snapshot(tmp_path)
        with pytest.raises(ConfigError, match="another archive has committed"):
            second(slow)
    assert snapshot(tmp_path) == after


class Synced:
    """A disk after a loss of power: each directory has the names that it had when it was synced."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        # By their inodes: a directory that is exchanged keeps what was synced of it.
        self._names: dict[int, set[str]] = {}
        self._files: set[int] = set()
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self._names[path.stat().st_ino] = {one.name for one in path.iterdir()}
        else:
            self._files.add(path.stat().st_ino)

    def lost(self) -> list[str]:
        """Return the files and directories that are there and would not be found again."""
        return sorted(
            path.relative_to(self._root).as_posix()
            for path in self._root.rglob("*")
            if path.name != "_lock"
            and (
                path.name not in self._names.get(path.parent.stat().st_ino, ())
                or (path.is_file() and path.stat().st_ino not in self._files)
            )
        )


@pytest.mark.parametrize("change", [second, compaction], ids=lambda one: str(one.__name__))
def test_a_loss_of_power_forgets_no_name_that_a_commit_has_made(
    tmp_path: Path, change: Callable[[Archive], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(tmp_path, monkeypatch)
    do(tmp_path, partial(batch, number=1))
    do(tmp_path, change)
    assert synced.lost() == []


def test_a_loss_of_power_at_the_announcement_of_a_commit_forgets_nothing_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(tmp_path, monkeypatch)
    do(tmp_path, partial(batch, number=1))

    def fails(*_: object) -> None:
        raise OSError("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "replace", fails)
        with pytest.raises(OSError, match="the power is gone"):
            do(tmp_path, compaction)
    assert list((tmp_path / "_staging").rglob("*.parquet"))
    assert synced.lost() == []


def test_files_with_gaps_are_folded_and_a_kill_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_MOST_GAP_FILES", 3)
    first = tmp_path / "first"
    gaps = tuple(Gap("orders", "broker-a", 0, at, at + 1, "retention") for at in range(1, 10))
    counts = []
    with Archive(first) as archive:
        for number in range(1, 9):
            if number == 7:
                shutil.copytree(first, tmp_path / "before", ignore=shutil.ignore_patterns("_lock"))
            batch(archive, number)
            assert archive.layout.load_gaps() == gaps[:number]
            counts.append(len(archive.layout.gap_files()))
    assert counts == [1, 2, 3, 1, 2, 3, 1, 2]
    # The next batch folds what it finds.
    for step in range(MOST_STEPS):
        path = tmp_path / str(step)
        shutil.copytree(tmp_path / "before", path)
        died = die_at(step, path, partial(do, path, partial(batch, number=7)))
        state, _, _, found = snapshot(path)
        assert found == gaps[: state.next_batch - 1]
        if not died:
            break
        do(path, lambda archive: batch(archive, archive.state.next_batch))
        state, _, _, found = snapshot(path)
        assert found == gaps[: state.next_batch - 1]
        assert len(Layout(path).gap_files()) <= 3
    assert not died


def test_gaps_that_are_folded_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_MOST_GAP_FILES", 1)
    with Archive(tmp_path) as archive:
        batch(archive, 1)
        read, name = contents, "cometmq.pipelines.archive.layout.contents"

        def folded_first(paths: Iterable[Location]) -> list[bytes]:
            """Read files that were listed before the archive went on."""
            listed = list(paths)
            monkeypatch.setattr(name, read)
            batch(archive, 2)
            return read(listed)

        monkeypatch.setattr(name, folded_first)
        assert [gap.start for gap in Layout(tmp_path).load_gaps()] == [1, 2]


def test_only_one_archive_is_at_work(tmp_path: Path) -> None:
    def attempt() -> None:
        try:
            do(tmp_path, lambda archive: None)
        except ConfigError as error:
            os._exit(7 if "another archive is at work" in str(error) else 8)

    with Archive(tmp_path):
        process = os.fork()
        if not process:
            attempt()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    do(tmp_path, lambda archive: None)


def test_files_without_a_state_are_not_taken_for_an_archive(tmp_path: Path) -> None:
    do(tmp_path, lambda archive: batch(archive, 1))
    do(tmp_path, second)
    (tmp_path / "_state.json").unlink()
    with pytest.raises(ConfigError, match=r"_state.json is not beside it"), Archive(tmp_path):
        pass
    (tmp_path / "_state.json").write_text('{"version": 99}')
    with pytest.raises(ConfigError, match="version 99"), Archive(tmp_path):
        pass
    (tmp_path / "_state.json").write_text("{")
    with pytest.raises(ConfigError, match=r"_state.json is damaged"), Archive(tmp_path):
        pass


def test_directories_change_their_places(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.mkdir()
        (path / path.name).touch()
    exchange(new, old)
    assert [path.name for path in old.iterdir()] == ["new"]
    exchange(tmp_path / "new", tmp_path / "third")
    assert [path.name for path in (tmp_path / "third").iterdir()] == ["old"]


def test_topics_are_found_by_the_names_of_their_directories() -> None:
    for topic in ("orders", "%RETRY%g", "%DLQ%a|b", "%25", "123"):
        hour = Hour(topic, "2026-11-20T16")
        assert Hour.of(Path("data") / hour.directory) == hour

"""Archives in file systems without renames and locks: after a kill at any step, the next process finds
all of a commit or nothing; of two archives one goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.pipelines.objects import Objects

from cometmq.errors import ConfigError
from cometmq.pipelines.archive import lease
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.layout import (
    DataFile,
    Hour,
    Layout,
    Manifest,
    QueueState,
    SafeRange,
    State,
)
from cometmq.pipelines.archive.proving.inventory import take_inventory
from cometmq.pipelines.archive.schemas import ALL
from cometmq.pipelines.archive.staging import staged_files
from cometmq.pipelines.locations import Location
from cometmq.spark.gaps import Gap

HOURS = (Hour("orders", "2026-11-20T16"), Hour("%RETRY%g", "2026-11-20T17"))
# Steps of a commit; it has fewer.
MOST_STEPS = 200


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed archive is taken over from at once."""
    monkeypatch.setattr(lease, "PATIENCE_S", 0.02)


def stage(archive: Archive, files_of_each: int) -> Location:
    """Write files as Spark does: with names of its own, and one that says that it is done."""
    staged = archive.new_staging()
    for hour in HOURS:
        for at in range(files_of_each):
            path = staged / hour.directory / f"part-{at:05d}-x.c000.zstd.parquet"
            path.write(b"PAR1")
    (staged / "_SUCCESS").write(b"")
    return staged


def batch(archive: Archive) -> None:
    """Write two files for each hour."""
    number = archive.state.next_batch
    staged = stage(archive, 2)
    found = staged_files(staged, f"b{number:08d}", number, ALL)
    manifests = []
    for hour in HOURS:
        before = archive.manifests.get(hour, Manifest(*hour))
        manifests.append(replace(before, files=(*before.files, *found.files[hour])))
    queue = QueueState("orders", "broker-a", 0, 0, 100 * number, 0)
    gap = Gap("orders", "broker-a", 0, number, number + 1, "retention")
    state = State(next_batch=number + 1, queues=(queue,))
    archive.commit(
        Commit("files", tuple(manifests), state, staged.name, gaps=(gap,), sources=found.sources)
    )


def compaction(archive: Archive) -> None:
    """Compact all files of each hour into one."""
    number = archive.state.next_batch
    staged = stage(archive, 1)
    found = staged_files(staged, f"c{number:08d}", number, ALL)
    before = [archive.manifests[hour] for hour in HOURS]
    manifests = tuple(replace(one, files=found.files[one.key]) for one in before)
    state = replace(archive.state, next_batch=number + 1)
    old = tuple(tuple(file.name for file in one.files) for one in before)
    archive.commit(
        Commit("replaced", manifests, state, staged.name, sources=found.sources, removed=old)
    )


def marks(archive: Archive) -> None:
    safe = SafeRange("orders", "broker-a", 0, 0, 100, 99, 1, "2026-11-20T16:31:07Z")
    queues = tuple(replace(queue, proved_to=queue.to) for queue in archive.state.queues)
    archive.commit(Commit("nothing", (), replace(archive.state, queues=queues), safe=(safe,)))


def files_of(layout: Layout) -> dict[Hour, set[str]]:
    return {hour: set(files) for hour, files in layout.data_files().items()}


Snapshot = tuple[State, dict[Hour, set[str]], list[SafeRange], tuple[Gap, ...]]


def snapshot(root: Path) -> Snapshot:
    """Return everything that an archive holds and says after it was opened."""
    with Archive(Objects(root).at("archive")) as archive:
        layout = archive.layout
        found = files_of(layout)
        assert found == {
            hour: {one.name for one in manifest.files}
            for hour, manifest in archive.manifests.items()
        }
        inventory = take_inventory(layout, archive.manifests)
        assert not inventory.problems
        assert not any(inventory.strange.values())
        assert not layout.staging.exists()
        return archive.state, found, layout.load_safe(), layout.load_gaps()


def do(
    root: Path, change: Callable[[Archive], None], step: Callable[[], None] | None = None
) -> None:
    with Archive(Objects(root, step or (lambda: None)).at("archive")) as archive:
        change(archive)


def die_at(number: int, root: Path, change: Callable[[Archive], None]) -> bool:
    """Make the change in a process that dies at its `number`th step; return whether it died."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    left = number

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os._exit(9)

    try:
        do(root, change, step)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("change", [batch, compaction, marks], ids=lambda one: str(one.__name__))
def test_a_remote_commit_that_is_killed_anywhere_is_all_there_or_not_at_all(
    tmp_path: Path, change: Callable[[Archive], None]
) -> None:
    first = tmp_path / "first"
    do(first, batch)
    before = snapshot(first)
    shutil.copytree(first, tmp_path / "last")
    do(tmp_path / "last", change)
    after = snapshot(tmp_path / "last")
    assert before != after
    seen = set()
    for number in range(MOST_STEPS):
        root = tmp_path / str(number)
        shutil.copytree(first, root)
        died = die_at(number, root, change)
        layout = Layout(Objects(root).at("archive"))
        listed = files_of(layout)
        named = {one.key: {file.name for file in one.files} for one in layout.load_manifests()}
        found = snapshot(root)
        assert found in (before, after)
        for hour in HOURS:
            old, new = before[1].get(hour, set()), after[1][hour]
            # A reader between kill and restart misses nothing, and who reads by the manifest sees
            # nothing twice.
            assert listed[hour] <= old | new
            assert old <= listed[hour] or new <= listed[hour]
            assert named[hour] in (old, new)
            assert named[hour] <= listed[hour]
        seen.add(found == after)
        if not died:
            break
    assert not died
    assert seen == {False, True}


def test_an_archive_that_is_alive_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PATIENCE_S", 1.0)
    with (
        Archive(Objects(tmp_path).at("archive")),
        pytest.raises(ConfigError, match="another archive is at work"),
    ):
        do(tmp_path, batch)
    monkeypatch.setattr(lease, "PATIENCE_S", 30.0)
    do(tmp_path, batch)  # its hold ended with it, so nobody waits


def taken_over(root: Path) -> None:
    """Take over the file by which an archive holds its path, as another archive does."""
    path = Objects(root).at("archive/_lock")
    path.remove()
    content = msgspec.json.encode(lease.Holder("another", "host 1", 0))
    path.create(content)


def test_an_archive_that_was_taken_over_from_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(tmp_path, batch)
    before = snapshot(tmp_path)
    monkeypatch.setattr(lease, "PATIENCE_S", 60.0)  # its hold is not renewed meanwhile
    with Archive(Objects(tmp_path).at("archive")) as archive:
        taken_over(tmp_path)
        with pytest.raises(ConfigError, match=r"another archive \(host 1\) has taken over"):
            batch(archive)
    monkeypatch.setattr(lease, "PATIENCE_S", 0.02)
    assert snapshot(tmp_path) == before


def test_of_two_archives_that_both_take_themselves_for_the_only_one_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(tmp_path, batch)
    monkeypatch.setattr(lease, "PATIENCE_S", 60.0)  # its hold is not renewed meanwhile
    # It looks just before the other one comes.
    monkeypatch.setattr(lease.Lease, "check", lambda _: None)
    with Archive(Objects(tmp_path).at("archive")) as slow:
        Objects(tmp_path).at("archive/_lock").remove()
        do(tmp_path, batch)
        after = snapshot(tmp_path)
        with pytest.raises(ConfigError, match="another archive has committed"):
            batch(slow)
    assert snapshot(tmp_path) == after


def test_a_commit_whose_files_another_archive_has_removed_is_void(tmp_path: Path) -> None:
    do(tmp_path, batch)
    before = snapshot(tmp_path)
    hour = HOURS[0]
    manifest = Manifest(*hour, (DataFile("b00000002-0000.parquet", 4, 2),))
    state = replace(before[0], next_batch=3, commits=before[0].commits + 1)
    path = Objects(tmp_path).at("archive/_commits") / f"{state.commits:020d}.json"
    commit = Commit("files", (manifest,), state, "gone")
    path.create(msgspec.json.encode(commit))
    assert snapshot(tmp_path) == before
    do(tmp_path, batch)
    assert snapshot(tmp_path)[0].next_batch == 3


def test_old_commits_are_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.pipelines.archive.commits._KEPT_COMMITS", 3)

    def many(archive: Archive) -> None:
        for _ in range(6):
            marks(archive)

    do(tmp_path, many)
    assert len(Objects(tmp_path).sizes("mem://bucket/archive/_commits")) == 3

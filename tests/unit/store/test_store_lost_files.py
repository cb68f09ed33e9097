"""Files of a store that somebody removes, replaces or cuts are missed, by a running store and by a check."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.cleaning import clean
from tests.unit.store.store_box import LOG_FILE, Box, ManualClock, bodies, put

from cometmq.errors import (
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFileLostError,
    StoreLockedError,
    StoreUnusableError,
)
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.files.disk import Disk
from cometmq.store.files.locks import DirectoryLock
from cometmq.store.offline.check import Report
from cometmq.store.offline.repair import check, plan_repair, repair
from cometmq.store.store import MessageStore


def fill(store: MessageStore, files: int) -> None:
    """Put messages until the log has so many files."""
    while len(store.commit_log.files.files) < files:
        put(store, b"x" * 200)


def report_of(box: Box) -> Report:
    return check(box.config)[1]


def lost(store: MessageStore) -> str:
    """Return why the store takes no messages."""
    with pytest.raises(StoreClosedError) as refused:
        put(store)
    return str(refused.value)


def test_nothing_is_acknowledged_by_a_sync_once_the_active_file_is_removed(box: Box) -> None:
    """100 sends with SYNC_FLUSH were SEND_OK and gone after the restart, without a line."""
    store = box.open()
    put(store, b"first")
    store.flush_commit_log()
    (path,) = box.log_files
    path.unlink()
    put(store, b"second")
    with capture_logs() as lines, pytest.raises(StoreFileLostError, match=f"{path} was removed"):
        store.flush_commit_log()
    assert store.flushed_offset < store.commit_log.end
    assert [line for line in lines if line["log_level"] == "error" and str(path) in line["error"]]
    assert str(path) in lost(store)
    with pytest.raises(StoreClosedError):
        store.close()


def test_what_a_removed_file_held_is_saved_by_the_command_in_the_error(box: Box) -> None:
    store = box.open()
    put(store, b"first")
    store.flush_commit_log()
    (path,) = box.log_files
    path.unlink()
    put(store, b"second")
    store.look_at_files()
    copy, target = lost(store).partition("cp --remove-destination ")[2].partition(",")[0].split()
    assert target == str(path)
    shutil.copyfile(copy, target)
    with pytest.raises(StoreError):
        store.close()
    assert bodies(box.open()) == [b"first", b"second"]


def test_a_removed_older_file_is_missed_by_the_look_of_a_second(box: Box) -> None:
    store = box.open()
    fill(store, 4)
    store.flush_all()
    box.log_files[1].unlink()
    assert store.refusal is None
    store.look_at_files()
    assert f"{LOG_FILE:020d} was removed" in lost(store)
    with pytest.raises(StoreClosedError):
        store.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: os.truncate(path, 4096 - 512), f"was cut from {LOG_FILE} bytes to 3584"),
        (
            lambda path: (
                shutil.copyfile(path, path.with_name("x")) and path.with_name("x").replace(path)
            ),
            "was replaced by another file",
        ),
    ],
)
def test_a_cut_or_replaced_file_is_missed(
    box: Box, change: Callable[[Path], object], said: str
) -> None:
    store = box.open()
    fill(store, 2)
    store.flush_all()
    change(box.log_files[0])
    store.look_at_files()
    assert said in lost(store)
    with pytest.raises(StoreClosedError):
        store.close()


def test_a_prepared_file_that_was_removed_is_made_again(box: Box) -> None:
    store = box.open()
    put(store, b"x" * 3000)
    store.prepare_next()
    box.log_files[-1].unlink()
    put(store, b"y" * 3000)
    assert len(box.log_files) == 2
    store.flush_commit_log()
    assert store.refusal is None


def test_the_files_that_retention_deletes_are_not_missed(box: Box) -> None:
    store = box.open()
    fill(store, 5)
    store.flush_all()
    clock = box.clock
    box.config.delete_when = ";".join(f"{hour:02d}" for hour in range(24))
    clock.value += 365 * 86_400_000
    for path in box.log_files:
        os.utime(path, (0, 0))
    with capture_logs() as lines:
        for _ in range(3):
            clean(store)
            store.look_at_files()
    assert len(box.log_files) < 5
    assert store.refusal is None
    assert not [line for line in lines if "missing" in line["event"]]
    store.close()
    assert report_of(box).is_sound
    with capture_logs() as lines:
        box.open()
    assert not [line for line in lines if line["log_level"] == "error"]


# The lock and the mark of a start


def test_a_second_store_cannot_be_opened_when_the_lock_file_was_removed(box: Box) -> None:
    store = box.open()
    box.config.lock_path.unlink()
    with pytest.raises(StoreLockedError, match="is in use"):
        box.open()
    with pytest.raises(StoreLockedError, match="is in use by a broker"):
        report_of(box)
    store.look_at_files()
    assert box.config.lock_path.exists()
    assert store.refusal is None
    store.close()
    box.open()


def test_a_lock_that_another_process_has_taken_meanwhile_ends_the_writing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = box.open()

    def taken(_lock: DirectoryLock) -> bool:
        raise StoreLockedError("taken")

    monkeypatch.setattr(DirectoryLock, "renew", taken)
    store.look_at_files()
    assert "another process has taken the store" in lost(store)
    with pytest.raises(StoreError):
        store.close()


def test_the_mark_of_a_start_is_made_again_and_a_clean_stop_removes_it(box: Box) -> None:
    """A kill then looked like a clean stop, and the next start trusted what no sync had written."""
    store = box.open()
    put(store)
    box.config.abort_path.unlink()
    store.look_at_files()
    assert box.config.abort_path.exists()
    store.close()
    assert not box.config.abort_path.exists()


# What a check and a start find


def test_a_removed_oldest_file_is_found_by_check_and_said_by_each_start(box: Box) -> None:
    """883 of 2,000 acknowledged messages were gone, and `store check` said "sound"."""
    store = box.open()
    fill(store, 4)
    store.close()
    oldest = box.log_files[0]
    oldest.unlink()
    for _ in range(2):
        (finding,) = report_of(box).findings
        assert finding.path == oldest
        assert f"begins at {LOG_FILE}, and began at 0" in finding.text
        assert not finding.by_start
        with capture_logs() as lines:
            box.open().close()
        assert any(line["event"] == "files of the commit log are missing" for line in lines)


def test_a_repair_takes_the_log_as_it_is(box: Box) -> None:
    store = box.open()
    fill(store, 3)
    store.close()
    box.log_files[0].unlink()
    offline, report = check(box.config)
    repair(offline, plan_repair(offline, report), clock=ManualClock(), stamp="now")
    assert report_of(box).is_sound


def test_a_removed_newest_file_is_found_by_check_and_said_by_the_start(box: Box) -> None:
    store = box.open()
    while len(store.commit_log.files.files) < 3:
        put(store, b"x" * 200)
        box.clock.value += 1000
    store.close()
    box.log_files[-1].unlink()
    assert any("messages are missing at the end" in f.text for f in report_of(box).findings)
    with capture_logs() as lines:
        box.open()
    assert any(line["event"].startswith("messages that were on disk") for line in lines)


def test_a_store_that_javas_broker_had_meanwhile_may_begin_anywhere(box: Box) -> None:
    store = box.open()
    fill(store, 3)
    store.close()
    box.log_files[0].unlink()  # Java's retention
    path = box.config.checkpoint_path
    data = bytearray(path.read_bytes())
    data[7] ^= 1  # Java writes its own times only
    path.write_bytes(data)
    assert not [f for f in report_of(box).findings if "began at" in f.text]


def test_the_note_of_where_the_log_begins_keeps_what_javas_fields_may_become(box: Box) -> None:
    path = box.root / "checkpoint"
    box.root.mkdir()
    path.write_bytes(bytes(40) + b"\x07" * 8 + bytes(4048))
    checkpoint = Checkpoint(Disk(), path)
    checkpoint.read()
    assert checkpoint.log_begins is None
    checkpoint.note_begin(4096)
    assert path.read_bytes()[40:48] == b"\x07" * 8
    again = Checkpoint(Disk(), path)
    again.read()
    assert again.log_begins == 4096


@pytest.mark.parametrize("place", [1, -1])
def test_a_file_of_another_place_with_sound_records_is_found_and_never_cut(
    box: Box, place: int
) -> None:
    store = box.open()
    fill(store, 4)
    store.close()
    path = box.log_files[place]
    shutil.copyfile(box.log_files[0], path)
    foreign = path.read_bytes()
    offline, report = check(box.config)
    assert any(f.path == path and "belong at 0 of a log" in f.text for f in report.findings)
    with pytest.raises(StoreUnusableError, match="move away anything that does not belong there"):
        plan_repair(offline, report)
    for killed in (False, True):
        if killed:
            box.config.abort_path.write_text("1")
        with pytest.raises(StoreCorruptError, match=f"{path} has the records that belong at 0"):
            box.open()
    assert path.read_bytes() == foreign

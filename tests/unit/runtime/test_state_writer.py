"""State files are written outside the loop, and again until a write succeeds."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.store_box import ManualClock
from tests.waits import WAIT_S, until

from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter


async def test_a_file_that_could_not_be_written_is_written_when_there_is_room(
    tmp_path: Path, log_lines: list[dict[str, Any]]
) -> None:
    file = JsonFile(tmp_path / "consumerOffset.json")
    blocker = tmp_path / "consumerOffset.json.tmp"
    blocker.mkdir()
    writer = StateWriter()
    reported: list[str] = []
    writer.soon(file, lambda: "[1]", lambda: reported.append("written"))
    with pytest.raises(OSError, match="directory"):
        await writer.save(file, lambda: "[2]")
    assert not file.path.exists()
    assert reported == []
    blocker.rmdir()
    await until(file.path.exists)
    assert file.path.read_text() == "[2]"
    await until(lambda: any("written again" in line["event"] for line in log_lines))
    writer.close()


async def test_a_write_that_has_another_file_written_as_it_ends_does_not_disturb_the_end(
    tmp_path: Path,
) -> None:
    table, marks = JsonFile(tmp_path / "topics.json"), JsonFile(tmp_path / "marks.json")
    writer = StateWriter()
    writer.soon(table, lambda: "[1]", lambda: writer.soon(marks, lambda: "[2]"))
    writer.close()
    assert table.path.read_text() == "[1]"
    assert marks.path.read_text() == "[2]"


async def test_a_look_has_a_file_that_somebody_removed_written_again(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "topics.json")
    writer = StateWriter()
    await writer.save(file, lambda: "[1]")
    file.path.unlink()

    def is_there() -> bool:
        writer.look()
        return file.path.exists()

    await until(is_there)
    assert file.path.read_text() == "[1]"
    writer.close()


async def test_a_look_is_left_out_while_the_one_before_hangs_and_raises_why_that_failed(
    tmp_path: Path,
) -> None:
    writer = StateWriter()
    goes_on = threading.Event()
    called: list[int] = []

    def hang() -> None:
        called.append(1)
        goes_on.wait(WAIT_S)
        raise ValueError("the disk said so")

    writer.look(hang)
    for _ in range(3):
        writer.look(lambda: called.append(2))
    goes_on.set()

    def looks_again() -> bool:
        writer.look(lambda: called.append(3))
        return 3 in called

    with pytest.raises(ValueError, match="the disk said so"):
        await until(looks_again)
    writer.close()
    assert called == [1, 3]


async def test_the_log_says_once_that_writing_fails(
    tmp_path: Path, log_lines: list[dict[str, Any]]
) -> None:
    file = JsonFile(tmp_path / "topics.json")
    (tmp_path / "topics.json.tmp").mkdir()
    writer = StateWriter()
    for _ in range(5):
        with pytest.raises(OSError, match="directory"):
            await writer.save(file, lambda: "[]")
    writer.close()
    assert len([line for line in log_lines if "cannot be written" in line["event"]]) == 1


async def test_what_changes_while_a_file_is_written_leaves_in_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JsonFile(tmp_path / "f.json")
    written: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(text: str | Iterable[str]) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        written.append("".join(text))

    monkeypatch.setattr(file, "write", slow)
    writer = StateWriter()
    writer.soon(file, lambda: "[0]")
    await until(begun.is_set)
    for at in range(1, 6):
        writer.soon(file, lambda at=at: f"[{at}]")  # type: ignore[misc]  # mypy infers no lambda with a default
        await asyncio.sleep(0)
    go_on.set()
    await writer.save(file, lambda: "[6]")
    assert written == ["[0]", "[6]"]
    writer.close()


async def test_who_waits_for_a_write_waits_for_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a write of an hour a file rests for most of a day, also if that write is still running
    when the next one is requested.
    """
    file = JsonFile(tmp_path / "f.json")
    begun, go_on = threading.Event(), threading.Event()
    clock = ManualClock()

    def slow(text: str | Iterable[str]) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        clock.value += 3_600_000

    monkeypatch.setattr(file, "write", slow)
    writer = StateWriter(clock=clock)
    writer.soon(file, lambda: "[0]")
    await until(begun.is_set)
    saved = asyncio.ensure_future(writer.save(file, lambda: "[1]"))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(saved, WAIT_S)
    reported = asyncio.Event()
    writer.soon(file, lambda: "[2]", reported.set, at_once=True)
    await asyncio.wait_for(reported.wait(), WAIT_S)
    writer.close()


async def test_a_stop_writes_what_is_due_and_what_failed(tmp_path: Path) -> None:
    file, other = JsonFile(tmp_path / "f.json"), JsonFile(tmp_path / "g.json")
    blocker = tmp_path / "f.json.tmp"
    blocker.mkdir()
    writer = StateWriter()
    with pytest.raises(OSError, match="directory"):
        await writer.save(file, lambda: "[1]")
    blocker.rmdir()
    writer.soon(other, lambda: ["[", "2", "]"])
    writer.close()
    assert file.path.read_text() == "[1]"
    assert other.path.read_text() == "[2]"


async def test_a_second_close_after_a_failed_write_does_nothing(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "f.json")
    (tmp_path / "f.json.tmp").mkdir()
    writer = StateWriter()
    with pytest.raises(OSError, match="directory"):
        await writer.save(file, lambda: "[1]")
    writer.close()
    writer.close()
    assert not file.path.exists()


async def test_a_table_that_cannot_be_made_does_not_keep_others_from_the_disk(
    tmp_path: Path,
) -> None:
    broken, whole = JsonFile(tmp_path / "broken.json"), JsonFile(tmp_path / "whole.json")

    def fails() -> str:
        raise ValueError("this table has a hole")

    writer = StateWriter()
    writer.soon(broken, fails)
    writer.soon(whole, lambda: "[1]")
    writer.close()
    assert whole.path.read_text() == "[1]"
    assert not broken.path.exists()


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "config"
    directory.mkdir()
    (directory / "topics.json.tmp").symlink_to(victim)
    file = JsonFile(directory / "topics.json")
    file.write('{"a":1}')
    file.write('{"a":2}')
    assert victim.read_text() == "precious"
    assert not file.path.is_symlink()
    assert file.read(json.loads) == {"a": 2}


def test_a_planted_file_is_not_written_through(tmp_path: Path) -> None:
    planted = tmp_path / "topics.json.tmp"
    planted.write_text("mine")
    planted.chmod(0o666)
    with planted.open() as held:
        JsonFile(tmp_path / "topics.json").write("[1]")
        assert held.read() == "mine"


def test_state_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "store" / "config" / "topics.json")
    file.write("[1]")
    file.write("[2]")
    for path in (file.path, file.path.with_name("topics.json.bak")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in (file.path.parent, file.path.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_operators_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1")
    path.chmod(0o644)
    JsonFile(path, keep_permissions=True).write("a=2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    def pieces() -> Iterable[str]:
        yield "[1"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        JsonFile(tmp_path / "f.json").write(pieces())
    assert list(tmp_path.iterdir()) == []

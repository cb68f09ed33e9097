from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waits import WAIT_S

from cometmq.errors import ConfigError
from cometmq.runtime.json_file import JsonFile


def state_file(tmp_path: Path) -> JsonFile:
    return JsonFile(tmp_path / "config" / "topics.json")


def decode(text: str) -> Any:
    return json.loads(text)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert state_file(tmp_path).read(decode) is None


def test_the_previous_text_stays_as_backup(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write("[1]")
    file.write("[2]")
    assert file.read(decode) == [2]
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]
    assert file.path.with_name("topics.json.bak").read_text() == "[1]"


def test_the_file_is_there_at_every_moment_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was away between two renames: who read it then, and a broker whose configuration it was
    and that had died there, found none.
    """
    file = state_file(tmp_path)
    file.write("[1]")
    seen: list[Any] = []
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        seen.append(json.loads(file.path.read_text()))
        replace(path, target)
        seen.append(json.loads(file.path.read_text()))
        return target

    monkeypatch.setattr(Path, "replace", watched)
    file.write("[2]")
    assert seen == [[1], [1], [1], [2]]


def test_a_write_that_died_half_way_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = state_file(tmp_path)
    for text in ("[1]", "[2]"):
        file.write(text)
    replace = Path.replace

    def dies(path: Path, target: Path) -> Path:
        if target == file.path:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                file.write("[3]")
            assert file.read(decode) == [2]
    file.write("[4]")
    assert file.read(decode) == [4]
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]
    assert file.path.with_name("topics.json.bak").read_text() == "[2]"


def test_a_file_system_without_links_keeps_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    file = state_file(tmp_path)
    file.write("[1]")
    file.write("[2]")
    assert file.read(decode) == [2]
    assert file.path.with_name("topics.json.bak").read_text() == "[1]"


@pytest.mark.parametrize("damage", [None, "", " \n", '{"half":'])
def test_the_backup_is_read_when_the_main_file_is_missing_empty_or_damaged(
    tmp_path: Path, damage: str | None
) -> None:
    file = state_file(tmp_path)
    file.write("[1]")
    file.write("[2]")
    if damage is None:
        file.path.unlink()
    else:
        file.path.write_text(damage)
    assert file.read(decode) == [1]


def test_bytes_that_are_no_text_count_as_damage(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write("[1]")
    file.write("[2]")
    file.path.write_bytes(b"\xff\xfe")
    assert file.read(decode) == [1]


def test_an_empty_file_without_backup_is_an_empty_start(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.path.parent.mkdir()
    file.path.write_text("")
    assert file.read(decode) is None


def test_damage_without_a_good_backup_is_an_error(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.path.parent.mkdir()
    file.path.write_text("{")
    with pytest.raises(ConfigError, match=r"topics\.json does not decode"):
        file.read(decode)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write("[1]")
    file.path.with_name("topics.json.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        file.write("[2]")
    assert file.read(decode) == [1]


async def test_texts_that_pile_up_are_saved_as_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = state_file(tmp_path)
    written: list[str] = []
    go_on = threading.Event()
    write = file.write

    def slow_write(text: str) -> None:
        assert go_on.wait(WAIT_S)
        written.append(text)
        write(text)

    monkeypatch.setattr(file, "write", slow_write)
    saves = [asyncio.create_task(file.save("[0]"))]
    await asyncio.sleep(0)  # the first one is at work now
    saves += [asyncio.create_task(file.save(f"[{i}]")) for i in range(1, 6)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*saves)
    assert written == ["[0]", "[5]"]
    assert file.read(decode) == [5]


async def test_a_failed_save_is_tried_again_by_the_next_in_line(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    blocker = file.path.with_name("topics.json.tmp")
    blocker.mkdir(parents=True)
    results = await asyncio.gather(file.save("[1]"), file.save("[2]"), return_exceptions=True)
    assert [type(result) for result in results] == [IsADirectoryError, IsADirectoryError]
    blocker.rmdir()
    await file.save("[3]")
    assert file.read(decode) == [3]

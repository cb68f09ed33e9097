from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waits import WAIT_S

from cometmq.errors import ConfigError
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.seals import Seal, seal, sealed

# What happens to a file: it is emptied, cut, overwritten with zeros, or one digit changes.
DAMAGES: Final[list[Callable[[bytes], bytes]]] = [
    lambda _: b"",
    lambda data: data[: len(data) // 2],
    lambda data: bytes(len(data)),
    lambda data: data.replace(b"2000", b"2001"),
]


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
    assert json.loads(file.path.read_text()) == [2]
    assert file.read(decode) == [3], "whole and newer"
    file.write("[4]")
    assert file.read(decode) == [4]
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]
    assert file.path.with_name("topics.json.bak").read_text() == "[3]"


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


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_file_is_damaged_and_no_empty_start(tmp_path: Path, text: str) -> None:
    """A broker started with none of 200 groups, without a line, when their file was empty."""
    file = state_file(tmp_path)
    file.path.parent.mkdir()
    file.path.write_text(text)
    with pytest.raises(ConfigError, match=r"topics\.json is damaged .*it is empty.*move it away"):
        file.read(decode)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_read", [True, False])
def test_a_damaged_main_file_never_becomes_the_backup(
    tmp_path: Path, damage: Callable[[bytes], bytes], is_read: bool
) -> None:
    """The first save made the damaged file the backup, which was the only good copy."""
    file = state_file(tmp_path)
    file.write('{"a":1000}')
    file.write('{"a":2000}')
    file.path.write_bytes(damaged := damage(file.path.read_bytes()))
    file = state_file(tmp_path)
    if is_read:
        assert file.read(decode) == {"a": 1000}
    file.write('{"a":3000}')
    assert file.path.with_name("topics.json.damaged").read_bytes() == damaged
    file.path.unlink()
    assert state_file(tmp_path).read(decode) == {"a": 1000}


def test_a_text_that_its_reader_refused_does_not_become_the_backup(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write("[1]")
    file.write("[2]")
    file.path.write_text('["of another version"]')

    def decode_numbers(text: str) -> list[int]:
        return [int(value) for value in json.loads(text)]

    assert file.read(decode_numbers) == [1]
    file.write("[3]")
    assert file.path.with_name("topics.json.bak").read_text() == "[1]"


def test_a_changed_digit_is_seen(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write('{"offset":1000}')
    file.write('{"offset":2000}')
    file.path.write_text(file.path.read_text().replace("2000", "9000"))
    assert file.read(decode) == {"offset": 1000}


def test_a_changed_digit_without_a_backup_is_an_error_that_says_how_to_keep_a_change(
    tmp_path: Path,
) -> None:
    file = state_file(tmp_path)
    file.write('{"offset":2000}')
    changed = file.path.read_text().replace("2000", "9000")
    file.path.write_text(changed)
    with pytest.raises(ConfigError, match='remove the key "checksum"'):
        file.read(decode)
    file.path.write_text(changed.partition(",")[0] + "}")
    assert file.read(decode) == {"offset": 9000}


def test_a_change_by_hand_of_another_length_is_taken(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write('{"a":1}')
    file.path.write_text(file.path.read_text().replace("1", '1,"b":2', 1))
    assert file.read(decode) == {"a": 1, "b": 2}
    file.write('{"a":3}')
    assert file.path.with_name("topics.json.bak").read_text().startswith('{"a":1,"b":2')


def test_what_javas_broker_wrote_in_place_is_taken_and_becomes_the_backup(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.write('{"a":1}')
    file.path.write_text('{\n\t"a":2\n}')
    file = state_file(tmp_path)
    assert file.read(decode) == {"a": 2}
    file.write('{"a":3}')
    file.path.unlink()
    assert file.read(decode) == {"a": 2}


@pytest.mark.parametrize("main", [None, "", '{"a":1}', '{"half":'])
def test_a_whole_and_newer_text_that_a_crash_left_is_taken(
    tmp_path: Path, main: str | None
) -> None:
    file = state_file(tmp_path)
    file.write('{"a":2}')
    file.path.replace(temporary := file.path.with_name("topics.json.tmp"))
    if main is not None:
        file.path.write_text(main)
        os.utime(file.path, ns=(0, temporary.stat().st_mtime_ns - 1))
    assert file.read(decode) == {"a": 2}
    # What follows does not write over the only good copy.
    assert not temporary.exists()
    assert state_file(tmp_path).read(decode) == {"a": 2}


def test_a_text_that_a_crash_left_is_not_taken_when_it_is_older_or_not_whole(
    tmp_path: Path,
) -> None:
    file = state_file(tmp_path)
    file.write('{"a":1}')
    temporary = file.path.with_name("topics.json.tmp")
    temporary.write_text('{"a":')
    assert file.read(decode) == {"a": 1}
    temporary.write_text('{"a":2}')
    os.utime(temporary, ns=(0, file.path.stat().st_mtime_ns - 1))
    assert file.read(decode) == {"a": 1}


def test_a_refused_change_does_not_come_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = state_file(tmp_path)
    file.write('{"a":1}')

    def refuse(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="no"):
            file.write('{"a":2}')
    assert file.read(decode) == {"a": 1}


@given(st.dictionaries(st.text(), st.integers()), st.integers(1, 7), st.booleans())
def test_any_object_is_read_as_it_was_sealed(
    value: dict[str, int], step: int, indented: bool
) -> None:
    text = json.dumps(value, indent=1 if indented else None, ensure_ascii=False).encode()
    data = b"".join(seal(text[at : at + step] for at in range(0, len(text), step)))
    assert json.loads(data) == {**value, "checksum": json.loads(data)["checksum"]}
    content, state = sealed(data)
    assert state is Seal.HOLDS
    assert json.loads(content) == value


def test_a_file_that_an_operator_made_gets_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "acl.yml"
    JsonFile(path, keep_permissions=True).write("{}")
    assert path.read_text() == "{}"


def test_damage_without_a_good_backup_is_an_error(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.path.parent.mkdir()
    file.path.write_text("{")
    with pytest.raises(ConfigError, match=r"topics\.json is damaged"):
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

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.logs.file import LogFile
from cometmq.logs.line_writer import LineWriter

LONG_S = 60.0


def log_file(path: Path, *, file_bytes: int = 1000, kept_files: int = 3) -> LogFile:
    return LogFile(path, file_bytes=file_bytes, kept_files=kept_files)


def write(writer: LineWriter, *lines: str) -> None:
    for line in lines:
        writer.write(f"{line}\n")
        assert writer.drain(LONG_S)


def test_a_full_file_is_kept_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"{number:09}" for number in range(60)]
    write(LineWriter(log_file(path, file_bytes=100)), *lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
    files = [path.with_name(name).read_text() for name in ("log.3", "log.2", "log.1", "log")]
    assert [len(text) for text in files] == [100] * 4
    assert "".join(files).split() == lines[20:]
    assert path.stat().st_mode & 0o137 == 0


@pytest.mark.parametrize("how", ["moved", "deleted", "truncated"])
def test_a_file_that_logrotate_took_away_is_made_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log"
    writer = LineWriter(log_file(path))
    write(writer, "before")
    if how == "moved":
        path.rename(tmp_path / "old")
    elif how == "deleted":
        path.unlink()
    else:
        os.truncate(path, 0)
    write(writer, "after")
    assert path.read_text() == "after\n"


def test_a_file_that_is_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of the last start\n")
    write(LineWriter(log_file(path)), "new")
    assert path.read_text() == "of the last start\nnew\n"


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "log"
    link.symlink_to("there/log")
    write(LineWriter(log_file(link, file_bytes=8)), "first", "second")
    assert link.read_text() == "second\n"
    assert (tmp_path / "there" / "log.1").read_text() == "first\n"


def test_a_file_that_cannot_be_renamed_grows_on_and_says_so_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    (tmp_path / "log.1").mkdir()
    (tmp_path / "log.1" / "in the way").touch()
    file = log_file(path, file_bytes=10, kept_files=1)
    write(LineWriter(file), "first", "second", "third")
    assert path.read_text() == "first\nsecond\nthird\n"
    assert file.new_fault() in ("Is a directory", "Directory not empty")
    assert file.new_fault() is None


def test_lines_are_lost_and_counted_while_the_file_cannot_be_made(tmp_path: Path) -> None:
    place = tmp_path / "logs"
    place.mkdir()
    path = place / "log"
    writer = LineWriter(log_file(path), describe_lost=lambda count, why: f"lost {count}: {why}\n")
    path.unlink()
    place.rmdir()
    write(writer, "one", "two")
    place.mkdir()
    writer.write("three\n")
    assert writer.drain(LONG_S)
    assert path.read_text() == "lost 2: No such file or directory\nthree\n"


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "missing directory"])
def test_what_is_no_file_is_refused_at_the_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    else:
        path = tmp_path / "no" / "log"
    with pytest.raises(
        ConfigError, match=rf"the log file {path} cannot be opened: .+; name a file"
    ):
        log_file(path)


def test_a_refused_file_takes_no_descriptor(tmp_path: Path) -> None:
    gc.collect()  # files of other tests that nobody closed
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(ConfigError):
            log_file(Path("/dev/null"))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cometmq.runtime.state_files.durable import create_atomically, make_directories


def refuse_links(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_a_file_that_is_there_is_never_created_again(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        refuse_links(errno.EPERM, monkeypatch)
    path = tmp_path / "commit"
    create_atomically(path, b"first")
    with pytest.raises(FileExistsError):
        create_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(errno.ENOSPC, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        create_atomically(tmp_path / "commit", b"first")
    assert not list(tmp_path.iterdir())


def test_the_umask_applies_to_directories_that_others_may_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_directories(tmp_path / "private" / "below")
        make_directories(tmp_path / "shared" / "below", 0o777)
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert modes == {"private": 0o700, "shared": 0o755}

"""Connections within a process by a socket that only its user can reach."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.runtime.sockets import private
from cometmq.runtime.sockets.private import PrivateSockets


def test_a_long_temporary_directory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    sockets = PrivateSockets("cometmq-test-")
    path = Path(sockets.address.removeprefix("unix:"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(str(path)) <= 90
    sockets.close()
    assert not path.parent.exists()


def test_without_any_place_the_reasons_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(private, "_OTHER_PLACES", ("/not/there",))
    with pytest.raises(ConfigError, match=r"too long.*/not/there: No such file.*set TMPDIR"):
        PrivateSockets("cometmq-test-")

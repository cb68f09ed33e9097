"""Compiled modules are used only if they were made of these very sources."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from cometmq import _compiled


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a directory of compiled modules that are up to date; nothing loads them."""
    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    monkeypatch.setattr(_compiled, "NATIVE", tmp_path)
    (tmp_path / f"{_compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}").touch()
    (tmp_path / "sources").write_text(_compiled.checksums())
    return tmp_path


def test_unchanged_sources_are_told_from_changed_ones(native: Path) -> None:
    assert _compiled.state() == ""
    seen = (native / "sources").read_text()
    (native / "sources").write_text(seen.replace(seen[:8], "00000000", 1))
    assert "sources have changed" in _compiled.state()


def test_an_installation_reads_no_sources(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "is_checkout", lambda: False)
    monkeypatch.setattr(_compiled, "checksums", lambda: pytest.fail("it read the sources"))
    assert _compiled.state() == ""


def test_every_hot_module_is_among_the_sources_that_count(native: Path) -> None:
    seen = {line.partition(" ")[2] for line in (native / "sources").read_text().splitlines()}
    assert {f"{module.replace('.', '/')}.py" for module in _compiled.HOT} <= seen


def test_modules_of_another_python_do_not_count(native: Path) -> None:
    (native / f"{_compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}").unlink()
    assert "another Python" in _compiled.state()


def test_the_environment_can_ask_for_the_interpreted_form(
    native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_PURE", "1")
    assert "COMETMQ_PURE" in _compiled.state()


@pytest.mark.parametrize("pure", ["0", "1"])
def test_what_a_process_gets(pure: str) -> None:
    modules = " ".join(f"import cometmq.{module};" for module in _compiled.HOT)
    code = (
        f"from cometmq import _compiled; {modules} import sys; print(_compiled.state());"
        "print({sys.modules['cometmq.' + m].__file__.rpartition('.')[2] for m in _compiled.HOT})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "COMETMQ_PURE": pure},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    why_not, kinds = done.stdout.splitlines()
    assert kinds == ("{'py'}" if why_not else "{'so'}")
    assert not (pure == "1" and not why_not)

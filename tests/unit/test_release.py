"""Refusals of `scripts/release`, in a repository of its own; it never reaches the build."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        for folder in ("scripts", "src/cometmq"):
            (path / folder).mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "release", path / "scripts")
        self.write("src/cometmq/_version.py", '__version__ = "1.2.0"\n')
        self.write("CHANGELOG.md", "# Changelog\n\n## 1.2.0 (2026-11-22)\n\n## 1.1.0\n")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return subprocess.check_output(["git", *who, *arguments], cwd=self.path, text=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")

    def release(self) -> tuple[int, str]:
        ran = subprocess.run(
            ["scripts/release", "--dry-run"],
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_what_is_committed_and_described_can_be_released(repository: Repository) -> None:
    status, text = repository.release()
    assert (status, text[:22]) == (0, "1.2.0 could be release"), text


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_a_dirty_tree_is_not_released(repository: Repository, name: str) -> None:
    repository.write(name, "## 1.2.0\n")
    status, text = repository.release()
    assert status == 1
    assert "commit these files" in text
    assert name in text


@pytest.mark.parametrize("version", ["1.3.0", "1.2", "1x2.0"])
def test_a_version_without_its_changes_is_not_released(
    repository: Repository, version: str
) -> None:
    repository.write("src/cometmq/_version.py", f'__version__ = "{version}"\n')
    repository.commit()
    status, text = repository.release()
    assert status == 1
    assert f"no section '## {version}'" in text


def test_a_version_is_released_once(repository: Repository) -> None:
    repository.git("tag", "v1.2.0")
    status, text = repository.release()
    assert status == 1
    assert "the tag v1.2.0 exists" in text

"""docs/testing.md and `examples/testing`, run as a user does: in a directory of his, unconfigured."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.testing import FAULTS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "testing.md").read_text()
PROGRAM = re.compile(r"```python\n# (test_\w+\.py)\n(.*?)```", re.DOTALL)


def passed(directory: Path, *arguments: str) -> int:
    """Run pytest in `directory` and return how many tests passed. No test may fail."""
    (directory / "pytest.ini").write_text("[pytest]\n")  # nothing of a directory above counts
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, "."],
        cwd=directory,
        env={name: text for name, text in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [count] = re.findall(r" (\d+) passed in", done.stdout)
    return int(count)


@pytest.mark.parametrize("arguments", [["-p", "no:asyncio"], ["--asyncio-mode=auto"]])
def test_the_example_passes(arguments: list[str], tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "testing", tmp_path / "shop", ignore=ignored)
    assert passed(tmp_path, *arguments) == 8


def test_the_programs_of_the_guide_pass(tmp_path: Path) -> None:
    programs = dict(PROGRAM.findall(GUIDE))
    assert len(programs) == GUIDE.count("```python"), "each program begins with its file's name"
    for name, code in programs.items():
        (tmp_path / name).write_text(code)
    tests = sum(len(re.findall(r"\bdef test_", code)) for code in programs.values())
    assert passed(tmp_path, "-p", "no:asyncio") == tests


def test_the_guide_names_every_fault() -> None:
    section = GUIDE.partition("## Faults")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert not set(FAULTS) - named

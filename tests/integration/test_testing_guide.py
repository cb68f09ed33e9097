"""docs/testing.md and `examples/testing`, run as a user does: in a directory of their own,
unconfigured.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.waits import PROCESS_WAIT_S

from cometmq.testing import FAULTS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "testing.md").read_text()
PROGRAM = re.compile(r"```python\n# (test_\w+\.py)\n(.*?)```", re.DOTALL)


def test_the_example_and_the_programs_of_the_guide_pass(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "testing", tmp_path / "shop", ignore=ignored)
    programs = dict(PROGRAM.findall(GUIDE))
    assert len(programs) == GUIDE.count("```python"), "each program begins with its file's name"
    for name, code in programs.items():
        (tmp_path / name).write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # nothing of a directory above counts
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    code = "\n".join(path.read_text() for path in tmp_path.rglob("test_*.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" {len(re.findall(r'def test_', code))} passed in" in done.stdout


def test_the_guide_names_every_fault() -> None:
    section = GUIDE.partition("## Faults")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert not set(FAULTS) - named

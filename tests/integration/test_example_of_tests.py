"""`examples/testing`, run as its page says: in a directory of the user's, with nothing configured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "testing"


def test_the_tests_of_the_example_pass_unconfigured(tmp_path: Path) -> None:
    tests = tmp_path / "shop"
    shutil.copytree(EXAMPLE, tests, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # no configuration of ours above
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", "shop"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 8 passed" in done.stdout

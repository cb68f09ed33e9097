"""The demo where Spark can run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.spark.processes import QUICK_JAVA

ROOT = Path(__file__).parents[2]


def test_it_ends_with_an_archive_and_its_audit(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    result = subprocess.run(
        [sys.executable, "-m", "examples.demo", str(reports)],
        cwd=ROOT,
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "OK sent = stored = received: 10,000 = 10,000 = 10,000" in result.stdout
    for name in ("archive", "audit"):
        assert json.loads((reports / f"{name}.json").read_text())["holds"]
        assert (reports / f"{name}.html").stat().st_size
    assert str(reports / "audit.html") in result.stdout
    # Java's own words are in a file.
    assert "WARN" not in result.stderr
    assert (reports / "spark.log").exists()

"""Imports of a process of Spark that only plans: pandas is two seconds of its time, and of no use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = """
import pyspark_cometmq, pyspark_cometmq_store
pyspark_cometmq.DefaultSource, pyspark_cometmq_store.DefaultSource
import cometmq.spark.live.stream, cometmq.spark.sink.outbox_sending, cometmq.spark.sink.writer
"""
A_VALUE = "import pyarrow; pyarrow.array([1])"


def ended(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` where a pandas is installed that ends whoever imports it."""
    (directory / "pandas.py").write_text("raise SystemExit('pandas was imported')")
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_sources_and_sink_import_no_pandas(tmp_path: Path) -> None:
    assert "pandas was imported" in ended(A_VALUE, tmp_path).stderr, "pyarrow does so no longer"
    done = ended(SOURCES, tmp_path)
    assert done.returncode == 0, done.stderr

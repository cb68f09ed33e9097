"""Each supported PySpark beside the newest, and Spark Connect: sources, sink and what is refused.

`make spark-versions` makes the thin environments, one directory each that is put in front of the
path, and names them in COMETMQ_SPARK_VERSIONS.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.smoke import HANGS_S

from cometmq.spark.jvm import jar_path

ROOT = Path(__file__).parents[2]
VERSIONS = os.environ.get("COMETMQ_SPARK_VERSIONS", "").split()


@pytest.mark.parametrize("version", VERSIONS)
def test_sources_and_sink_with_another_pyspark(tmp_path: Path, version: str) -> None:
    packages = ROOT / f".venv-spark-{version}"
    assert packages.is_dir(), f"make {packages.name}/.ready makes it"
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"}
    environment.pop("SPARK_HOME", None)
    connect = ["connect"] if version == "connect" else []
    program = [sys.executable, "-m", "tests.spark.smoke", str(tmp_path), *connect]
    # In a group of its own, so that a JVM ends with it, whatever happens.
    running = subprocess.Popen(
        program, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = running.communicate(timeout=HANGS_S + 20)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        said, _ = running.communicate()
    assert running.returncode == 0, said
    assert "all held with PySpark " + ("" if connect else version) in said
    assert ("held: store_in_the_jvm" in said) == (jar_path() is not None and not connect)


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK")
@pytest.mark.parametrize("version", [version for version in VERSIONS if version != "connect"])
def test_the_store_reader_compiles_against_another_pyspark(version: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / f".venv-spark-{version}")}
    program = [sys.executable, str(ROOT / "scripts" / "store-jar"), "--check"]
    ended = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"

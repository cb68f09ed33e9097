"""Make the archive of an environment by the commands of docs/spark-clusters.md, and run that page's other commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.integration.test_snippets import snippets
from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.spark.standalone import HOME, HOST, ROOT

PAGE: Final = "docs/spark-clusters.md"
_BIN: Final = Path(sys.executable).parent
SMALL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": PLAIN_QUICK_JAVA,
    "spark.executor.memory": "512m",
    "spark.executor.instances": "1",
    "spark.executor.extraJavaOptions": PLAIN_QUICK_JAVA,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "600s",
}


def script_with(words: str) -> str:
    """Return the only block of commands of the page that has these words, as a script for bash."""
    (found,) = [
        one.text for one in snippets(PAGE) if one.language == "console" and words in one.text
    ]
    return re.sub(r"^\$ ", "", found, flags=re.MULTILINE)


def run_script(
    script: str, directory: Path, settings: Mapping[str, str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a directory, with Spark's settings in the file of its defaults."""
    configuration = directory / "spark-conf"
    configuration.mkdir(exist_ok=True)
    lines = "".join(f"{name} {value}\n" for name, value in {**SMALL, **settings}.items())
    (configuration / "spark-defaults.conf").write_text(lines)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "PATH": f"{HOME / 'bin'}:{_BIN}:{os.environ['PATH']}",
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_SUBMIT_OPTS": PLAIN_QUICK_JAVA,
        # The packages of the lock, with which all other tests run.
        "UV_CONSTRAINT": str(ROOT / "locks" / "dev-spark-tables.txt"),
        **variables,
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def make_environment(directory: Path) -> Path:
    """Return a directory with `environment` and `environment.tar.gz`, of a wheel of this checkout."""
    built = subprocess.run(
        [_BIN / "uv", "build", "--quiet", "--wheel", "--python", sys.executable,
         "--build-constraints", ROOT / "locks" / "build.txt", "--require-hashes", "--out-dir", directory / "dist", ROOT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = (directory / "dist").glob("*.whl")
    script = script_with("uv venv --relocatable").replace("'cometmq[spark]'", f"'{wheel}[spark]'")
    made = run_script(script, directory, {})
    assert made.returncode == 0, made.stdout
    return directory

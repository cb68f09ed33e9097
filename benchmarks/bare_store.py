"""Compile the bare reader of stores, with which the benchmark compares the reader in the JVM.

`java/BareStore.java` returns body and tags of each record of a log and checks nothing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import zipfile
from pathlib import Path
from typing import Final

FORMAT: Final = "cometmq.benchmarks.BareStore"
_SOURCE: Final = Path(__file__).parent / "java" / "BareStore.java"


def bare_jar(directory: Path) -> Path:
    """Compile the reader into a jar in a directory. Raise CalledProcessError, FileNotFoundError."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    jars, classes = Path(spark.origin).parent / "jars", directory / "bare-classes"
    classes.mkdir()
    command = ["javac", "--release", "17", "-proc:none", "-cp", f"{jars}/*", "-d", str(classes)]
    subprocess.run([*command, str(_SOURCE)], check=True)
    jar = directory / "bare-store.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        for path in sorted(classes.rglob("*.class")):
            packed.write(path, path.relative_to(classes).as_posix())
    return jar

"""Run a server of Java's for tests, with its log in a directory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.waits import JVM_WAIT_S, eventually


def jars_of_spark(*patterns: str) -> list[str]:
    """Return the jars of the installed PySpark whose names match."""
    directory = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    return [str(path) for pattern in patterns for path in directory.glob(pattern)]


@contextmanager
def java_server(
    directory: Path,
    words: Sequence[str],
    is_ready: Callable[[], bool],
    *,
    end: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
    java: str | None = None,
) -> Iterator[None]:
    """Run `java` with these words in `directory`, and wait until `is_ready`. `end` ends the process.

    java: its path, if it is not the one of the system.
    """
    java = java or shutil.which("java")
    assert java is not None
    log_file = directory / "server.log"
    with log_file.open("w") as log:
        server = subprocess.Popen(
            [java, *PLAIN_QUICK_JAVA.split(), f"-Djava.io.tmpdir={directory}", *words],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def runs() -> bool:
        assert server.poll() is None, log_file.read_text()[-4000:]
        return is_ready()

    try:
        eventually(runs, wait_s=JVM_WAIT_S)
        yield
    finally:
        end(server)
        server.wait()

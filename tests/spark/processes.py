"""The processes of this machine, as a tree."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.spark.class_archive import spark_options

# Java starts sooner like this, on few cores, and there are many starts. Classes are published ones, so
# their bytecode is not verified. A JVM that is killed leaves files in its temporary directory, which is
# that of the run: `tests.temporary`.
PLAIN_QUICK_JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:-UsePerfData"
    f" -Djava.io.tmpdir={tempfile.gettempdir()}"
)
QUICK_JAVA: Final = PLAIN_QUICK_JAVA + spark_options()
# Many small queries: compiling them costs more than it saves, a third of an audit's processor time.
# Only these drivers run compiled queries, as users' drivers do: the demo, which archives and audits, a
# redrive, and the driver of `test_kills`.
QUICK_QUERIES: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    # This rule looks for consequences of conditions, in plans that are larger than the tables: an eighth of an
    # audit's processor time.
    "spark.sql.constraintPropagation.enabled": "false",
    # Plans are written only for a page that no test opens.
    "spark.sql.ui.explainMode": "simple",
}


# A driver of a pipeline that a test kills.
QUICK_DRIVER: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    **QUICK_QUERIES,
}


def inline_table(config: Mapping[str, str]) -> str:
    """Return settings of Spark as the TOML of a pipeline's key `config`."""
    pairs = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in config.items()]
    return f"{{ {', '.join(pairs)} }}"


class Process(NamedTuple):
    pid: int
    parent: int
    line: str


def below(roots: Collection[int]) -> list[Process]:
    """All descendants of these processes."""
    found = {process.pid: process for process in _all()}

    def is_ours(pid: int) -> bool:
        while pid in found:
            pid = found[pid].parent
            if pid in roots:
                return True
        return False

    return [process for process in found.values() if is_ours(process.pid)]


def kill(pid: int) -> bool:
    """Whether it was there to be killed."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _all() -> list[Process]:
    processes = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                line = (path / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if fields[0] != "Z":
                processes.append(Process(int(path.name), int(fields[1]), line))
    return processes

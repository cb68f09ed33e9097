"""Run Spark's Python such that the processor time of its workers can be counted after they ended.

    python -m benchmarks.counted_python pyspark.worker

PySpark's daemon ignores SIGCHLD, and a kernel adds the time of a child that nobody waits for to no
parent. So whatever a worker did was lost when it ended, and a round could have taken less than no
time. Here the daemon waits for its workers; everything else is as it was. A setting of Spark's names
another daemon for tasks, but not for the processes that plan a reading, so this stands in for Python.
"""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DAEMON = "pyspark.daemon"


def counted_python(directory: Path) -> str:
    """Write an executable for PYSPARK_PYTHON into a directory, and return its path."""
    path = directory / "counted-python"
    root = shlex.quote(str(Path(__file__).parents[1]))
    python = shlex.quote(sys.executable)
    path.write_text(
        f"""#!/bin/sh
if [ "$1 $2" = "-m {_DAEMON}" ]; then
    shift 2
    PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} -m {__name__} "$@"
fi
exec {python} "$@"
"""
    )
    path.chmod(0o755)
    return str(path)


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and all that it started, ended ones included.

    An ended process counts if its parent has waited for it.
    """
    while True:
        ticks = _ticks_below(root)
        # A process that ends in between may be counted twice or not at all.
        if _ticks_below(root).keys() == ticks.keys():
            return sum(ticks.values()) / os.sysconf("SC_CLK_TCK")


def stats_below(root: int) -> dict[int, list[str]]:
    """Return what /proc/PID/stat says behind the name, for a process and all that it started."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stats[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue

    def is_below(process: int) -> bool:
        while process in stats and process != root:
            process = int(stats[process][1])
        return process == root

    return {process: fields for process, fields in stats.items() if is_below(process)}


def _ticks_below(root: int) -> dict[int, int]:
    return {process: sum(map(int, fields[11:15])) for process, fields in stats_below(root).items()}


def _reap(_number: int, _frame: object) -> None:
    """Wait for all children that have ended: several may have done so at once."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _reaping(plain: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    """Return `signal.signal` for a process that would ignore SIGCHLD, and now reaps."""

    def chosen(number: int, handler: Any) -> Any:
        ignored = number == signal.SIGCHLD and handler == signal.SIG_IGN
        return plain(number, _reap if ignored else handler)

    return chosen


def main() -> None:
    vars(signal)["signal"] = _reaping(signal.signal)
    runpy.run_module(_DAEMON, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

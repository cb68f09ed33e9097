"""Keep the temporary files of tests in memory: a pytest plugin, `-p tests.in_memory`.

Thousands of tests make a store each, and wait for a disk that proves nothing to them. The plugin gives
them a directory under /dev/shm, if that has the room; otherwise they stay where they would be, and the
last lines of the run say so. A test that is about a real disk takes the fixture `path_on_disk` of
`tests/conftest.py`. Crashes,
kills and power losses (`make crash`) never run with this plugin.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
# A run of all tests has up to 8 GiB of files, most of them preallocated by brokers.
NEEDED_BYTES: Final = 11 << 30
_made = pytest.StashKey[Path]()


def room_in_memory() -> int:
    """Return how many bytes /dev/shm and the machine's memory have for files; 0 where there is no /dev/shm."""
    try:
        free = shutil.disk_usage(MEMORY).free
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    available = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return min(free, int(available.split()[1]) << 10)


def pytest_configure(config: pytest.Config) -> None:
    # Workers have the variable from the process that starts them.
    if hasattr(config, "workerinput") or room_in_memory() < NEEDED_BYTES:
        return
    made = Path(tempfile.mkdtemp(prefix="cometmq-tests-", dir=MEMORY))
    config.stash[_made] = made
    os.environ["TMPDIR"] = str(made)
    tempfile.tempdir = None  # asks the environment again


def pytest_unconfigure(config: pytest.Config) -> None:
    made = config.stash.get(_made, None)
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.stash.get(_made, None) is None:
        gib = NEEDED_BYTES >> 30
        terminalreporter.write_line(
            f"the tests' files were on disk: {MEMORY} or the memory has less than {gib} GiB free"
        )

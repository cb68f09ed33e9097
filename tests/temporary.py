"""Give each run of pytest a temporary directory of its own, and remove it when the run ends.

Programs that tests kill leave files in the temporary directory: a JVM of RocketMQ or Spark leaves unpacked
libraries (12 MB each), and Spark leaves its blocks. The workers of pytest-xdist and all programs that a run starts
take the directory from TMPDIR. If the run itself is killed, its directory stays. The directories of failed tests
stay where pytest would keep them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

_VARIABLE: Final = "TMPDIR"
_OF_PYTEST: Final = "PYTEST_DEBUG_TEMPROOT"


_made: list[Path] = []


def begin() -> None:
    """Make the directory, in the process that starts the workers, before conftest modules ask for its name."""
    # `tests.in_memory` makes a directory in memory.
    if _made or "PYTEST_XDIST_WORKER" in os.environ or "tests.in_memory" in sys.modules:
        return
    os.environ.setdefault(_OF_PYTEST, tempfile.gettempdir())
    _made.append(Path(tempfile.mkdtemp(prefix="cometmq-run-")))
    _use(str(_made[0]))


def register(config: pytest.Config) -> None:
    """Have pytest remove the directory at the end of the run."""
    begin()
    if _made:
        config.add_cleanup(_remove)


def _remove() -> None:
    made = _made.pop()
    _use(str(made.parent))
    shutil.rmtree(made, ignore_errors=True)


def _use(directory: str) -> None:
    os.environ[_VARIABLE] = directory
    tempfile.tempdir = None  # so that tempfile reads the environment again

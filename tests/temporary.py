"""Give each run of pytest a temporary directory of its own, which goes with the run.

Programs that tests kill leave files in the temporary directory: a JVM of RocketMQ or Spark its unpacked
libraries (12 MB each), Spark its blocks. All that a run starts, and the workers of pytest-xdist, take the
directory from TMPDIR. A run that is killed itself leaves it behind. The directories of tests that failed
stay where pytest would keep them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest

_VARIABLE: Final = "TMPDIR"
_OF_PYTEST: Final = "PYTEST_DEBUG_TEMPROOT"


def register(config: pytest.Config) -> None:
    """Make the directory, in the process that starts the workers; `tests.in_memory` makes one in memory itself."""
    if hasattr(config, "workerinput") or config.pluginmanager.has_plugin("tests.in_memory"):
        return
    before = os.environ.get(_VARIABLE)
    os.environ.setdefault(_OF_PYTEST, tempfile.gettempdir())
    made = Path(tempfile.mkdtemp(prefix="cometmq-run-"))
    _use(str(made))

    def remove() -> None:
        _use(before)
        shutil.rmtree(made, ignore_errors=True)

    config.add_cleanup(remove)


def _use(directory: str | None) -> None:
    if directory is None:
        del os.environ[_VARIABLE]
    else:
        os.environ[_VARIABLE] = directory
    tempfile.tempdir = None  # asks the environment again

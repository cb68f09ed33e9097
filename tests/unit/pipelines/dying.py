"""Let a process die at a step of its work on the file system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

# Steps on the file system, of which a commit has fewer.
MOST_STEPS = 200
STEPS = (
    "open",
    "os.link",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "shutil.rmtree",
    "ctypes.dlsym",
)


def die_at(step: int, root: Path, work: Callable[[], object]) -> bool:
    """Do the work in a process that dies at its `step`th step below `root`; return whether it
    died.
    """
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS and (event == "ctypes.dlsym" or str(arguments[0]).startswith(str(root))):
            left -= 1
            if left < 0:
                os._exit(9)

    try:
        sys.addaudithook(hook)
        work()
        os._exit(0)
    finally:
        os._exit(1)

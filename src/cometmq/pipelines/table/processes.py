"""Sum the processor time of a process and its descendants, as Linux lists it in `/proc`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TABLE: Final = Path("/proc")
# The fields behind the program's name in parentheses: the parent, and the times in ticks of the process and of
# its children that have ended.
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)


def cpu_s(root: int) -> float | None:
    """Return the processor time in seconds of a process and its descendants, also of those that have ended.

    It is None where there is no `/proc`, or no such process.
    """
    found: dict[int, tuple[int, int]] = {}
    try:
        for path in _TABLE.iterdir():
            if path.name.isdecimal():
                try:
                    # Linux cuts names after 15 bytes, within a letter too, so they are no text.
                    fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                except OSError:  # it ended meanwhile
                    continue
                found[int(path.name)] = int(fields[_PARENT]), sum(map(int, fields[_TIMES]))
    except OSError:
        return None
    if root not in found:
        return None
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in found.items():
        children.setdefault(parent, []).append(pid)
    total, below = 0, [root]
    while below:
        pid = below.pop()
        total += found[pid][1]
        below += children.get(pid, ())
    return total / os.sysconf("SC_CLK_TCK")

"""Measure once how much slower this machine is, at the moment, than one with two quiet cores.

The process that starts the tests measures when it loads `tests/conftest.py`, before pytest-xdist starts
its workers. They, and all processes that tests start, find the figure in the environment:

    COMETMQ_PACE=8 .venv/bin/python -m pytest …   # waits, limits and timeouts are eight times as long

It is the larger of two figures, between 1 and MOST: how long a fixed piece of Python's work takes on the
clock, for the time on a quiet machine, and how many processes want each core. The first shows a slow
machine, the second a busy one whose turn the work happened to have.

Only what ends a wait in vain is multiplied by it: `tests.waits` and the limits of tests. All these are
long enough for a machine that becomes ten times slower after the measurement.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_VARIABLE: Final = "COMETMQ_PACE"
# A test that hangs ends in the end, however busy the machine is.
MOST: Final = 16.0
# Nor does a limit that is longer on a slow machine become longer than this.
_MOST_LIMIT_S: Final = 7200.0
# What the work takes on two quiet cores of 2.5 GHz with Python 3.11.
_ROUNDS: Final = 2_200_000
_QUIET_S: Final = 0.05
# What a runner's three workers want of each core is in the lengths of the waits already.
_OWN_PER_CORE: Final = 1.5


def _work_s() -> float:
    began_at = time.perf_counter()
    total = 0
    for number in range(_ROUNDS):
        total ^= number
    return time.perf_counter() - began_at


def wanting_per_core(loadavg: str, cores: int) -> float:
    """Return how many processes want each core: of the last minute or, if more, at the moment.

    `loadavg` is the text of /proc/loadavg: `17.64 9.21 4.80 19/312 4711`.
    """
    words = loadavg.split()
    at_the_moment = int(words[3].partition("/")[0]) - 1  # this one, which reads the file
    return max(float(words[0]), at_the_moment) / cores


def _load() -> float:
    try:
        text = Path("/proc/loadavg").read_text()
    except OSError:
        text = "{} {} {} 1/1 1".format(*os.getloadavg())
    return wanting_per_core(text, os.cpu_count() or 1)


def pace_of(work_s: float, wanting: float) -> float:
    """Return the pace of a machine on which the work took `work_s` and `wanting` processes want a core."""
    return round(min(MOST, max(1.0, work_s / _QUIET_S, wanting / _OWN_PER_CORE)), 1)


def _measured() -> float:
    given = os.environ.get(_VARIABLE)
    if given is None:
        given = os.environ[_VARIABLE] = str(pace_of(_work_s(), _load()))
    return float(given)


PACE: Final = _measured()


def paced_limit_s(limit_s: float, pace: float = PACE) -> float:
    """Return a test's limit on a machine of this pace; 0 is none."""
    return min(limit_s * pace, max(limit_s, _MOST_LIMIT_S))

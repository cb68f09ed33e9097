"""A simulated run that never ends is ended, and says where it was."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.simulation.limit import RunTooLongError, limited
from tests.waits import WAIT_S

from cometmq.testing import Cluster

# Goes on when it is interrupted. At first it serves no signal, as on a machine with much else to do.
STUBBORN = """
import signal, time
from tests.simulation.limit import limited
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
with limited("seed 4711", 0.05, grace_s=0.1):
    time.sleep(0.5)
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            while True:
                pass  # here it hangs
        except KeyboardInterrupt:
            continue
"""


def spin() -> None:
    while True:
        pass  # here it hangs


def test_the_limit_names_the_run_and_the_line() -> None:
    with (
        pytest.raises(RunTooLongError, match="seed 7 did not end") as caught,
        limited("seed 7", 0.05),
    ):
        spin()
    assert "in spin" in str(caught.value)


def test_a_task_that_hangs_in_virtual_time_is_ended() -> None:
    with (
        Cluster(clock="virtual") as cluster,
        pytest.raises(RunTooLongError, match="in spin"),
        limited("seed 7", 0.2),
    ):
        cluster.run(spinning())


async def spinning() -> None:
    spin()


def test_who_ends_in_time_is_left_alone() -> None:
    with limited("seed 7", WAIT_S):
        pass


def test_a_run_that_goes_on_ends_with_its_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 3
    assert "seed 4711 did not end within 0.05 s of real time (--limit), nor 0.1 s" in done.stderr

"""Ends a simulated run that takes too long in real time, and says where it was.

In virtual time all waits pass at once, so a run that does not end is one that works for ever: it would
hang whoever waits for it, and say nothing. Code in virtual time runs on the thread that called it, so a
signal finds the line.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# A run takes some seconds on a machine of its own, and ten times as many on a busy one.
LIMIT_S: Final = 300.0
# What a run that was interrupted has to clean up.
GRACE_S: Final = 20.0
_FRAMES: Final = 12


class RunTooLongError(KeyboardInterrupt):
    """Says that a run was ended, and where it was. Loops and tasks let a KeyboardInterrupt through."""


@contextmanager
def limited(what: str, limit_s: float, *, grace_s: float = GRACE_S) -> Iterator[None]:
    """Raise RunTooLongError in the block after `limit_s` seconds of real time. For the main thread.

    If the block has not ended `grace_s` after that, the process ends with status 3. `what` names the
    run in what is said.
    """
    reported = f"{what} did not end within {limit_s:g} s of real time (--limit)"
    fired = False

    def on_alarm(_number: int, frame: FrameType | None) -> None:
        nonlocal fired
        where = "".join(traceback.format_stack(frame)[-_FRAMES:])
        if fired:
            os.write(
                2,
                f"{reported}, nor {grace_s:g} s after it was interrupted; it is at\n{where}".encode(),
            )
            os._exit(3)
        fired = True
        raise RunTooLongError(f"{reported}; it was at\n{where}")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit_s, grace_s)
    # For a run that hangs where no signal is served, in a regular expression for example. A busy machine
    # may serve one late, which must not look like that, so a short `grace_s` does not shorten this.
    faulthandler.dump_traceback_later(limit_s + grace_s + GRACE_S, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

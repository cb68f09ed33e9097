"""Say which clock, randomness, network, workers and state files the calling code has.

Code that makes an object which needs one of them and is given none takes those of `current()`. On a
machine these are the machine's. The nodes of a virtual cluster have their own, so that a user's
code runs there as it is (docs/internals/virtual-time.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.runtime.state_files.files import SYSTEM_FILES, Files
from cometmq.runtime.workers import THREADS, Workers


@dataclass(frozen=True)
class Surroundings:
    """Holds what a process meets outside of itself, and the id by which the machine knows it."""

    clock: BlockingClock = SYSTEM_CLOCK
    randomness: Randomness = SYSTEM_RANDOMNESS
    network: Network = TCP_NETWORK
    workers: Workers = THREADS
    files: Files = SYSTEM_FILES
    process_id: Callable[[], int] = os.getpid
    # Says whether the process was killed while others of its world go on: nobody closes its clients.
    is_killed: Callable[[], bool] = lambda: False
    is_virtual: bool = False


MACHINE: Final = Surroundings()
SURROUNDINGS: Final[ContextVar[Surroundings]] = ContextVar("cometmq.surroundings", default=MACHINE)


def files_of(disk: object) -> Files:
    """Return the state files that lie on `disk`: its own if it has some, else the caller's."""
    files: Files | None = getattr(disk, "files", None)
    return current().files if files is None else files


def current() -> Surroundings:
    """Return the surroundings of the calling code: its node's, or else the machine's."""
    return SURROUNDINGS.get()

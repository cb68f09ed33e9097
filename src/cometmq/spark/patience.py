"""Wait, in a blocking thread, for servers that are away for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock

log = get_logger(__name__)

T = TypeVar("T")

_AGAIN_S: Final = 0.5


def patiently(ask: Callable[[], T], patience_s: float, clock: BlockingClock = SYSTEM_CLOCK) -> T:
    """Call `ask` until it succeeds, for up to `patience_s` while it fails with errors that may
    pass.
    """
    deadline = clock.monotonic() + patience_s
    while True:
        try:
            return ask()
        except CometMQError as error:
            if not error.retriable or clock.monotonic() >= deadline:
                raise
            log.warning("a server is waited for", reason=str(error))
        clock.sleep(_AGAIN_S)

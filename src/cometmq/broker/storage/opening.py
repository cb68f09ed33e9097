"""Log the progress of a start while the store scans its log, which may take minutes."""

from __future__ import annotations

from typing import Final

from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import Clock

log = get_logger(__name__)

_SAID_EVERY_S: Final = 2.0
_MIB: Final = 1 << 20


class OpeningProgress:
    """Logs a line every two seconds; a quicker start logs none. Pass it to `MessageStore.open`."""

    def __init__(self, clock: Clock, path: str) -> None:
        self._clock = clock
        self._path = path
        self._next_at = clock.monotonic() + _SAID_EVERY_S

    def __call__(self, scanned: int, total: int) -> None:
        """Note that `scanned` of `total` bytes are done. For the thread that opens the store."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _SAID_EVERY_S
        log.info(
            "recovering the store, not ready yet",
            path=self._path,
            percent=100 * scanned // max(total, 1),
            scanned_mib=scanned // _MIB,
            total_mib=total // _MIB,
        )

"""Count the requests that access control refuses, and log them without a line for each."""

from __future__ import annotations

from typing import Final

from cometmq.access.access_request import AccessRequest
from cometmq.errors import AccessRefusedError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import Clock

log = get_logger(__name__)

PERIOD_S: Final = 10.0
# How many peers and reasons have a line of their own in a period.
MOST_LOGGED: Final = 100


class Refusals:
    """Logs the first refusal of a peer for a reason at once. How many followed is logged when the next
    one comes after the end of the period. For the loop's thread.
    """

    def __init__(self, clock: Clock) -> None:
        # By the reason of an AccessRefusedError.
        self.counts: dict[str, int] = {}
        self._monotonic = clock.monotonic
        self._ends_s = 0.0
        self._told: dict[tuple[str, str, str], int] = {}
        self._untold = 0

    def add(self, asked: AccessRequest, error: AccessRefusedError) -> None:
        """Count one refusal."""
        self.counts[error.reason] = self.counts.get(error.reason, 0) + 1
        now_s = self._monotonic()
        if now_s >= self._ends_s:
            self._summarise()
            self._ends_s = now_s + PERIOD_S
        key = asked.peer_ip, error.reason, error.account
        told = self._told.get(key)
        if told is not None:
            self._told[key] = told + 1
        elif len(self._told) >= MOST_LOGGED:
            self._untold += 1
        else:
            self._told[key] = 0
            log.warning("access refused", peer=asked.peer, code=int(asked.row.code), why=str(error))

    def _summarise(self) -> None:
        more = {key: count for key, count in self._told.items() if count}
        if more or self._untold:
            most = max(more, key=lambda key: more[key], default=("", "", ""))
            log.warning(
                "access refused again",
                refused=sum(more.values()) + self._untold,
                within_s=PERIOD_S,
                most_from=most[0],
                reason=most[1],
                of_it=more.get(most, 0),
            )
        self._told.clear()
        self._untold = 0

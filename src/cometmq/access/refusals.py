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
        self._repeats: dict[tuple[str, str, str], int] = {}
        self._unlogged = 0

    def add(self, asked: AccessRequest, error: AccessRefusedError) -> None:
        """Count one refusal."""
        self.counts[error.reason] = self.counts.get(error.reason, 0) + 1
        now_s = self._monotonic()
        if now_s >= self._ends_s:
            self._summarise()
            self._ends_s = now_s + PERIOD_S
        key = asked.peer_ip, error.reason, error.account
        repeats = self._repeats.get(key)
        if repeats is not None:
            self._repeats[key] = repeats + 1
        elif len(self._repeats) >= MOST_LOGGED:
            self._unlogged += 1
        else:
            self._repeats[key] = 0
            log.warning("access refused", peer=asked.peer, code=int(asked.row.code), why=str(error))

    def _summarise(self) -> None:
        more = {key: count for key, count in self._repeats.items() if count}
        if more or self._unlogged:
            most = max(more, key=lambda key: more[key], default=("", "", ""))
            log.warning(
                "access refused again",
                refused=sum(more.values()) + self._unlogged,
                within_s=PERIOD_S,
                most_from=most[0],
                reason=most[1],
                of_it=more.get(most, 0),
            )
        self._repeats.clear()
        self._unlogged = 0

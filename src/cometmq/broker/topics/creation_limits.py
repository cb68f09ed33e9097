"""Limit how many topics and groups clients make by using them. Java has no such limit.

Topics and groups that an operator makes count towards the total, but are never refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.refusal import Refused
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.clock import Clock

# Clients may make at once what they have left unused for so long: a starting application or a
# deployment makes many at a time.
BURST_S: Final = 10


class CreationLimit:
    """Limits the creation of topics or of groups. For the loop's thread.

    `per_second` and `in_all` return the present values of the settings named `rate_key` and
    `total_key`; 0 is no limit.
    """

    def __init__(
        self,
        what: str,
        clock: Clock,
        rate_key: str,
        per_second: Callable[[], int],
        total_key: str,
        in_all: Callable[[], int],
    ) -> None:
        self._what = what
        self._clock = clock
        self._rate_key = rate_key
        self._per_second = per_second
        self._total_key = total_key
        self._in_all = in_all
        self._left: float | None = None
        self._filled_at = 0.0

    def take(self, name: str, count: int) -> None:
        """Let `name` be made beside `count` others, or raise Refused.

        The code of the refusal makes clients try again, at another broker if there is one.
        """
        in_all = self._in_all()
        if 0 < in_all <= count:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"the {self._what} {name} is not made: this broker has {count} {self._what}s, the "
                f"limit {self._total_key} is {in_all}; remove some, or raise it",
                limit=self._total_key,
            )
        per_second = self._per_second()
        if per_second <= 0:
            return
        now = self._clock.monotonic()
        most = per_second * BURST_S
        left = most if self._left is None else self._left + (now - self._filled_at) * per_second
        self._left, self._filled_at = min(left, most), now
        if self._left < 1:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"the {self._what} {name} is not made: clients have made {most} {self._what}s in "
                f"{BURST_S} s, the limit {self._rate_key} is {per_second} a second; try again in a "
                "second, make them beforehand, or raise it",
                limit=self._rate_key,
            )
        self._left -= 1

"""Checks logins, few at a time, and slows down who guesses."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from cometmq.console.accounts import Account, Accounts
from cometmq.errors import CometMQError
from cometmq.runtime.clock import Clock

# A check costs 50 ms of a processor and 16 MiB.
CHECKS_AT_ONCE: Final = 2
WAITING: Final = 32
# After so many wrong passwords an address or a name waits.
FREE_FAULTS: Final = 5
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 300.0
MAX_KEYS: Final = 10_000


class TooManyLoginsError(CometMQError):
    """Too many wrong passwords came from an address or for a name, or too many logins wait."""


class Logins:
    """Checks names and passwords. For the loop's thread only; the hashing runs in other threads."""

    def __init__(self, accounts: Accounts | None, clock: Clock) -> None:
        self._accounts = accounts
        self._clock = clock
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        # The faults in a row, and the time before which no further attempt is looked at.
        self._faults: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def check(self, name: str, password: str, address: str) -> Account | None:
        """Return the account, None for a wrong name or password. Raises TooManyLoginsError."""
        if self._accounts is None:
            return None
        keys = [f"address {address}", f"name {name[:100]} of {address}"]
        now_s = self._clock.monotonic()
        wait_s = max(self._faults.get(key, (0, 0.0))[1] - now_s for key in keys)
        if wait_s > 0:
            raise TooManyLoginsError(
                f"too many wrong passwords came from {address}: try again in {wait_s:.0f} s"
            )
        if self._waiting >= WAITING:
            raise TooManyLoginsError(f"{WAITING} logins are being checked: try again in a moment")
        self._waiting += 1
        try:
            async with self._checking:
                account = await asyncio.to_thread(self._accounts.verify, name, password)
        finally:
            self._waiting -= 1
        for key in keys:
            if account is not None:
                self._faults.pop(key, None)
            else:
                self._count(key)
        return account

    def _count(self, key: str) -> None:
        faults = self._faults.pop(key, (0, 0.0))[0] + 1
        over = faults - FREE_FAULTS
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(over, 20), LONGEST_WAIT_S) if over >= 0 else 0.0
        self._faults[key] = faults, self._clock.monotonic() + wait_s
        while len(self._faults) > MAX_KEYS:
            self._faults.popitem(last=False)

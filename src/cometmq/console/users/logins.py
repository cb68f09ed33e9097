"""Check logins, few at a time, and slow down guesses at passwords."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

from cometmq.console.refusals import Refused
from cometmq.console.users.accounts import Account, Accounts
from cometmq.errors import CometMQError
from cometmq.runtime.clock import Clock
from cometmq.runtime.sockets.addresses import network_of

# A check costs 50 ms of a processor and 16 MiB.
CHECKS_AT_ONCE: Final = 2
MAX_LOGINS_WAITING: Final = 32
# After this many wrong passwords a name from an address has to wait, and an address for all names. Many
# people may be behind one address, so an address waits later and less long.
NAME_FAULTS: Final = 5
LONGEST_NAME_WAIT_S: Final = 60.0
ADDRESS_FAULTS: Final = 50
LONGEST_ADDRESS_WAIT_S: Final = 15.0
FIRST_WAIT_S: Final = 1.0
# After this time one wrong password is forgotten.
FORGET_S: Final = 60.0
MAX_KEYS: Final = 10_000


class _Bound(NamedTuple):
    """Is a limit on wrong passwords: its name, how many there may be, and the longest wait after
    them.
    """

    limit: str
    faults: int
    longest_wait_s: float


class _Faults(NamedTuple):
    """Counts the remembered wrong passwords, since when, and when the next password is looked
    at.
    """

    faults: float = 0.0
    at_s: float = 0.0
    until_s: float = 0.0


class TooManyLoginsError(CometMQError):
    """Too many wrong passwords came from an address or for a name, or too many logins wait."""


class Logins:
    """Checks names and passwords. For the loop's thread only; the hashing runs in other threads."""

    def __init__(self, accounts: Accounts | None, clock: Clock) -> None:
        self._accounts = accounts
        self._clock = clock
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        # The checks under way, by the key under which a wrong password counts.
        self._under_way: Counter[str] = Counter()
        self._faults: OrderedDict[str, _Faults] = OrderedDict()

    async def check(self, name: str, password: str, address: str) -> Account | None:
        """Return the account, None for a wrong name or password. Raises TooManyLoginsError."""
        if self._accounts is None:
            return None
        place = network_of(address)
        keys = {
            f"address {place}": _Bound("ADDRESS_FAULTS", ADDRESS_FAULTS, LONGEST_ADDRESS_WAIT_S),
            f"name {name[:100]} of {place}": _Bound(
                "NAME_FAULTS", NAME_FAULTS, LONGEST_NAME_WAIT_S
            ),
        }
        self._refuse_early(keys, address)
        if self._waiting >= MAX_LOGINS_WAITING:
            raise TooManyLoginsError(
                Refused.LOGINS(count=self._waiting, most=MAX_LOGINS_WAITING),
                limit="MAX_LOGINS_WAITING",
            )
        self._waiting += 1
        try:
            async with self._checking:
                # Guesses before it may have failed meanwhile: no more guesses may be looked at when
                # they are sent at once than when they are sent one by one.
                self._refuse_early(keys, address)
                self._under_way.update(keys.keys())
                try:
                    account = await self._verified(self._accounts, name, password)
                finally:
                    self._under_way.subtract(keys.keys())
                    self._under_way += Counter()  # forgets those that are 0
        finally:
            self._waiting -= 1
        for key, bound in keys.items():
            if account is None:
                self._count(key, bound.faults, bound.longest_wait_s)
        if account is not None:
            # Only the count of this name: the owner of one password must not get more guesses at
            # others.
            self._faults.pop(f"name {name[:100]} of {place}", None)
        return account

    def _refuse_early(self, keys: Mapping[str, _Bound], address: str) -> None:
        """Raise TooManyLoginsError while a name or an address waits. A check that is under way counts
        as failed.
        """
        now_s = self._clock.monotonic()
        longest_s, met = 0.0, None
        for key, bound in keys.items():
            known = self._faults.get(key, _Faults(0.0, now_s))
            wait_s = known.until_s - now_s
            under_way = self._under_way[key]
            if under_way and ceil(self._left(known, now_s)) + under_way >= bound.faults:
                wait_s = max(wait_s, FIRST_WAIT_S)
            if wait_s > longest_s:
                longest_s, met = wait_s, bound
        if met is not None:
            raise TooManyLoginsError(
                Refused.WRONG_PASSWORDS(
                    address=address, limit=met.limit, most=met.faults, seconds=ceil(longest_s)
                ),
                limit=met.limit,
            )

    @staticmethod
    def _left(known: _Faults, now_s: float) -> float:
        """Return how many wrong passwords are not forgotten yet."""
        return max(0.0, known.faults - (now_s - known.at_s) / FORGET_S)

    async def _verified(self, accounts: Accounts, name: str, password: str) -> Account | None:
        """Return the account. One that has changed while its password was checked is checked again."""
        while True:
            before = accounts.changes
            account = await asyncio.to_thread(accounts.verify, name, password)
            if accounts.changes == before:
                return account

    def knows(self, name: str) -> bool:
        """Return whether there is such an account."""
        return self._accounts is not None and name in self._accounts

    def _count(self, key: str, free: int, longest_s: float) -> None:
        now_s = self._clock.monotonic()
        before = self._faults.pop(key, _Faults(0.0, now_s))
        count = self._left(before, now_s) + 1
        over = ceil(count) - free
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(over, 20), longest_s) if over >= 0 else 0.0
        self._faults[key] = _Faults(count, now_s, now_s + wait_s)
        while len(self._faults) > MAX_KEYS:
            self._faults.popitem(last=False)

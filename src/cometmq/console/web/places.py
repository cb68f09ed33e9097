"""Bounds what few may do at once, and what one account may have of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.console.limits import LimitMetError


class Places:
    """Counts who does something of which there may be few at once. For the loop's thread only.

    One account has half of the places at most: whoever takes them all, and comes back whenever one
    is free, would keep everybody else out.
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def check(
        self,
        account: str,
        what: str,
        limit: str,
        most: int,
        remedy: str = "try again in a moment",
        *,
        status: int = 429,
    ) -> None:
        """Raise LimitMetError if there is no place for an account; `what` says what is under way."""
        own = self._taken[account]
        if self.count >= most:
            raise LimitMetError(status, what, limit, most, remedy)
        if own >= max(most // 2, 1):
            raise LimitMetError(
                status,
                f"{what}, {own} of them by the account {account}",
                limit,
                most,
                "one account has half of them at most: wait until one of these has ended",
            )

    def take(self, account: str) -> None:
        """Take a place; `give_back` follows."""
        self._taken[account] += 1

    def give_back(self, account: str) -> None:
        self._taken[account] -= 1
        if not self._taken[account]:
            del self._taken[account]

    @contextmanager
    def taken(self, account: str) -> Iterator[None]:
        """Have a place for as long as the block lasts."""
        self.take(account)
        try:
            yield
        finally:
            self.give_back(account)

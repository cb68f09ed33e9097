"""Bound how often something is done at once, by all and by one account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.console.limits import LimitMetError
from cometmq.console.refusals import Refused


class Places:
    """Has a limited number of places for one kind of work. For the loop's thread only.

    One account has half of the places at most: otherwise it could take every place that becomes
    free, and keep everybody else out.
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
        remedy: str | None = None,
        *,
        status: int = 429,
    ) -> None:
        """Raise LimitMetError if there is no place for an account; `what` says what is under way."""
        own = self._taken[account]
        if self.count >= most:
            raise LimitMetError(status, what, limit, most, remedy or Refused.TRY_AGAIN())
        if own >= max(most // 2, 1):
            raise LimitMetError(
                status,
                Refused.OF_ACCOUNT(what=what, own=own, account=account),
                limit,
                most,
                Refused.HALF_OF_THEM(),
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

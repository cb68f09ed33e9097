"""Decide which producers are asked what became of their transactions (Java:
TransactionalMessageServiceImpl.check).

Callers pass the time; `service.py` reads the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.transactions.half_message import HALF_QUEUE_ID, HalfMessage, read_half
from cometmq.broker.transactions.transactions import Transactions
from cometmq.errors import MessageIllegalError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.store.store import MessageStore

log = get_logger(__name__)

_HOUR_MS: Final = 3_600_000
# At the 6 to 8 µs that benchmarks/README.md gives for a half message, a start reads these in half a
# second.
_MAX_ENDED_BETWEEN: Final = 65_536

# Puts the question to a member of the message's group; returns the bytes sent, 0 if nobody is there.
Ask = Callable[[HalfMessage], int]


class TransactionChecker:
    """Applies the rules of a round of checks. For the loop's thread only.

    `busy` says whether no member of a message's group takes further questions just now; `ask` puts a
    question.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        transactions: Transactions,
        busy: Callable[[HalfMessage], bool],
        ask: Ask,
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._table = transactions.table
        self._config = config
        self._busy = busy
        self._ask = ask
        self.asked_count = 0
        self.failed_count = 0
        # This round replaces all copies in front of this queue offset.
        self._replaced_end = 0

    def round(self, due: Iterable[int], now_ms: int) -> Iterator[None]:
        """Check the transactions that are due, then copy the half messages that keep the consumed
        offset back, one in a step.
        """
        for first in due:
            self.check(first, now_ms)
            yield
        self._gather()
        while self.catch_up(1):
            yield

    def _gather(self) -> None:
        """Have `catch_up` copy all unresolved messages if far more ended ones lie behind the oldest
        one, because each start reads the half queue and the op queue from there on.

        At least as many transactions have ended since the last time as are copied now.
        """
        end = self._store.max_offset(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        unresolved = len(self._table)
        if end - self._table.low_offset(end) > 2 * unresolved + _MAX_ENDED_BETWEEN:
            log.info("copying unresolved half messages to the end of their queue", count=unresolved)
            self._replaced_end = end

    def check(self, first: int, now_ms: int) -> int:
        """Ask for the verdict of a transaction, or give the transaction up; return the bytes sent.

        A step that the store refuses is repeated in the next round.
        """
        newest = self._table.newest(first)
        if newest is None:
            return 0
        try:
            half = read_half(self._store, newest)
            if half is None:
                self._transactions.lost(first)
                return 0
            if half.is_damaged:
                self._transactions.lost(first, half.fault)
                return 0
            return self._check(half, now_ms)
        except StoreError as error:
            self.failed_count += 1
            log.debug("transaction not checked", half_queue_offset=newest, reason=str(error))
            self._table.ask_at(first, now_ms)
            return 0

    def _check(self, half: HalfMessage, now_ms: int) -> int:
        if reason := self._hopeless(half, now_ms):
            self._transactions.give_up(half, reason)
            return 0
        assert half.group is not None, "a transaction without a group is hopeless"
        if self._busy(half):
            self._table.ask_at(half.first_offset, now_ms)
            return 0
        try:
            copy = self._transactions.copy(half, check_times=half.check_times + 1)
        except MessageIllegalError as error:
            # The properties have no room for the number of checks, and no later round will find
            # some.
            self._transactions.give_up(half, str(error))
            return 0
        self._replaced_end = max(self._replaced_end, half.record.queue_offset + 1)
        self._table.ask_at(half.first_offset, now_ms)
        sent = self._ask(copy)
        self.asked_count += sent > 0
        return sent

    def _hopeless(self, half: HalfMessage, now_ms: int) -> str | None:
        if half.fault is not None:
            return half.fault
        if half.check_times >= self._config.transaction_check_max:
            return f"checked {half.check_times} times, the limit is transactionCheckMax"
        max_age_ms = self._store.config.file_reserved_time * _HOUR_MS
        if self._transactions.age_ms(half, now_ms) > max_age_ms:
            return "older than fileReservedTime"
        return None

    def catch_up(self, count: int) -> bool:
        """Copy up to `count` messages that were not due but lie in front of one that was. The
        consumed offset can then pass the copies that were replaced. Return False when none is left.

        Java does the same with messages within their immunity time.
        """
        end = self._replaced_end
        for _ in range(count):
            newest = self._table.low_offset(end)
            if newest >= end:
                self._replaced_end = 0
                return False
            try:
                half = read_half(self._store, newest)
                if half is None:
                    self._transactions.lost(self._table.first_of(newest))
                    continue
                if half.is_damaged:
                    self._transactions.lost(half.first_offset, half.fault)
                    continue
                self._transactions.copy(half)
            except StoreError as error:
                # The consumed offset does not pass this message until it is due. Nothing else
                # depends on that.
                log.debug("half message not copied", offset=newest, reason=str(error))
                return False
        return True

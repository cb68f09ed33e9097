"""Asking producers what became of their transactions.

Java: TransactionalMessageCheckService, TransactionalMessageServiceImpl.check,
AbstractTransactionalMessageCheckListener. `TransactionChecker` decides on a time that is passed in;
`TransactionService` calls it from the loop, a few messages at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.clients import ClientManager
from cometmq.broker.transactions.half_message import HalfMessage, read_half
from cometmq.broker.transactions.transactions import Transactions
from cometmq.errors import ConnectionLostError, MessageIllegalError, StoreError
from cometmq.model import properties as p
from cometmq.protocol import requests
from cometmq.protocol.headers import CheckTransactionStateRequestHeader
from cometmq.protocol.ids import encode_offset_id
from cometmq.protocol.record import encode_record
from cometmq.remoting.connection import Connection
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.store import MessageStore

log = structlog.get_logger(__name__)

_HOUR_MS: Final = 3_600_000
# Between two turns of the loop: a few milliseconds of work, and what a peer may get in one write.
_CHECKS_PER_TURN: Final = 64
_BYTES_PER_TURN: Final = 1024 * 1024
_PUBLISH_PERIOD_S: Final = 1.0

# Puts the question to a member of the message's group; returns the bytes sent, 0 if nobody is there.
Ask = Callable[[HalfMessage], int]


class TransactionChecker:
    """The rules of a round of checks. For the loop's thread only.

    `busy` says that no member of a group takes further questions just now; `ask` puts one.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        transactions: Transactions,
        busy: Callable[[str], bool],
        ask: Ask,
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._table = transactions.table
        self._max_times = config.transaction_check_max
        self._timeout_ms = config.transaction_time_out
        self._busy = busy
        self._ask = ask
        self.asked_count = 0
        self.failed_count = 0
        # Behind the last copy that was replaced by another one in this round.
        self._replaced_end = 0

    def check(self, first: int, now_ms: int) -> int:
        """Ask for the transaction, or give it up; returns the bytes sent.

        What the store refuses is repeated in the next round.
        """
        newest = self._table.newest(first)
        if newest is None:
            return 0
        half = read_half(self._store, newest)
        if half is None:
            self._transactions.lost(first)
            return 0
        try:
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
        assert half.group is not None, "what names none is hopeless"
        if self._busy(half.group):
            self._table.ask_at(half.first_offset, now_ms)
            return 0
        try:
            copy = self._transactions.copy(half, check_times=half.check_times + 1)
        except MessageIllegalError as error:
            # There is no room to count its checks, and no later round will find some.
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
        if half.check_times >= self._max_times:
            return f"checked {half.check_times} times, the limit is transactionCheckMax"
        max_age_ms = self._store.config.file_reserved_time * _HOUR_MS
        if self._transactions.age_ms(half, now_ms) > max_age_ms:
            return "older than fileReservedTime"
        return None

    def catch_up(self, count: int) -> bool:
        """Copy up to `count` messages that were not due but lie in front of one that was, so that
        the consumed offset passes what was replaced; False when none is left.

        Java does the same with what is within its immunity time.
        """
        end = self._replaced_end
        for _ in range(count):
            newest = self._table.low_offset(end)
            if newest >= end:
                self._replaced_end = 0
                return False
            half = read_half(self._store, newest)
            if half is None:
                self._transactions.lost(self._table.first_of(newest))
                continue
            try:
                self._transactions.copy(half)
            except StoreError as error:
                # The offset stays behind it until it is due, and nothing else depends on that.
                log.debug("half message not copied", offset=newest, reason=str(error))
                return False
        return True


class TransactionService:
    """When transactions are checked and progress is written. For the loop's thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        transactions: Transactions,
        clients: ClientManager,
        now_ms: Callable[[], int],
        tasks: TaskOwner,
    ) -> None:
        self._config = config
        self._store = store
        self._transactions = transactions
        self._clients = clients
        self._now_ms = now_ms
        self._tasks = tasks
        self._checker = TransactionChecker(config, store, transactions, self._is_busy, self._ask)
        self._turn = 0

    @property
    def unresolved_count(self) -> int:
        """How many half messages have no verdict."""
        return self._transactions.unresolved_count

    @property
    def asked_count(self) -> int:
        """How many questions were put to producers since the start."""
        return self._checker.asked_count

    def start(self) -> None:
        config = self._config
        self._tasks.every(
            config.transaction_check_interval / 1000, self._round, "check-transactions"
        )
        self._tasks.every(
            config.transaction_op_batch_interval / 1000, self._transactions.flush_ops, "flush-ops"
        )
        self._tasks.every(
            _PUBLISH_PERIOD_S, self._transactions.publish_progress, "transaction-offsets"
        )

    def roll(self, end_place: int) -> int:
        """Copy some of what is unresolved in front of a commit-log offset; see `Cleaner.on_expiring`."""
        return self._transactions.roll(end_place, _CHECKS_PER_TURN)

    def close(self) -> None:
        """Write progress down. The tasks' owner is closed by now, the store is open."""
        try:
            self._transactions.close()
        except StoreError as error:
            # The log tells the next start what ended since the offsets were written.
            log.warning("transaction offsets not saved", reason=str(error))

    async def _round(self) -> None:
        now_ms = self._now_ms()
        table = self._transactions.table
        due = table.take_due(now_ms)
        if not due:
            return
        checker = self._checker
        sent, asked, failed = 0, checker.asked_count, checker.failed_count
        for count, first in enumerate(due, 1):
            sent += checker.check(first, now_ms)
            if count % _CHECKS_PER_TURN == 0 or sent >= _BYTES_PER_TURN:
                sent = 0
                await asyncio.sleep(0)
        behind = True
        while behind:
            behind = checker.catch_up(_CHECKS_PER_TURN)
            await asyncio.sleep(0)
        failed = checker.failed_count - failed
        report = log.warning if failed else log.info
        report(
            "transactions checked",
            due=len(due),
            asked=checker.asked_count - asked,
            refused_by_store=failed,
            unresolved=len(table),
        )

    # -- producers --

    def _live(self, group: str) -> list[Connection]:
        members = self._clients.producers(group)
        return [member.connection for member in members if not member.connection.closed]

    def _is_busy(self, group: str) -> bool:
        live = self._live(group)
        return bool(live) and all(connection.congested for connection in live)

    def _ask(self, half: HalfMessage) -> int:
        assert half.group is not None
        live = [c for c in self._live(half.group) if not c.congested]
        if not live:
            log.debug("no producer to ask", group=half.group)
            return 0
        # Members take turns, as in Java: one that cannot answer delays nobody for long.
        self._turn += 1
        connection = live[self._turn % len(live)]
        body = _record_for_producer(half)
        try:
            connection.send_oneway(
                requests.CHECK_TRANSACTION_STATE.command(
                    _question(half, self._config.broker_name), body
                )
            )
        except ConnectionLostError:
            return 0
        return len(body)


def _question(half: HalfMessage, broker_name: str) -> CheckTransactionStateRequestHeader:
    record = half.record
    unique_id = half.properties.get(p.UNIQ_CLIENT_MESSAGE_ID)
    return CheckTransactionStateRequestHeader(
        topic=record.topic,
        tran_state_table_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        msg_id=unique_id,
        transaction_id=unique_id,
        offset_msg_id=encode_offset_id(record.store_host, record.physical_offset),
        broker_name=broker_name,
    )


def _record_for_producer(half: HalfMessage) -> bytes:
    """The half message as a record of the topic and queue that it is meant for."""
    record = half.record
    assert half.real_topic is not None
    assert half.real_queue_id is not None
    return encode_record(
        topic=half.real_topic.encode(),
        body=record.body,
        properties=record.properties.encode(),
        queue_id=half.real_queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        flag=record.flag,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )

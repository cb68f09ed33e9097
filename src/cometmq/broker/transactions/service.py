"""Ask producers from time to time what became of their transactions, and write progress down.

Java: TransactionalMessageCheckService, AbstractTransactionalMessageCheckListener. The rules are in
`check.py`; they are applied to one message after the other, in slices.
"""

from __future__ import annotations

import math
from typing import Final

from cometmq.broker.parts import Parts, Service
from cometmq.broker.storage.group_commit import GroupCommit
from cometmq.broker.transactions.check import TransactionChecker
from cometmq.broker.transactions.half_message import HALF_QUEUE_ID, HalfMessage
from cometmq.broker.transactions.transactions import Put, Transactions
from cometmq.errors import ConnectionLostError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.protocol import requests
from cometmq.protocol.headers import CheckTransactionStateRequestHeader
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.record import encode_moved
from cometmq.protocol.request_type import ResourceKind
from cometmq.remoting.connection import Connection
from cometmq.runtime.slices import run_slices
from cometmq.runtime.tasks import OnDemand

log = get_logger(__name__)

# So many copies take a few milliseconds.
_ROLLED_AT_ONCE: Final = 16
_PUBLISH_PERIOD_S: Final = 1.0


class TransactionService(Service):
    """Has transactions checked, and progress written, at intervals. `put` stores what is committed;
    with `group_commit` the answer to a verdict waits like the answer to a send.

    For the loop's thread only.
    """

    runs_on_slave = False

    def __init__(self, parts: Parts, put: Put, group_commit: GroupCommit | None = None) -> None:
        self._parts = parts
        self._config = parts.config
        self._clients = parts.clients
        self._tasks = parts.tasks
        self._transactions = transactions = Transactions(
            parts.config,
            parts.store,
            parts.topics,
            parts.offsets,
            put,
            parts.clock,
            parts.packed_host,
            group_commit,
        )
        self._checker = TransactionChecker(
            parts.config, parts.store, transactions, self._is_busy, self._ask
        )
        self._turn = 0
        self.prepare = transactions.prepare

    @property
    def unresolved_count(self) -> int:
        """How many half messages have no verdict."""
        return self._transactions.unresolved_count

    @property
    def ended_counts(self) -> tuple[int, int]:
        """How many half messages were committed, and how many rolled back, since the start."""
        return self._transactions.committed_count, self._transactions.rolled_back_count

    @property
    def asked_count(self) -> int:
        """How many questions were put to producers since the start."""
        return self._checker.asked_count

    def waiting_from(self) -> dict[tuple[str, int], int]:
        """Return the queue offset, by topic and queue, before which no half message waits."""
        end = self._parts.store.max_offset(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        low = self._transactions.table.low_offset(end)
        return {(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID): low}

    async def open(self) -> None:
        """Find out which transactions are unresolved."""
        self._transactions.open()
        self._transactions.register(self._parts.handlers)

    def start(self) -> None:
        config = self._config
        self._tasks.every(
            lambda: config.transaction_check_interval / 1000, self._round, "check-transactions"
        )
        writing = OnDemand(
            self._tasks,
            lambda: math.inf if self._transactions.progress_is_written else 0.0,
            self._parts.store.at_growth,
        )
        self._transactions.ops.on_waiting = writing.arm
        writing.every(
            lambda: config.transaction_op_batch_interval / 1000,
            self._transactions.flush_ops,
            "flush-ops",
        )
        writing.every(_PUBLISH_PERIOD_S, self._transactions.publish_progress, "transaction-offsets")

    def roll(self, end_place: int) -> int:
        """Copy unresolved messages in front of a commit-log offset; see `Cleaner.on_expiring`."""
        return self._transactions.roll(end_place, _ROLLED_AT_ONCE)

    def close(self) -> None:
        """Write progress down."""
        try:
            self._transactions.close()
        except StoreError as error:
            # The next start reads from the log which transactions ended since the offsets were written.
            log.warning("transaction offsets not saved", reason=str(error))

    async def _round(self) -> None:
        now_ms = self._parts.clock.now_ms()
        table = self._transactions.table
        due = table.take_due(now_ms)
        checker = self._checker
        asked, failed = checker.asked_count, checker.failed_count
        await run_slices(checker.round(due, now_ms))
        if not due:
            return
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

    def _live(self, half: HalfMessage) -> list[Connection]:
        """Return the connected members of the group that may end the transaction.

        Any account may claim to be of any producers' group, and would be sent the whole message.
        """
        assert half.group is not None
        assert half.real_topic is not None
        row, kind, topic = requests.END_TRANSACTION, ResourceKind.TOPIC, half.real_topic
        permits = self._parts.handlers.permits
        return [
            member.connection
            for member in self._clients.producers(half.group)
            if not member.connection.closed
            and permits(member.account, member.connection, row, kind, topic)
        ]

    def _is_busy(self, half: HalfMessage) -> bool:
        live = self._live(half)
        return bool(live) and all(connection.congested for connection in live)

    def _ask(self, half: HalfMessage) -> int:
        live = [c for c in self._live(half) if not c.congested]
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
    """Return the half message as a record of the topic and queue that it is meant for."""
    record = half.record
    assert half.real_topic is not None
    assert half.real_queue_id is not None
    return encode_moved(
        record,
        topic=half.real_topic,
        queue_id=half.real_queue_id,
        properties=record.properties,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )

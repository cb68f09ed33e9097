"""Keep half messages, end their transactions, and record durably what has ended.

Java: TransactionalMessageServiceImpl, TransactionalMessageBridge, EndTransactionProcessor. A half
message lies in the half topic until its producer decides on it. A commit appends the message to its
real topic; commit and rollback are then noted in the op topic (see `op_queue`). The broker asks for
a missing verdict (see `check.py` and `service.py`).

Unlike Java's, this broker knows which half messages are unresolved. So a verdict that comes again
changes nothing, and a message whose check fails holds up no other.

Longer than 500 lines: what may happen to a half message between its arrival and its end shares one
table and is in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from cometmq.broker.config import BrokerConfig
from cometmq.broker.found_messages import check_found
from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.storage.group_commit import GroupCommit
from cometmq.broker.topics.topics import TopicManager
from cometmq.broker.transactions.half_message import (
    HALF_QUEUE_ID,
    HalfMessage,
    half_message,
    immunity_ms,
    read_half,
)
from cometmq.broker.transactions.half_recovery import HalfRecovery
from cometmq.broker.transactions.half_table import HalfTable
from cometmq.broker.transactions.op_queue import OpQueue
from cometmq.errors import LimitError, MessageIllegalError, ProtocolError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.route import MASTER_ID
from cometmq.model.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from cometmq.protocol.messages.fitting import drop_spare, encoded_length
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock, ahead_ms
from cometmq.store.store import MessageStore

log = get_logger(__name__)

# Bytes that a check adds to the properties: its number, and where the first copy lies.
_CHECKED_LENGTH: Final = (
    len(p.TRANSACTION_PREPARED_QUEUE_OFFSET) + len(p.TRANSACTION_CHECK_TIMES) + 2 * 2 + 19 + 10
)

# Stores a message, perhaps delayed; returns queue offset and commit-log offset.
Put = Callable[[IncomingMessage], tuple[int, int]]

_GROUP: Final = names.TRANSACTION_GROUP
_VERDICTS: Final = (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_NOT)
_DELAYS: Final = (p.TIMER_DELIVER_MS, p.TIMER_DELAY_MS, p.TIMER_DELAY_SEC)
# After a kill the log is read from the last op record on. Reading this much takes about a second.
_MAX_UNMARKED_BYTES: Final = 256 * 1024 * 1024
# The broker remembers of this many transactions that they were given up and did not end otherwise.
_MAX_GIVEN_UP: Final = 10_000


class _Progress(NamedTuple):
    """Holds the consumed offsets of both queues.

    They are true once the log is on disk up to `log_end`.
    """

    half_offset: int
    op_offset: int
    log_end: int


class Transactions:
    """Keeps the half messages of one broker. For the loop's thread only.

    `put` stores what was committed; `host` is the broker's packed address, for the records that it
    writes. Call `open` when the store is open, before anything is put.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicManager,
        offsets: ConsumerOffsetManager,
        put: Put,
        clock: Clock,
        host: bytes,
        group_commit: GroupCommit | None = None,
    ) -> None:
        self._group_commit = group_commit
        # Verdicts of this loop turn that wait for an answer.
        self._unanswered: list[tuple[Connection, Request[EndTransactionRequestHeader]]] = []
        self._config = config
        self._store = store
        # The requests that `register` gives; none check anything before.
        self._handlers = Handlers()
        self._topics = topics
        self._offsets = offsets
        self._put = put
        self._clock = clock
        self.table = HalfTable()
        self.ops = OpQueue(store, clock, host, config)
        self._given_up: dict[int, None] = {}
        # By the place of a message that was given up: the first offset of the half message that was
        # made of it again.
        self._resumed: dict[int, int] = {}
        self._unpublished: _Progress | None = None
        self._published: _Progress | None = None
        self.committed_count = 0
        self.rolled_back_count = 0

    @property
    def unresolved_count(self) -> int:
        """How many half messages have no verdict."""
        return len(self.table)

    def open(self) -> None:
        """Find out which transactions are unresolved."""
        half_offset = self._offsets.query(_GROUP, names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        op_offset = self._offsets.query(_GROUP, names.TRANS_OP_HALF_TOPIC, HALF_QUEUE_ID)
        recovery = HalfRecovery(
            self._store,
            self.table,
            self.ops,
            self._config.transaction_time_out,
            ahead_ms(self._clock),
        )
        with self._store.mender.patiently():
            recovery.run(half_offset, op_offset)

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.END_TRANSACTION, self._on_end_transaction)
        handlers.register(requests.RESUME_CHECK_HALF_MESSAGE, self._on_resume)

    # -- the way of a transaction --

    def prepare(self, message: IncomingMessage) -> tuple[int, int]:
        """Store a half message; return its offset in the half topic and its commit-log offset.

        Raises Refused, or the store's errors; nothing is stored then.
        """
        self._check_half(message)
        unique_id = message.properties.get(p.UNIQ_CLIENT_MESSAGE_ID)
        if unique_id:
            message.properties[p.TRANSACTION_ID] = unique_id
        # With this property the message would count as a copy of another one.
        message.properties.pop(p.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        message.move_to(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        self._check_room(message)
        # The bits are removed, because the store keeps records that have them out of the consume
        # queues.
        message.sys_flag &= ~TRANSACTION_MASK
        now_ms = self._clock.now_ms()
        place = message.append_to(self._store, now_ms=now_ms)
        sent_ms = min(message.born_timestamp + ahead_ms(self._clock), now_ms)
        asked_ms = self._immunity_ms(message)
        self.table.add(place[0], sent_ms + asked_ms, is_immune=self._is_immune(asked_ms))
        return place

    def _check_room(self, message: IncomingMessage) -> None:
        """Raise Refused if a check could not add its own properties to these."""
        length = encoded_length(message.properties)
        room = MAX_PROPERTIES_LENGTH - _CHECKED_LENGTH
        if length > room and not drop_spare(dict(message.properties), room):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the half message's properties take {length} bytes with those of the broker, the "
                f"limit MAX_PROPERTIES_LENGTH is {MAX_PROPERTIES_LENGTH}, and a check of the "
                f"transaction adds up to {_CHECKED_LENGTH}; move large values into the body",
                limit="MAX_PROPERTIES_LENGTH",
            )

    def end(self, header: EndTransactionRequestHeader) -> None:
        """Commit or roll back a transaction. One that has ended already stays as it is.

        Raises Refused with Java's codes, or the store's errors; the broker asks for the verdict
        later.
        """
        half = self._prepared(header)
        if not header.from_transaction_check and half.ends_too_late(
            self._clock.now_ms(), ahead_ms(self._clock), self._config.transaction_time_out
        ):
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the verdict came later than {p.CHECK_IMMUNITY_TIME_IN_SECONDS}="
                f"{half.properties[p.CHECK_IMMUNITY_TIME_IN_SECONDS]} allows; the broker will ask",
            )
        if half.group != header.producer_group:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The producer group wrong: {header.producer_group} ends a transaction of {half.group}",
            )
        if self.table.newest(half.first_offset) is None:
            self._refuse_if_given_up(half)
            log.debug("transaction ended again", unique_id=header.msg_id)
        elif header.commit_or_rollback == TRANSACTION_COMMIT:
            self._commit(half)
            self.committed_count += 1
            self._ended(half)
        else:
            self.rolled_back_count += 1
            self._ended(half)

    def age_ms(self, half: HalfMessage, now_ms: int) -> int:
        """Return how many ms ago a half message was sent."""
        return now_ms - half.sent_ms(ahead_ms(self._clock))

    def resume(self, offset_msg_id: str) -> None:
        """Check a half message from the beginning again, most of all one that was given up.

        Raises Refused when the id names no such message, or one whose transaction has ended.
        """
        half = self._resumable(offset_msg_id)
        if half.record.topic == names.TRANS_HALF_TOPIC:
            newest = self.table.newest(half.first_offset)
            current = read_half(self._store, newest) if newest is not None else None
            if current is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the transaction of {offset_msg_id} has ended; one that was given up is "
                    f"resumed by the id of its copy in {names.TRANS_CHECK_MAX_TIME_TOPIC}",
                )
            # A half message that was not checked since needs no copy: otherwise each request would
            # store another one.
            if current.check_times:
                self.copy(current, check_times=0)
            return
        given_up_at = half.record.physical_offset
        if given_up_at in self._resumed:
            if self.table.newest(self._resumed[given_up_at]) is not None:
                return
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of {offset_msg_id} was resumed and has ended since",
            )
        properties = {**half.properties, p.TRANSACTION_CHECK_TIMES: "0"}
        # The offset is that of a transaction which counts as ended.
        properties.pop(p.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        again = IncomingMessage.again(half.record, properties)
        again.topic, again.queue_id = names.TRANS_HALF_TOPIC, HALF_QUEUE_ID
        first = again.append_to(self._store)[0]
        self.table.add(first, self._clock.now_ms())
        self._resumed[given_up_at] = first
        if len(self._resumed) > _MAX_GIVEN_UP:
            del self._resumed[next(iter(self._resumed))]
        log.info("half message resumed", offset_msg_id=offset_msg_id, topic=half.real_topic)

    # -- for the check --

    def copy(self, half: HalfMessage, *, check_times: int | None = None) -> HalfMessage:
        """Append an unresolved message to the half topic again; return the copy that replaces it.

        Raises the store's errors; the old copy then stays.
        """
        properties = {
            **half.properties,
            p.TRANSACTION_PREPARED_QUEUE_OFFSET: str(half.first_offset),
        }
        if check_times is not None:
            properties[p.TRANSACTION_CHECK_TIMES] = str(check_times)
        drop_spare(properties)
        # Else each round of checks would add a copy that cannot replace the one before.
        self._store.check_queue_room(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        place = IncomingMessage.again(half.record, properties).append_to(self._store)
        copy = read_half(self._store, place[0])
        if copy is None:  # a disk that has just failed keeps what waits in the transient pool
            raise StoreError(f"the copy of half message {half.first_offset} cannot be read back")
        self.table.move(half.first_offset, place[0])
        return copy

    def give_up(self, half: HalfMessage, reason: str) -> None:
        """Move a message that nobody decides on to a topic where it can be listed.

        Raises the store's errors, and StoreError as long as the disk does not have that topic.
        """
        topic = self._topics.create_for_group(names.TRANS_CHECK_MAX_TIME_TOPIC, 1)
        if not self._topics.is_written(topic.topic_name):
            raise StoreError(f"the topic {topic.topic_name} is not written yet")
        discarded = IncomingMessage.again(half.record, half.properties)
        discarded.topic, discarded.queue_id = topic.topic_name, 0
        discarded.prepared_transaction_offset = half.record.physical_offset
        discarded.append_to(self._store)
        self._given_up[half.first_offset] = None
        if len(self._given_up) > _MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._ended(half)
        log.error(
            "half message given up",
            reason=reason,
            topic=half.real_topic,
            group=half.group,
            unique_id=half.properties.get(p.UNIQ_CLIENT_MESSAGE_ID),
            moved_to=topic.topic_name,
        )

    def lost(self, first: int, fault: str | None = None) -> None:
        """Forget a message that the log no longer holds, or not as it was sent: nothing can be done with
        it.
        """
        newest = self.table.newest(first)
        assert newest is not None
        log.error(
            "half message lost",
            half_queue_offset=newest,
            reason=fault or "the log no longer has it",
        )
        self.table.resolve(first)
        self.ops.add([newest])

    def roll(self, end_place: int, limit: int) -> int:
        """Copy up to `limit` unresolved messages in front of the commit-log offset `end_place`,
        before that part of the log is deleted; return how many, 0 when none is there.

        Raises the store's errors.
        """
        for count in range(limit):
            newest = self.table.low_offset(-1)
            half = read_half(self._store, newest) if newest >= 0 else None
            if half is not None:
                if half.record.physical_offset >= end_place:
                    return count
                try:
                    self.copy(half)
                except MessageIllegalError as error:
                    # The properties have no room for the name of the original.
                    self.give_up(half, str(error))
            elif newest >= 0:
                self.lost(self.table.first_of(newest))
            else:
                return count
        return limit

    # -- what survives --

    def flush_ops(self) -> None:
        """Write down which transactions have ended; call it every transactionOpBatchInterval."""
        self.ops.flush()
        if self._marks_are_far:
            self.ops.add_nothing()

    def publish_progress(self) -> None:
        """Move the group's offsets on as far as the disk has the log; call it now and then."""
        captured = self._unpublished
        if captured is not None:
            if self._store.flushed_offset < captured.log_end:
                return
            self._commit_offset(names.TRANS_HALF_TOPIC, captured.half_offset)
            self._commit_offset(names.TRANS_OP_HALF_TOPIC, captured.op_offset)
            self._published = captured
        end = self._store.queue(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID).next_offset
        half_offset = self.table.low_offset(end)
        self._unpublished = _Progress(
            half_offset, self.ops.needed_from(half_offset), self._store.commit_log.end
        )

    @property
    def progress_is_written(self) -> bool:
        """Whether `flush_ops` and `publish_progress` have nothing to do until a transaction ends or
        the log grows.
        """
        published = self._published
        return (
            not self.ops.waiting_count
            and not self._marks_are_far
            and published is not None
            and published == self._unpublished
            and published.log_end == self._store.commit_log.end
        )

    @property
    def _marks_are_far(self) -> bool:
        end = self._store.commit_log.end
        return bool(self.table) and end - self.ops.last_position > _MAX_UNMARKED_BYTES

    def close(self) -> None:
        """Write down all progress. Blocks; the store must still be open."""
        self.flush_ops()
        self._unpublished = None
        self.publish_progress()
        self._store.flush_commit_log()
        self.publish_progress()

    # -- inside --

    def _check_half(self, message: IncomingMessage) -> None:
        if self._config.reject_transaction_message:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden: "
                "rejectTransactionMessage is true",
            )
        if len(self.table) >= self._config.max_unresolved_transactions:
            raise too_many(len(self.table), self._config.max_unresolved_transactions)
        if self._is_immune(self._immunity_ms(message)):
            self._check_immune_room()
        properties = message.properties
        if not properties.get(p.PRODUCER_GROUP):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a half message needs the property {p.PRODUCER_GROUP}: its producers' group",
            )
        delays: list[str] = [name for name in _DELAYS if name in properties]
        if properties.get(p.DELAY_TIME_LEVEL, "0") != "0":
            delays.append(p.DELAY_TIME_LEVEL)
        if delays:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"property {delays[0]}={properties[delays[0]][:40]}: a message of a transaction "
                "cannot be delayed; send it without",
            )

    def _immunity_ms(self, message: IncomingMessage) -> int:
        return immunity_ms(message.properties, self._config.transaction_time_out)

    def _is_immune(self, asked_ms: int) -> bool:
        return asked_ms > self._config.transaction_time_out

    def _check_immune_room(self) -> None:
        """Refuse half messages that want to be left alone for long, if they had half of the room.

        Nobody can be asked to end them meanwhile, so others must have the other half.
        """
        most = self._config.max_unresolved_transactions
        count = self.table.immune_count
        if count >= most - most // 2:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{count} transactions that ask for an immunity time longer than transactionTimeOut "
                f"({p.CHECK_IMMUNITY_TIME_IN_SECONDS}) wait for their end, they may have half of the "
                f"limit maxUnresolvedTransactions, which is {most}; end some, ask for a shorter time, "
                "or raise the limit",
                limit="maxUnresolvedTransactions",
            )

    def _prepared(self, header: EndTransactionRequestHeader) -> HalfMessage:
        half = read_half(self._store, header.tran_state_table_offset)
        if half is None:
            half = self._rolled(header)
            if half is not None:
                return half
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: none is at queue offset "
                f"{header.tran_state_table_offset} of the half topic",
            )
        if half.record.physical_offset != header.commit_log_offset:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "The commit log offset wrong: the half message at queue offset "
                f"{header.tran_state_table_offset} is not at {header.commit_log_offset}",
            )
        return half

    def _rolled(self, header: EndTransactionRequestHeader) -> HalfMessage | None:
        """Return the newest copy of an unresolved message whose first copy has left the log.

        Returns None if there is none, or if its unique id is not the one in the header.
        """
        newest = self.table.newest(header.tran_state_table_offset)
        half = read_half(self._store, newest) if newest is not None else None
        # The commit-log offset can no longer prove that the sender means this message; its id does.
        if half is None or half.properties.get(p.UNIQ_CLIENT_MESSAGE_ID) != header.msg_id:
            return None
        return half

    def _commit(self, half: HalfMessage) -> None:
        if half.fault is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message is damaged: {half.fault}")
        topic, queue_id = half.real_topic, half.real_queue_id
        assert topic is not None
        assert queue_id is not None
        message = IncomingMessage.again(half.record, half.properties)
        message.topic, message.queue_id = topic, queue_id
        message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        message.prepared_transaction_offset = half.record.physical_offset
        self._put(message)

    def _ended(self, half: HalfMessage) -> None:
        newest = self.table.newest(half.first_offset)
        assert newest is not None
        self.table.resolve(half.first_offset)
        # Name the copy that the verdict names, too, in case Java's reader comes across it.
        self.ops.add(sorted({newest, half.record.queue_offset}))

    def _refuse_if_given_up(self, half: HalfMessage) -> None:
        if half.first_offset in self._given_up:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "the transaction was given up, its message lies in "
                f"{names.TRANS_CHECK_MAX_TIME_TOPIC}; resume it (RESUME_CHECK_HALF_MESSAGE)",
            )

    def _resumable(self, offset_msg_id: str) -> HalfMessage:
        try:
            place = parse_offset_id(offset_msg_id).commit_log_offset
        except ProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        record = self._store.stored_record(place)
        allowed = (names.TRANS_HALF_TOPIC, names.TRANS_CHECK_MAX_TIME_TOPIC)
        if record is not None and record.topic in allowed:
            queue = self._store.queues.find(record.topic, record.queue_id)
            unit = (
                self._store.mender.unit(queue, record.queue_offset) if queue is not None else None
            )
            # Only the queue proves that a record begins there.
            if unit is not None and unit.physical_offset == place:
                half = half_message(record)
                if half.fault is not None:
                    raise Refused(ResponseCode.SYSTEM_ERROR, f"{offset_msg_id}: {half.fault}")
                return half
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"{offset_msg_id} is no message of {' or '.join(allowed)}",
        )

    def _commit_offset(self, topic: str, offset: int) -> None:
        # A broker without transactions leaves no offset behind, as Java's.
        if max(self._offsets.query(_GROUP, topic, HALF_QUEUE_ID), 0) != offset:
            self._offsets.keep(_GROUP, topic, HALF_QUEUE_ID, offset)

    # -- requests --

    def _on_end_transaction(
        self, connection: Connection, request: Request[EndTransactionRequestHeader]
    ) -> RemotingCommand | None:
        header = request.header
        if self._config.broker_id != MASTER_ID:
            raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave does not end transactions")
        if header.commit_or_rollback not in _VERDICTS:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback field wrong: {header.commit_or_rollback} is none of "
                f"{TRANSACTION_COMMIT} (commit), {TRANSACTION_ROLLBACK} (rollback), "
                f"{TRANSACTION_NOT} (not known yet)",
            )
        if header.commit_or_rollback == TRANSACTION_NOT:
            # As in Java, this gets no answer.
            log.info(
                "transaction pending",
                peer=connection.peer,
                group=header.producer_group,
                unique_id=header.msg_id,
                from_check=header.from_transaction_check,
            )
            return None
        if self._handlers.checks_resources:
            half = self._prepared(header)
            check_found(self._handlers, requests.END_TRANSACTION, connection, request, half.record)
        self.end(header)
        if not request.is_oneway:
            if not self._unanswered:
                asyncio.get_running_loop().call_soon(self._answer)
            self._unanswered.append((connection, request))
        return None

    def _answer(self) -> None:
        """Answer the verdicts of one loop turn when the log has the ends of their transactions.

        A commit is in the log as its message. A roll-back is there only as an op record, and the
        broker must not ask for an answered one again after a kill.
        """
        verdicts, self._unanswered = self._unanswered, []
        if self.ops.waiting_count:
            self.ops.flush()
        end = self._store.commit_log.end
        for connection, request in verdicts:
            if self.ops.waiting_count:
                connection.refuse(
                    request.opaque,
                    ResponseCode.SYSTEM_ERROR,
                    "the verdict cannot be written to the log now; the broker tries again, and "
                    "asks for the verdict if it restarts first",
                )
            elif self._group_commit is None:
                connection.reply(request, response(ResponseCode.SUCCESS))
            else:
                self._group_commit.answer_when_safe(end, connection, request, b"")

    def _on_resume(
        self, connection: Connection, request: Request[ResumeCheckHalfMessageRequestHeader]
    ) -> RemotingCommand:
        header = request.header
        if self._handlers.checks_resources:
            half = self._resumable(header.msg_id)
            check_found(
                self._handlers, requests.RESUME_CHECK_HALF_MESSAGE, connection, request, half.record
            )
        self.resume(header.msg_id)
        return response(ResponseCode.SUCCESS)


def too_many(count: int, most: int) -> LimitError:
    """Return the error that refuses a half message: too many wait for their verdicts."""
    return LimitError(
        "transactions wait for their end",
        count,
        "maxUnresolvedTransactions",
        most,
        "end some, or raise it",
        code=ResponseCode.SYSTEM_BUSY,
    )

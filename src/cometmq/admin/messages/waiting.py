"""List messages that wait at brokers: for their time, or for the end of their transaction.

mqadmin has no command for them. Brokers keep them in topics of their own (Java:
ScheduleMessageService, TimerMessageStore, TransactionalMessageServiceImpl).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.admin.brokers.reports import BrokerReports
from cometmq.admin.brokers.room import Brokers
from cometmq.admin.groups.offsets import Offsets, QueueOffsets
from cometmq.admin.messages.reading import MessageReader, address_of
from cometmq.admin.room import Room
from cometmq.admin.servers import BrokerAddress
from cometmq.admin.topics.queue_bodies import queue_table_and_rate
from cometmq.errors import CometMQError, IllegalArgumentError, RouteNotFoundError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.protocol import requests
from cometmq.protocol.bodies.inspection import TopicOffset
from cometmq.protocol.headers import EndTransactionRequestHeader, GetTopicStatsInfoRequestHeader
from cometmq.protocol.redrive import NO_END_MS

# How many records of a queue one call reads, and how many bytes of bodies, at most.
MAX_LOOKED_AT: Final = 2_000
# So many records of ended transactions are read. Each names up to some hundred of them.
MAX_ENDED: Final = 20_000
_MAX_BYTES: Final = 32 * 1024 * 1024
_CHUNK: Final = 256
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"([0-9]{1,9})([smhd])")
_REMOVED: Final = "d"


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """Says what waits at a broker in one delay level.

    `delay_ms` is how long its messages wait, None if the broker does not report it. Messages from
    `next_offset` to `end_offset` (excluded) of the level's queue wait. `next_due_ms` and
    `last_due_ms` are when the first and the last of them are due, in ms since the epoch; None if
    nothing waits, or the broker does not report it.
    """

    broker_name: str
    level: int
    delay_ms: int | None
    next_offset: int
    end_offset: int
    next_due_ms: int | None
    last_due_ms: int | None

    @property
    def pending(self) -> int:
        """How many messages wait."""
        return self.end_offset - self.next_offset


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """Is a message that waits for its time, `due_ms`, in ms since the epoch.

    `message` is the record that waits; `topic` is where it goes.
    """

    message: MessageExt
    topic: str
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class TimedMessages:
    """Holds timed messages that wait at a broker, the one that is due first before the others.

    Of the timer's queue the records from `from_offset` on were looked at, `looked_at` of them. Older
    ones may wait, too, unless `is_all`.
    """

    broker_name: str
    messages: tuple[DelayedMessage, ...]
    from_offset: int
    looked_at: int
    is_all: bool


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """Is a half message whose transaction has not ended. `checks` counts the broker's questions."""

    message: MessageExt
    topic: str
    producer_group: str
    checks: int


@dataclass(frozen=True, slots=True)
class HalfMessages:
    """Holds the half messages that wait at a broker, the oldest first.

    With more than MAX_LOOKED_AT records in the broker's queue `is_all` is False, and only the oldest
    records were read. `is_sure` is False if there are more than MAX_ENDED records of transactions that
    have ended: some of the messages may have ended, too.
    """

    broker_name: str
    messages: tuple[HalfMessage, ...]
    is_all: bool
    is_sure: bool = True


class WaitingMessages(Room):
    """Lists what waits at brokers, and ends transactions in the place of their producers."""

    async def delay_levels(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[DelayLevel]:
        """Return what waits in each broker's delay levels, the empty ones included.

        Levels that no message has used yet are left out.
        """
        places = await self._servers.brokers(cluster=cluster, broker=broker)
        by_address = {place.address: place for place in places}

        missing = await self._servers.missing(cluster=places[0].cluster) if broker is None else {}
        found = await self._servers.each(
            by_address,
            lambda address: self._levels_at(by_address[address]),
            "the delayed messages",
            missing=missing,
        )
        return [level for levels in found.values() for level in levels]

    async def in_delay_level(
        self, level: DelayLevel, *, begin_offset: int = 0, count: int = 50
    ) -> list[DelayedMessage]:
        """Return up to `count` messages that wait in a level, in the order in which they are due,
        from `begin_offset` of the level's queue on.
        """
        queue = MessageQueue(SCHEDULE_TOPIC, level.broker_name, level.level - 1)
        found: list[DelayedMessage] = []
        begin = max(begin_offset, level.next_offset)
        reader = MessageReader(self._servers)
        async for message in reader.stored_in(queue, begin, 0, NO_END_MS, SUB_ALL):
            due_ms = None if level.delay_ms is None else message.store_timestamp_ms + level.delay_ms
            found.append(DelayedMessage(message, _real_topic(message), due_ms))
            if len(found) >= count:
                break
        return found

    async def timed(self, broker_name: str, *, before: int | None = None) -> TimedMessages:
        """Return timed messages that wait at a broker, the one that is due first before the others.

        This looks at up to MAX_LOOKED_AT of the newest records of the timer's queue, or of those
        below the offset `before`. Messages that were recalled are left out. A message may be
        delivered while the call runs.
        """
        queue = MessageQueue(TIMER_TOPIC, broker_name, 0)
        at, progress = await asyncio.gather(
            Offsets(self._servers).of_queue(queue),
            BrokerReports(self._servers).timer_progress(broker=broker_name),
        )
        delivered_ms = max((each.delivered_ms for each in progress.values()), default=0)
        high = at.max_offset if before is None else min(before, at.max_offset)
        reader, bottom = MessageReader(self._servers), high
        waiting: dict[tuple[str, str, int], DelayedMessage] = {}
        looked_at = read_bytes = 0
        while bottom > at.min_offset and looked_at < MAX_LOOKED_AT and read_bytes < _MAX_BYTES:
            top, bottom = bottom, max(at.min_offset, bottom - _CHUNK)
            chunk = []
            async for message in reader.stored_in(queue, bottom, 0, NO_END_MS, SUB_ALL):
                if message.queue_offset >= top:
                    break
                chunk.append(message)
                read_bytes += len(message.body)
            looked_at += top - bottom
            # A recall, and the copy of a message that waits on, lie behind the message.
            for message in reversed(chunk):
                _note_timed(waiting, message, delivered_ms)
        found = [
            each for each in waiting.values() if p.TIMER_DEL_UNIQKEY not in each.message.properties
        ]
        found.sort(key=lambda each: (each.due_ms or 0, each.message.queue_offset))
        return TimedMessages(broker_name, tuple(found), bottom, looked_at, bottom <= at.min_offset)

    async def halves(self, broker_name: str) -> HalfMessages:
        """Return the half messages at a broker whose transactions have not ended, the oldest first.

        A broker writes down every few seconds which transactions have ended, so one that has just
        ended may be among them.
        """
        queue = MessageQueue(TRANS_HALF_TOPIC, broker_name, 0)
        ops = MessageQueue(TRANS_OP_HALF_TOPIC, broker_name, 0)
        half_at, op_begin = await asyncio.gather(
            Offsets(self._servers).of_queue(queue, TRANSACTION_GROUP), self._begin_of_ops(ops)
        )
        reader = MessageReader(self._servers)
        newest: dict[int, MessageExt] = {}
        is_all, read_bytes, count = True, 0, 0
        begin = _first(half_at)
        async for message in reader.stored_in(queue, begin, 0, NO_END_MS, SUB_ALL):
            count, read_bytes = count + 1, read_bytes + len(message.body)
            if count > MAX_LOOKED_AT or read_bytes > _MAX_BYTES:
                is_all = False
                break
            newest[_first_copy(message)] = message
        named = {*newest, *(message.queue_offset for message in newest.values())}
        # Asked for after the half messages, so that it names those that ended meanwhile.
        ended: set[int] = set()
        is_sure, read_bytes, count = True, 0, 0
        if op_begin is not None:
            async for message in reader.stored_in(ops, op_begin, 0, NO_END_MS, SUB_ALL):
                count, read_bytes = count + 1, read_bytes + len(message.body)
                if count > MAX_ENDED or read_bytes > _MAX_BYTES:
                    is_sure = False
                    break
                if message.tags == _REMOVED:
                    # Records of messages that were not read are of no use.
                    ended.update(named.intersection(_named_offsets(message.body)))
        waiting = [
            message
            for first, message in newest.items()
            if first not in ended and message.queue_offset not in ended
        ]
        waiting.sort(key=lambda message: (message.born_timestamp_ms, message.queue_offset))
        return HalfMessages(
            broker_name, tuple(_half(message) for message in waiting), is_all, is_sure
        )

    async def end_half(self, half: MessageExt, *, commit: bool) -> None:
        """Commit or roll back the transaction of a half message in the place of its producer.

        After a commit consumers get the message; after a rollback nobody does. `half` is a message
        that `halves` returns. A Java broker that checks transactions at the same moment may ask about
        it again. Raises IllegalArgumentError if the message is no half message that waits, RemoteError
        if the broker refuses.
        """
        group = half.properties.get(p.PRODUCER_GROUP)
        if half.topic != TRANS_HALF_TOPIC or not group:
            raise IllegalArgumentError(
                f"{half.offset_msg_id} is no half message that waits: it lies in {half.topic}"
            )
        named = await self._newest_copy(half)
        await self._servers.ask(
            address_of(half.offset_msg_id),
            requests.END_TRANSACTION,
            EndTransactionRequestHeader(
                producer_group=group,
                tran_state_table_offset=named.queue_offset,
                commit_log_offset=named.commit_log_offset,
                commit_or_rollback=TRANSACTION_COMMIT if commit else TRANSACTION_ROLLBACK,
                msg_id=half.unique_id or half.msg_id,
                # A broker refuses a producer's own verdict that comes late; this one is meant.
                from_transaction_check=True,
                topic=_real_topic(half),
                transaction_id=half.properties.get(p.TRANSACTION_ID),
            ),
            what=f"the end of the transaction of {half.offset_msg_id}",
        )

    # Inside

    async def _levels_at(self, place: BrokerAddress) -> list[DelayLevel]:
        name, address = place.broker_name or place.address, place.address
        offsets, delays, stats = await asyncio.gather(
            BrokerReports(self._servers).delay_offsets(broker=address),
            self._delays_ms(address),
            self._servers.ask(
                address,
                requests.GET_TOPIC_STATS_INFO,
                GetTopicStatsInfoRequestHeader(topic=SCHEDULE_TOPIC),
                what="the delayed messages",
            ),
        )
        delivered = offsets[address]
        queues, _ = queue_table_and_rate(stats.body, TopicOffset, "topicPutTps")

        async def level_of(queue: MessageQueue, at: TopicOffset) -> DelayLevel:
            level = queue.queue_id + 1
            delay_ms = delays.get(level)
            start = min(max(delivered.get(level, 0), at.min_offset), at.max_offset)
            due: tuple[int | None, int | None] = (None, None)
            if start < at.max_offset and delay_ms is not None:
                reader = MessageReader(self._servers)
                first, last = await asyncio.gather(
                    reader.at(queue, start), reader.at(queue, at.max_offset - 1)
                )
                due = _due_ms(first, delay_ms), _due_ms(last, delay_ms)
            return DelayLevel(name, level, delay_ms, start, at.max_offset, *due)

        used = sorted(
            ((queue, at) for queue, at in queues.items() if at.max_offset > 0),
            key=lambda each: each[0],
        )
        return list(await asyncio.gather(*(level_of(queue, at) for queue, at in used)))

    async def _begin_of_ops(self, ops: MessageQueue) -> int | None:
        """Return the offset from which the records of ended transactions are of use; None without
        any.

        A Java broker of 4.9 makes their topic with the first one.
        """
        try:
            return _first(await Offsets(self._servers).of_queue(ops, TRANSACTION_GROUP))
        except RouteNotFoundError:
            return None

    async def _newest_copy(self, half: MessageExt) -> MessageExt:
        """Return the copy of a half message that the broker asks about now.

        A broker stores another copy each time it has asked. Java's knows an ended transaction by the
        copy that the verdict names, if that is the newest one.
        """
        found = await self.halves(half.broker_name)
        copies = [each.message for each in found.messages]
        for is_same in (
            lambda copy: copy.queue_offset == half.queue_offset,
            lambda copy: _first_copy(copy) == _first_copy(half),
            lambda copy: _identity(copy) == _identity(half),
        ):
            for copy in reversed(copies):
                if is_same(copy):
                    return copy
        if found.is_all:
            raise IllegalArgumentError(
                f"the transaction of {half.offset_msg_id} has ended, or its broker gave it up"
            )
        return half

    async def _delays_ms(self, address: str) -> Mapping[int, int]:
        """Return how long messages of each level wait; nothing if the broker does not report it."""
        try:
            config = (await Brokers(self._servers).config(broker=address))[address]
        except CometMQError:
            return {}  # without the right to read the configuration the levels are still of use
        found = map(_LEVEL.fullmatch, config.get("messageDelayLevel", "").split())
        return {
            level: int(match[1]) * _UNITS_MS[match[2]]
            for level, match in enumerate(found, 1)
            if match is not None
        }


def _note_timed(
    waiting: dict[tuple[str, str, int], DelayedMessage], message: MessageExt, delivered_ms: int
) -> None:
    """Note a record of the timer's queue that waits; records behind it were noted before."""
    slot_ms = _number(message.properties.get(p.TIMER_OUT_MS))
    if slot_ms is None or slot_ms < delivered_ms:
        return
    topic = _real_topic(message)
    recalled = message.properties.get(p.TIMER_DEL_UNIQKEY, message.msg_id)
    # Some brokers put the topic in front of the id.
    key = (topic, recalled.removeprefix(f"{topic}+"), slot_ms)
    waiting.setdefault(key, DelayedMessage(message, topic, slot_ms))


def _half(message: MessageExt) -> HalfMessage:
    return HalfMessage(
        message,
        _real_topic(message),
        message.properties.get(p.PRODUCER_GROUP, ""),
        _number(message.properties.get(p.TRANSACTION_CHECK_TIMES)) or 0,
    )


def _first_copy(message: MessageExt) -> int:
    """Return the queue offset of the first copy: a broker that has asked stores another copy."""
    first = _number(message.properties.get(p.TRANSACTION_PREPARED_QUEUE_OFFSET))
    return message.queue_offset if first is None else min(first, message.queue_offset)


def _identity(message: MessageExt) -> tuple[str, str, str | None]:
    group = message.properties.get(p.PRODUCER_GROUP)
    return message.msg_id, _real_topic(message), group


def _named_offsets(body: bytes) -> list[int]:
    """Return the offsets in an op record, separated by commas."""
    parts = body.decode("ascii", "replace").split(",")
    return [offset for part in parts if (offset := _number(part)) is not None]


def _first(at: QueueOffsets) -> int:
    return at.min_offset if at.committed_offset is None else at.committed_offset


def _due_ms(message: MessageExt | None, delay_ms: int) -> int | None:
    return None if message is None else message.store_timestamp_ms + delay_ms


def _real_topic(message: MessageExt) -> str:
    return message.properties.get(p.REAL_TOPIC, "")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None

"""Deliver again what a group popped and did not acknowledge in time (Java: PopReviveService).

A copy with a higher number of deliveries goes to the group's retry topic, or to its dead letters after the last
delivery: Java's broker delivers for ever, and its client drops what it has got too often.

A record that announces the copies is written before them. So a kill in between leaves each message either in flight
or in the retry topic, never in both and never in neither. Each copy names its original in a field of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.parts import Parts
from cometmq.broker.pop import changes as c
from cometmq.broker.pop.in_flight import NEVER_MS
from cometmq.broker.pop.state import PopState
from cometmq.broker.pop.table import QueueState
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.protocol.messages import fitting
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, body_is_intact, decode_record
from cometmq.protocol.pop.handle import asked_topic, pop_retry_topic, pop_retry_topic_v2
from cometmq.store.get import GetStatus

log = get_logger(__name__)

# Messages that are copied in one piece; the loop serves others in between.
_AT_ONCE: Final = 32
# The clock is read this often while anything is in flight, because somebody may set it.
_LONGEST_SLEEP_MS: Final = 1_000
# When what cannot be copied now is tried again.
_PAUSE_MS: Final = 1_000
_READS: Final = 3


class _Copy(NamedTuple):
    offset: int
    message: IncomingMessage


class Revival:
    """Moves messages whose time is over. `became_visible` is called with group and topic when messages in order
    are free to be popped again. For the loop's thread only.
    """

    def __init__(
        self, parts: Parts, state: PopState, became_visible: Callable[[str, str], None]
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._state = state
        self._became_visible = became_visible
        self._earlier = asyncio.Event()
        self._reader = parts.workers.worker("pop-reads")
        self.revived_count = 0
        self.lost_count = 0
        state.on_due_earlier = self._earlier.set

    def start(self) -> None:
        self._parts.tasks.spawn(self._run(), "pop-revival")

    def close(self) -> None:
        self._reader.shutdown(wait=True)

    async def _run(self) -> None:
        table = self._state.table
        while True:
            self._earlier.clear()
            due_ms = table.next_due_ms()
            wait_ms = due_ms - self._clock.now_ms()
            if due_ms == NEVER_MS:
                await self._earlier.wait()
            elif wait_ms > 0:
                await self._sleep(min(wait_ms, _LONGEST_SLEEP_MS))
            else:
                for state in table.take_due(self._clock.now_ms()):
                    await self._revive(state)
                    table.arm(state, self._clock.now_ms())
                    break  # the loop serves others, and the list may have changed
                await asyncio.sleep(0)

    async def _sleep(self, wait_ms: int) -> None:
        try:
            await asyncio.wait_for(self._earlier.wait(), wait_ms / 1000)
        except TimeoutError:
            return

    async def _revive(self, state: QueueState) -> None:
        """Move some of a queue's messages."""
        group, topic, _ = state.key
        if state.order is not None and not state.order.is_blocked(self._clock.now_ms(), ""):
            self._became_visible(group, topic)
        now_ms = self._clock.now_ms()
        offsets = state.hidden.due(now_ms, _AT_ONCE)
        if not offsets:
            if now_ms >= state.tried_again_ms:
                state.late_since_ms = NEVER_MS
            return
        due_ms = state.due_ms
        try:
            records = await self._read(state, offsets)
            await self._move(state, records)
        except CometMQError as error:
            # The store takes nothing now, or the retry topic cannot be written down.
            log.warning(
                "messages are not delivered again now",
                group=group,
                topic=topic,
                messages=len(offsets),
                reason=str(error),
            )
            self._postpone(state, offsets, due_ms)

    def _postpone(self, state: QueueState, offsets: list[int], due_ms: int) -> None:
        """Try again later. The log need not know."""
        state.late_since_ms = due_ms
        state.tried_again_ms = self._clock.now_ms() + _PAUSE_MS
        self._state.table.apply(c.Postponed(state.key, offsets, state.tried_again_ms))

    async def _read(
        self, state: QueueState, offsets: list[int]
    ) -> list[tuple[int, StoredRecord | None]]:
        """Return the messages at these offsets, None for one that the log no longer has."""
        _, topic, queue_id = state.key
        found: list[tuple[int, StoredRecord | None]] = []
        for offset in offsets:
            for tries in range(_READS + 1):
                result = self._store.get(topic, queue_id, offset, 1, may_block=tries == _READS)
                if result.status is not GetStatus.NOT_IN_MEMORY or result.absent is None:
                    break
                for bring_in in result.absent:
                    await asyncio.get_running_loop().run_in_executor(self._reader, bring_in)
            record = None
            if result.status is GetStatus.FOUND:
                record = decode_record(b"".join(result.slices))
            # The get goes on behind a message that is gone.
            is_there = record is not None and record.queue_offset == offset
            found.append((offset, record if is_there else None))
        return found

    async def _move(
        self, state: QueueState, records: list[tuple[int, StoredRecord | None]]
    ) -> None:
        group_name, topic, queue_id = state.key
        group = self._groups.find(group_name)
        if group is None or self._topics.get(topic) is None:
            # Java: dropped, since nobody could get it.
            self._gone(
                state, [offset for offset, _ in records], "the group or the topic is deleted"
            )
            return
        asked = asked_topic(topic, group_name)
        config = self._parts.config
        retry_topic = pop_retry_topic_v2 if config.enable_retry_topic_v2 else pop_retry_topic
        retry = retry_topic(group_name, asked)
        retry_queue = queue_id if config.use_separate_retry_queue else 0
        of_asked = self._topics.get(asked)
        retry_queues = 1
        if retry_queue and of_asked is not None:
            retry_queues = max(retry_queue + 1, of_asked.read_queue_nums)
        by_topic, gone, damaged = self._sorted(state, records, group, retry, retry_queue)
        for name in by_topic:
            self._open(name, retry_queues if name == retry else 1)
        if not all(map(self._topics.is_written, by_topic)):
            await self._topics.written()
        if gone:
            self._gone(state, gone, "the log no longer has them")
        if damaged:
            # A copy would get a checksum of its own, and look sound. Clients refuse the original, which stays.
            self._gone(
                state, damaged, "their bodies contradict their checksums; they stay in their queue"
            )
        for name, copies in by_topic.items():
            self._put(state, name, [each for each in copies if self._is_due(state, each.offset)])
        if retry in by_topic and self._offsets.query(group_name, retry, retry_queue) < 0:
            self._offsets.commit(group_name, retry, retry_queue, 0)

    def _sorted(
        self,
        state: QueueState,
        records: list[tuple[int, StoredRecord | None]],
        group: SubscriptionGroupConfig,
        retry: str,
        retry_queue: int,
    ) -> tuple[dict[str, list[_Copy]], list[int], list[int]]:
        """Return the copies by topic, the offsets that the log no longer has, and those of damaged messages."""
        by_topic: dict[str, list[_Copy]] = {}
        gone: list[int] = []
        damaged: list[int] = []
        for offset, record in records:
            if record is None:
                gone.append(offset)
                continue
            if not body_is_intact(record):
                damaged.append(offset)
                continue
            hidden = state.hidden.get(offset)
            message = _again(record, group.group_name, 0 if hidden is None else hidden.popped_ms)
            if message.reconsume_times > group.retry_max_times:
                message.topic = names.dlq_topic(group.group_name)
                message.properties[p.RETRY_TOPIC] = asked_topic(state.key[1], group.group_name)
                fitting.cut(message.properties)
            else:
                message.topic, message.queue_id = retry, retry_queue
                fitting.drop_spare(message.properties)
            by_topic.setdefault(message.topic, []).append(_Copy(offset, message))
        return by_topic, gone, damaged

    def _open(self, name: str, queues: int) -> None:
        """Have the topic of copies, with at least so many queues."""
        topic = self._topics.create_for_group(name, queues)
        if topic.read_queue_nums < queues:
            more = {"read_queue_nums": queues, "write_queue_nums": queues}
            self._topics.put(msgspec.structs.replace(topic, **more))

    def _is_due(self, state: QueueState, offset: int) -> bool:
        """Say whether a message is still in flight and its time over: its acknowledgement may have come while
        another was read.
        """
        hidden = state.hidden.get(offset)
        return hidden is not None and hidden.until_ms <= self._clock.now_ms()

    def _put(self, state: QueueState, topic: str, copies: list[_Copy]) -> None:
        """Store copies. Raises StoreError; those that are stored then are no longer in flight."""
        if not copies:
            return
        store = self._store
        offsets = [each.offset for each in copies]
        queue_id = copies[0].message.queue_id
        next_offset = store.queue(topic, queue_id).next_offset
        self._state.log.announce(c.Moved(state.key, offsets, topic, queue_id, next_offset))
        moved: list[int] = []
        try:
            for copy in copies:
                place = copy.message.append_to(store)
                moved.append(copy.offset)
                assert place[0] == next_offset + len(moved) - 1, "nobody else appends in this turn"
        finally:
            self._state.table.apply(c.Moved(state.key, moved, topic, queue_id, next_offset))
            self._state.after_write()
            if topic.startswith(names.DLQ_PREFIX):
                log.info(
                    "messages given up", group=state.key[0], topic=state.key[1], messages=len(moved)
                )
            else:
                self.revived_count += len(moved)
                state.revived_count += len(moved)

    def _gone(self, state: QueueState, offsets: list[int], reason: str) -> None:
        self.lost_count += len(offsets)
        log.error(
            "messages in flight cannot be delivered again",
            group=state.key[0],
            topic=state.key[1],
            queue_id=state.key[2],
            offsets=offsets,
            reason=reason,
        )
        self._state.write(c.Gone(state.key, offsets))


def _again(record: StoredRecord, group: str, popped_ms: int) -> IncomingMessage:
    properties = decode_properties(record.properties)
    properties.pop(p.POP_CK, None)
    properties[p.ORIGIN_GROUP] = group
    properties.setdefault(p.FIRST_POP_TIME, str(popped_ms))
    properties.setdefault(
        p.ORIGIN_MESSAGE_ID, encode_offset_id(record.store_host, record.physical_offset)
    )
    message = IncomingMessage.again(record, properties)
    message.queue_id = 0
    message.reconsume_times += 1
    # By which a start finds out whether the copy is there.
    message.prepared_transaction_offset = record.physical_offset
    return message

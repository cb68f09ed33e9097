"""Join the table of messages in flight with the store: changes go to the log, committed offsets to
the groups' table.

For the loop's thread only, except for `open`, which reads the log in any thread before there is a loop's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from cometmq.broker.parts import Parts
from cometmq.broker.pop import changes as c
from cometmq.broker.pop.changes import AnyChange, Key, decode_line
from cometmq.broker.pop.log import PopLog
from cometmq.broker.pop.table import Table
from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model.names import POP_LOG_TOPIC, is_retry_topic
from cometmq.protocol.messages.record import StoredRecord
from cometmq.protocol.pop.headers import INIT_MIN
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, Unit

log = get_logger(__name__)

_LOG_QUEUE_ID: Final = 0
_UNITS_AT_ONCE: Final = 1_024
_COMMIT_PERIOD_S: Final = 1.0
# Parts of a round that are written in one go before a file of the log is deleted.
_PARTS_AT_ONCE: Final = 16


class PopState:
    """Holds the table, and writes its changes. `on_due_earlier` is called when something becomes visible
    before all that was in flight.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._clock = parts.clock
        self.table = Table(self._is_copied)
        self.log = PopLog(self.table, self._append, self._next_offset)
        self.on_due_earlier: Callable[[], None] = lambda: None
        self._is_rounding = False
        self._commits_at: asyncio.TimerHandle | None = None
        # Offsets to be committed once the disk has the log up to a place.
        self._unsafe: tuple[int, list[tuple[Key, int]]] = (0, [])

    def open(self) -> None:
        """Read what is in flight. Raises StoreError for records that this version cannot know."""
        with self._store.mender.patiently():
            last = self._last_line()
            if last is not None:
                self.log.start = last.start
                self.log.replay(record.body for record in self._lines(last.start))
        self.table.is_live()
        if self.table.states:
            log.info(
                "messages in flight found",
                queues=len(self.table.states),
                messages=self.table.count,
                log_read_from=self.log.start,
            )

    def start(self) -> None:
        self.table.on_due_earlier = self.on_due_earlier
        if self.table.changed:
            self._commit_soon()

    def close(self) -> None:
        """Write the committed offsets into the groups' table."""
        if self._commits_at is not None:
            self._commits_at.cancel()
        self._commit_all([(each.key, each.committed) for each in self.table.states.values()])

    # Changes

    @property
    def is_ready(self) -> bool:
        """Whether the topic of the log is there, so that changes can be written."""
        topic = self._topics.create_for_group(POP_LOG_TOPIC, 1)
        return self._topics.is_written(topic.topic_name)

    async def ready(self) -> None:
        """Return when changes can be written."""
        if not self.is_ready:
            await self._topics.written()

    def write(self, *changes: AnyChange) -> int:
        """Make changes; return the commit-log offset up to which the log must be safe for them. Raises the
        store's errors; then nothing has changed.
        """
        self.log.write(*changes)
        self.after_write()
        return self._store.commit_log.end

    def after_write(self) -> None:
        """See to it that offsets are committed and that the log stays short."""
        if self._commits_at is None:
            self._commit_soon()
        if not self._is_rounding and self.log.wants_round:
            self._is_rounding = True
            self._parts.tasks.spawn(self._write_round(), "pop-snapshots")

    def known_position(self, key: Key, *, is_order: bool = False) -> int | None:
        """Return where a group goes on in a queue, None if it is new to it."""
        group, topic, queue_id = key
        state = self.table.get(key)
        committed = self._offsets.query(group, topic, queue_id)
        if state is not None:
            # A member that pulls may have gone further.
            return max(state.position if is_order else state.unpopped, committed)
        return committed if committed >= 0 else None

    def committed_offset(self, key: Key) -> int:
        """Return what the groups' table has, -1 if the group is new to the queue."""
        return self._offsets.query(*key)

    def handed_out(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which a queue was popped, -1 if it never was."""
        state = self.table.get((group, topic, queue_id))
        return -1 if state is None else state.unpopped

    def position(self, key: Key, init_mode: int, *, is_order: bool) -> int:
        """Return where a group goes on in a queue. Follow a reset, and store the place of a group that is
        new to the queue.
        """
        group, topic, queue_id = key
        offsets = self._offsets
        if offsets.resets:
            reset = offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                if key in self.table.states:
                    self.write(c.Reset(key, reset))
                return reset
        known = self.known_position(key, is_order=is_order)
        if known is not None:
            return known
        begin = low = self._store.min_offset(topic, queue_id)
        if init_mode != INIT_MIN and not is_retry_topic(topic):
            high = self._store.max_offset(topic, queue_id)
            # Java: initPopOffsetByCheckMsgInMem. The first messages of a new topic are not passed over.
            is_new = (
                self._parts.config.init_pop_offset_by_check_msg_in_mem
                and low <= 0
                and self._store.is_in_memory(topic, queue_id, 0)
            )
            begin = 0 if is_new else max(high - 1, low, 0)
        offsets.commit(group, topic, queue_id, begin)
        return begin

    def forget_topic(self, topic: str) -> None:
        """Forget what is in flight of a topic that was deleted."""
        self._forget(lambda key: key[1] == topic)

    def forget_group(self, group: str) -> None:
        """Forget what is in flight of a group that was deleted."""
        self._forget(lambda key: key[0] == group)

    def _forget(self, is_gone: Callable[[Key], bool]) -> None:
        gone = [key for key in self.table.states if is_gone(key)]
        if gone:
            try:
                self.write(*(c.Dropped(key) for key in gone))
            except StoreError as error:
                # Its queue is gone: what is due finds no message, and is forgotten then.
                log.warning("what a deleted queue had in flight stays", reason=str(error))

    def roll(self, end_place: int) -> int:
        """Write parts of a round if a start would read a record in front of a commit-log offset; return how
        many, 0 when none is needed. See `Cleaner.on_expiring`.
        """
        queue = self._store.queues.find(POP_LOG_TOPIC, _LOG_QUEUE_ID)
        if queue is None or not queue.next_offset:
            return 0
        unit = self._store.mender.unit(queue, max(self.log.start, queue.min_offset))
        if unit is None or unit.physical_offset >= end_place:
            return 0
        for count in range(_PARTS_AT_ONCE):
            if not self.log.step():
                return count + 1
        return _PARTS_AT_ONCE

    async def _write_round(self) -> None:
        try:
            while self.log.wants_round:
                self.log.step()
                await asyncio.sleep(0)
        except StoreError as error:
            log.warning("the records of what is in flight are not shortened", reason=str(error))
        finally:
            self._is_rounding = False

    # Committed offsets

    def _commit_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._commits_at = loop.call_later(_COMMIT_PERIOD_S, self._commit)

    def _commit(self) -> None:
        """Commit what was done a moment ago, if the disk has the log of it. The groups' table may
        reach the disk before the log does. After a loss of power it would then count messages as
        done of which the log has neither the pops nor the copies.
        """
        self._commits_at = None
        end, offsets = self._unsafe
        if self._store.flushed_offset >= end:
            self._commit_all(offsets)
            changed, self.table.changed = self.table.changed, set()
            states = (self.table.get(key) for key in changed)
            offsets = [(each.key, each.committed) for each in states if each is not None]
            self._unsafe = self._store.commit_log.end, offsets
        if offsets:
            self._commit_soon()

    def _commit_all(self, offsets: list[tuple[Key, int]]) -> None:
        for key, offset in offsets:
            state = self.table.get(key)
            if state is None:
                continue  # its topic or its group is gone
            group, topic, queue_id = key
            # Never back: a member that pulls may have committed more. A reset may have come since.
            done = min(offset, state.committed)
            if done > self._offsets.query(group, topic, queue_id):
                self._offsets.commit(group, topic, queue_id, done)

    # The log

    def _append(self, body: bytes) -> None:
        store = self._store
        store.append(
            store.queue(POP_LOG_TOPIC, _LOG_QUEUE_ID),
            body,
            b"",
            0,
            self._clock.now_ms(),
            self._parts.packed_host,
        )

    def _next_offset(self) -> int:
        return self._store.queue(POP_LOG_TOPIC, _LOG_QUEUE_ID).next_offset

    def _last_line(self) -> c.Line | None:
        queue = self._store.queues.find(POP_LOG_TOPIC, _LOG_QUEUE_ID)
        if queue is None:
            return None
        for offset in range(queue.next_offset - 1, queue.min_offset - 1, -1):
            unit = self._store.mender.unit(queue, offset)
            record = None if unit is None else self._record(unit)
            if record is not None:
                return decode_line(record.body)
        return None

    def _lines(self, start: int) -> Iterator[StoredRecord]:
        queue = self._store.queues.find(POP_LOG_TOPIC, _LOG_QUEUE_ID)
        assert queue is not None
        offset = max(start, queue.min_offset)
        while offset < queue.next_offset:
            units = self._store.mender.units(queue, offset, _UNITS_AT_ONCE)
            before = offset
            for unit in units or ():
                offset += 1
                record = self._record(unit)
                if record is not None:
                    yield record
            if offset == before:  # a missing unit
                offset += 1

    def _record(self, unit: Unit) -> StoredRecord | None:
        if unit.size == PLACEHOLDER_SIZE:
            return None
        record = self._store.stored_record(unit.physical_offset)
        return record if record is not None and record.topic == POP_LOG_TOPIC else None

    def _is_copied(self, change: c.Moved, offset: int, place: int) -> bool:
        """Say whether the log has the copy of a message at its place in another queue."""
        store = self._store
        target = store.queues.find(change.topic, change.queue_id)
        if target is None or place >= target.next_offset:
            return False
        copy_at = store.mender.unit(target, place)
        source = store.queues.find(change.key[1], change.key[2])
        original_at = None if source is None else store.mender.unit(source, offset)
        if copy_at is None or original_at is None:
            return True  # it was there, and has left the disk
        copy = store.stored_record(copy_at.physical_offset)
        return copy is None or copy.prepared_transaction_offset == original_at.physical_offset


def wake_place(group: str, topic: str) -> tuple[str, int]:
    """Return the place of pops that wait for anything but the arrival of a message. No topic has such a name."""
    return f"\0{group}\0{topic}", 0

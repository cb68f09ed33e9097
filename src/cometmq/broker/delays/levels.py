"""Keep messages with a delay level: they wait in SCHEDULE_TOPIC_XXXX, queue level - 1.

Java: ScheduleMessageService, HookUtils.transformDelayLevelMessage.

All messages of a queue wait equally long. So they fall due in the order of the queue, and only its
head need be looked at. The tags code of a unit is the time of delivery: store timestamp + delay.

No clock is read here: callers pass the time, so that a test can choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cometmq.broker.delays.delivery import Delivery, UndeliverableError, WaitingMessage
from cometmq.broker.incoming import IncomingMessage
from cometmq.errors import MessageIllegalError, StoreBusyError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, ConsumeQueue, Unit
from cometmq.store.store import MessageStore

log = get_logger(__name__)

NEVER_MS: Final = 2**63 - 1
# A failed write is repeated after this time.
RETRY_MS: Final = 1_000


class DelayLevels:
    """Keeps the queues of all levels, and how far each one is delivered.

    `delays_ms` are the delays of level 1, 2, …; `on_due(due_ms)` is called when a message was put
    that will be the next one of its level to fall due. For the loop's thread only.
    """

    def __init__(
        self,
        store: MessageStore,
        delivery: Delivery,
        delays_ms: Sequence[int],
        on_due: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._delays_ms = tuple(delays_ms)
        self._on_due = on_due
        self._offsets = [0] * len(delays_ms)
        self._heads = [NEVER_MS] * len(delays_ms)
        # Levels whose head could not be read; their time in `_heads` is when to look again.
        self._unread: set[int] = set()
        # Offsets of levels that the configuration no longer has. They are kept in case it has them
        # again.
        self._other_offsets: dict[int, int] = {}

    @property
    def max_level(self) -> int:
        return len(self._delays_ms)

    def put(self, message: IncomingMessage, level: int, now_ms: int) -> tuple[int, int]:
        """Store `message` to be delivered later.

        A level above the highest one counts as the highest. Returns the queue offset and the
        commit-log offset of the waiting record. Raises the store's errors.
        """
        level = min(level, self.max_level)
        message.properties[p.DELAY_TIME_LEVEL] = str(level)
        message.move_to(names.SCHEDULE_TOPIC, level - 1)
        # The tags code must be the one that recovery computes from the record's store timestamp,
        # and that never goes back.
        stored_ms = max(now_ms, self._store.commit_log.last_store_timestamp)
        delay_ms = self._delays_ms[level - 1]
        placed = message.append_to(self._store, tags_code=stored_ms + delay_ms, now_ms=stored_ms)
        if self._heads[level - 1] == NEVER_MS:
            due_ms = self._heads[level - 1] = now_ms + delay_ms
            self._on_due(due_ms)
        return placed

    def next_due_ms(self) -> int:
        """Return when to call `deliver_due` next; NEVER_MS while nothing waits."""
        return min(self._heads)

    def deliver_due(self, now_ms: int, limit: int) -> int:
        """Deliver up to `limit` messages that are due at `now_ms`; return how many were done."""
        heads = self._heads
        for index, delay_ms in enumerate(self._delays_ms):
            # Nothing waits longer than its delay, even if the clock was set back meanwhile.
            if heads[index] != NEVER_MS and heads[index] > now_ms + delay_ms:
                heads[index] = now_ms + delay_ms
        count = 0
        while count < limit:
            due_ms = min(heads)
            if due_ms > now_ms:
                break
            index = heads.index(due_ms)
            if index in self._unread:
                self._look_at_head(index, now_ms)
            else:
                count += self._deliver_level(index, now_ms, limit - count)
        return count

    def pending(self) -> dict[int, int]:
        """Return how many messages wait, by level."""
        return {level: max(0, end - self._offsets[level - 1]) for level, end in self.ends().items()}

    def ends(self) -> dict[int, int]:
        """Return the queue offset that the next message will get, by level."""
        return {index + 1: self._queue(index).next_offset for index in range(self.max_level)}

    # -- before a file of the log goes --

    def roll(
        self,
        end_place: int,
        limit: int,
        now_ms: int,
        take_over: Callable[[WaitingMessage, int], None],
    ) -> int:
        """Move up to `limit` messages that wait in front of the commit-log offset `end_place`;
        return how many there were.

        `take_over` stores a copy of a message, to be delivered at the given time in ms. The copy
        does not go into the queue of its level, because it would fall due before the messages in
        front of it. Raises the store's errors.
        """
        count = 0
        for index in range(self.max_level):
            while count < limit:
                unit = self._store.mender.unit(self._queue(index), self._offsets[index])
                if unit is None or unit.physical_offset >= end_place:
                    break
                self._roll(index, unit, now_ms, take_over)
                count += 1
        return count

    def _roll(
        self,
        index: int,
        unit: Unit,
        now_ms: int,
        take_over: Callable[[WaitingMessage, int], None],
    ) -> None:
        if unit.size != PLACEHOLDER_SIZE:
            try:
                waiting = self._delivery.read(unit.physical_offset, unit.size)
            except UndeliverableError as error:
                log.error(  # noqa: TRY400 - the reason says it all
                    "delayed message dropped", level=index + 1, reason=str(error)
                )
            else:
                take_over(waiting, min(unit.tags_code, now_ms + self._delays_ms[index]))
        self._offsets[index] += 1
        self._look_at_head(index, now_ms)

    # -- progress --

    def offsets(self) -> dict[int, int]:
        """Return the next queue offset to deliver, of all levels that were ever used."""
        used = {index + 1: offset for index, offset in enumerate(self._offsets) if offset}
        return self._other_offsets | used

    def open(self, offsets: Mapping[int, int], now_ms: int) -> None:
        """Continue from `offsets` (as `offsets()` returned them), within what the queues hold."""
        self._other_offsets = {
            level: offset for level, offset in offsets.items() if not 1 <= level <= self.max_level
        }
        for index in range(self.max_level):
            queue = self._queue(index)
            offset = offsets.get(index + 1, 0)
            self._offsets[index] = min(max(offset, queue.min_offset), queue.next_offset)
            self._look_at_head(index, now_ms)

    # -- one level --

    def _queue(self, index: int) -> ConsumeQueue:
        return self._store.queue(names.SCHEDULE_TOPIC, index)

    def _look_at_head(self, index: int, now_ms: int) -> None:
        queue = self._queue(index)
        if self._offsets[index] < queue.min_offset or self._offsets[index] > queue.next_offset:
            log.warning(
                "delay level was at an offset that its queue does not have",
                level=index + 1,
                offset=self._offsets[index],
                min_offset=queue.min_offset,
                max_offset=queue.next_offset,
            )
            self._offsets[index] = min(
                max(self._offsets[index], queue.min_offset), queue.next_offset
            )
        try:
            unit = self._store.mender.unit(queue, self._offsets[index])
        except StoreBusyError as error:
            log.debug("delayed message not readable yet", level=index + 1, reason=str(error))
            self._unread.add(index)
            self._heads[index] = now_ms + RETRY_MS
            return
        self._unread.discard(index)
        if unit is None:
            self._heads[index] = NEVER_MS
        else:
            self._heads[index] = min(unit.tags_code, now_ms + self._delays_ms[index])

    def _deliver_level(self, index: int, now_ms: int, limit: int) -> int:
        """Deliver messages of a level whose head is due, until one is not due.

        Returns how many were done.
        """
        offset = self._offsets[index]
        due: list[tuple[int, int]] = []
        units = self._store.mender.units(self._queue(index), offset, limit)
        # Where a unit cannot be read yet, the look at the head says when to try again.
        with suppress(StoreBusyError):
            for physical_offset, size, due_ms in units or ():
                # The head counts as due even if its tags code says otherwise: see the rule in
                # `deliver_due`.
                if due and due_ms > now_ms:
                    break
                due.append((physical_offset, size))
        count = 0
        while count < len(due):
            done = self._delivery.deliver_many(due[count:] if count else due)
            if not done:
                physical_offset, size = due[count]
                if size != PLACEHOLDER_SIZE and not self._deliver(
                    index, physical_offset, size, now_ms
                ):
                    return count
                done = 1
            count += done
            self._offsets[index] = offset + count
        self._look_at_head(index, now_ms)
        return count

    def _deliver(self, index: int, physical_offset: int, size: int, now_ms: int) -> bool:
        """Deliver one message; return False if it must be tried again."""
        try:
            self._delivery.deliver(self._delivery.read(physical_offset, size))
        except (UndeliverableError, MessageIllegalError) as error:
            log.error(  # noqa: TRY400 - the reason says it all
                "delayed message dropped", level=index + 1, reason=str(error)
            )
        except StoreError as error:
            log.warning("delayed message not delivered yet", level=index + 1, reason=str(error))
            self._heads[index] = now_ms + RETRY_MS
            return False
        return True

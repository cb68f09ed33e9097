"""Keep messages for a time of the sender's choice: they wait in rmq_sys_wheel_timer, queue 0.

Java: TimerMessageStore, HookUtils.transformTimerMessage. `docs/internals/delays.md` says why
there is neither a wheel nor a timer log.

A message is due in a slot, TIMER_OUT_MS: the wanted time rounded down to a multiple of the
precision, or one precision earlier if the wanted time is such a multiple. A slot is delivered one
precision after its time, so that no message is early and none much later than the precision. A
record with TIMER_DEL_UNIQKEY recalls the message of its own topic that has that unique id, in the same
slot. Otherwise a client that may send to one topic could recall messages of other topics, because
any send may have that property. (Java's clients used it before there was a request for recalls.)

The tags code of a unit is the slot, negative for a recall (a Java broker puts the hash of the tags
there and does not read it). No clock is read here: callers pass the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from cometmq.broker.delays.delivery import Delivery, UndeliverableError, WaitingMessage
from cometmq.broker.delays.levels import NEVER_MS, RETRY_MS
from cometmq.broker.delays.timer_progress import TimerProgress
from cometmq.broker.delays.timer_window import MAX_LOADED, WINDOW_MS, TimerWindow
from cometmq.broker.incoming import IncomingMessage
from cometmq.errors import MessageIllegalError, StoreBusyError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.protocol.messages.properties import property_finder
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.store import MessageStore

log = get_logger(__name__)

# Units that a scan looks at between two turns of the loop.
SCAN_UNITS: Final = 2048
# How many units the floor may be moved over at once.
_FLOOR_UNITS: Final = 16_384
_MAX_SLOT_DIGITS: Final = 18

# Added to a delivered message: when its record was stored, and when it was delivered.
_SUFFIX: Final = b"TIMER_ENQUEUE_MS\x01%%d\x02TIMER_DEQUEUE_MS\x01%d\x02"

_find_out_ms: Final = property_finder(p.TIMER_OUT_MS)
_find_roll_times: Final = property_finder(p.TIMER_ROLL_TIMES)
_find_recall_key: Final = property_finder(p.TIMER_DEL_UNIQKEY)
_find_unique_id: Final = property_finder(p.UNIQ_CLIENT_MESSAGE_ID)
_find_real_topic: Final = property_finder(p.REAL_TOPIC)


def recall_key(topic: str, unique_id: str) -> str:
    """Return the key by which a recall names the message of one topic (Java:
    TimerMessageStore.buildDeleteKey).
    """
    return f"{topic}+{unique_id}"


class _Slot:
    """Keeps a slot that is being delivered: `messages` from `position` on are still to be done.

    Before the first of them is, all `recalls` are read; those from `unread` on are not yet. `recalled`
    has what they name, by `_mark`.
    """

    __slots__ = ("messages", "position", "recalled", "recalls", "slot", "unread")

    def __init__(
        self, slot: int, messages: array[int], position: int, recalls: array[int], unread: int
    ) -> None:
        self.slot = slot
        self.messages = messages
        self.position = position
        self.recalls = recalls
        self.unread = unread
        self.recalled: set[bytes] = set()


class TimerQueue:
    """Keeps all timed messages of a broker. `on_due(due_ms)` is called when one was put.

    For the loop's thread only.
    """

    def __init__(
        self,
        store: MessageStore,
        delivery: Delivery,
        precision_ms: int,
        on_due: Callable[[int], None] = lambda _: None,
        *,
        window_ms: int = WINDOW_MS,
        max_loaded: int = MAX_LOADED,
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._precision_ms = precision_ms
        self._on_due = on_due
        self._window_ms = window_ms
        self._max_loaded = max_loaded
        self._current: _Slot | None = None
        self._retry_at_ms = 0
        # Messages that waited in front of this queue offset were copied: see `roll`.
        self._rolled_to = 0
        self.progress = TimerProgress()
        self.window = self._new_window()
        # How many messages wait. Recalls do not count; a recalled message counts until its time.
        self.pending = 0

    def floor(self, *, exact: bool = False) -> int:
        """Return a queue offset below which no message waits, with `exact` the highest one."""
        end = self._queue().next_offset
        if not self.pending:
            return end
        return self.window.raise_floor(end if exact else _FLOOR_UNITS)

    # -- putting --

    def slot_of(self, deliver_ms: int) -> int:
        """Return the slot of a message that is wanted at `deliver_ms`."""
        return (deliver_ms - 1) // self._precision_ms * self._precision_ms

    def put(self, message: IncomingMessage, deliver_ms: int, now_ms: int) -> tuple[int, int]:
        """Store `message` to be delivered at `deliver_ms`, or a recall of a message due then.

        Returns the queue offset and the commit-log offset of the waiting record. Raises the store's
        errors.
        """
        if not self.pending and self._current is None:
            # Nothing moved the window while it was empty; moving it now costs nothing.
            self.window.move(now_ms)
        slot = self.slot_of(deliver_ms)
        recall = p.TIMER_DEL_UNIQKEY in message.properties
        message.properties[p.TIMER_OUT_MS] = str(slot)
        message.move_to(names.TIMER_TOPIC, 0)
        placed = message.append_to(self._store, tags_code=-slot if recall else slot, now_ms=now_ms)
        if self._current is not None and slot <= self._current.slot:
            # Possible only after the clock was set back: the new message is due before the rest of
            # the slot, or recalls a part of it.
            self._give_back(self._current)
        self.progress.arrived(slot, placed[0])
        self.window.add(slot, placed[0], recall=recall)
        self.pending += not recall
        self._on_due(slot + self._precision_ms)
        return placed

    # -- delivering --

    def next_due_ms(self) -> int:
        """Return when to call `run` next; NEVER_MS while nothing waits."""
        if self._current is not None:
            return self._retry_at_ms
        if self.window.scanning:
            return 0
        first = self.window.first_slot
        if first is not None:
            return first + self._precision_ms
        return self.window.known_to if self.pending else NEVER_MS

    def late_ms(self, now_ms: int) -> int:
        """Return how overdue the next message is; 0 also while a scan looks for it."""
        slot = self.window.first_slot if self._current is None else self._current.slot
        return 0 if slot is None else max(0, now_ms - slot - self._precision_ms)

    def run(self, now_ms: int, limit: int) -> int:
        """Deliver up to `limit` messages that are due at `now_ms`, and scan a little further ahead.

        Returns how many were done; 0 when there is nothing more to do at this time.
        """
        if self._current is not None and self._current.slot + self._precision_ms > now_ms:
            self._give_back(self._current)
        if self._current is None:
            self.window.move(now_ms)
        count = 0
        if self.window.scanning:
            self.window.scan(SCAN_UNITS)
            count = 1
        if now_ms < self._retry_at_ms <= now_ms + RETRY_MS:
            return 0
        self._retry_at_ms = 0
        while count < limit:
            slot = self._current or self._next_slot(now_ms)
            if slot is None:
                break
            count += self._deliver_slot(slot, now_ms, limit - count)
            if self._retry_at_ms:
                break
        return count

    def _next_slot(self, now_ms: int) -> _Slot | None:
        window = self.window
        first = window.first_slot
        if first is None or first + self._precision_ms > now_ms:
            return None
        slot, messages, recalls = window.take_first()
        at, unread = window.first_of(messages), window.first_of(recalls)
        self._current = _Slot(slot, messages, at, recalls, unread)
        return self._current

    def _give_back(self, slot: _Slot) -> None:
        """Stop delivering `slot`: the messages that are left of it wait as before."""
        self.window.put_back(slot.slot, slot.messages[slot.position :], slot.recalls)
        self._current = None

    def _read_recalls(self, slot: _Slot, now_ms: int, limit: int) -> int:
        """Read up to `limit` recalls of a slot; return how many were."""
        count = 0
        for offset in slot.recalls[slot.unread : slot.unread + limit]:
            try:
                mark = self._recalled_by(offset)
            except StoreBusyError as error:
                log.debug("recall not readable yet", slot=slot.slot, reason=str(error))
                self._retry_at_ms = now_ms + RETRY_MS
                break
            if mark is not None:
                slot.recalled.add(mark)
            count += 1
        slot.unread += count
        return count

    def _deliver_slot(self, slot: _Slot, now_ms: int, limit: int) -> int:
        if slot.unread < len(slot.recalls) and slot.position < len(slot.messages):
            # Others are served in between, however many there are.
            return self._read_recalls(slot, now_ms, limit)
        count = 0
        while slot.position < len(slot.messages) and count < limit:
            offsets = slot.messages[slot.position : slot.position + limit - count]
            done = self._deliver_many(slot, offsets, now_ms)
            if not done:
                if not self._deliver(slot, offsets[0], now_ms):
                    return count
                done = 1
            slot.position += done
            self.pending -= done
            self.progress.advance_all(slot.slot, offsets[:done])
            count += done
        if slot.position == len(slot.messages):
            self._current = None
            self.progress.finish(slot.slot)
        return count or 1

    def _deliver_many(self, slot: _Slot, offsets: Sequence[int], now_ms: int) -> int:
        """Deliver messages up to one that is recalled or needs a closer look; return how many."""
        places: list[tuple[int, int]] = []
        for place in self._places(offsets):
            if slot.recalled and self._is_recalled_at(place, slot.recalled):
                break
            places.append(place)
        return self._delivery.deliver_many(places, _SUFFIX % now_ms)

    def _places(self, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """Return (log offset, size) of messages at these queue offsets, or of the first ones."""
        queue = self._queue()
        places: list[tuple[int, int]] = []
        # `_deliver` says of a unit that cannot be read yet when to try again.
        with suppress(StoreBusyError):
            if offsets[-1] - offsets[0] == len(offsets) - 1:
                units = self._store.mender.units(queue, offsets[0], len(offsets))
                for physical_offset, size, _ in units or ():
                    places.append((physical_offset, size))
                return places
            for offset in offsets:
                unit = self._store.mender.unit(queue, offset)
                if unit is None:
                    break
                places.append((unit.physical_offset, unit.size))
        return places

    def _is_recalled_at(self, place: tuple[int, int], recalled: set[bytes]) -> bool:
        try:
            return _is_recalled(self._delivery.read(*place), recalled)
        except UndeliverableError:
            return True  # `_deliver` takes a closer look

    def _deliver(self, slot: _Slot, offset: int, now_ms: int) -> bool:
        """Deliver one message unless it is recalled; return False if it must be tried again."""
        try:
            waiting = self._read(offset)
            if slot.recalled and _is_recalled(waiting, slot.recalled):
                return True
            self._delivery.deliver(waiting, _SUFFIX % now_ms % waiting.store_timestamp)
        except (UndeliverableError, MessageIllegalError) as error:
            log.error(  # noqa: TRY400 - the reason says it all
                "timed message dropped", queue_offset=offset, reason=str(error)
            )
        except StoreError as error:
            log.warning("timed message not delivered yet", queue_offset=offset, reason=str(error))
            self._retry_at_ms = now_ms + RETRY_MS
            return False
        return True

    # -- before a file of the log goes --

    def roll(self, end_place: int, limit: int, saved: TimerProgress, saved_to: int) -> int:
        """Copy messages waiting in front of the commit-log offset `end_place` to the queue's end.

        Looks at up to `limit` units and returns at how many, 0 when nothing is left there. Raises
        the store's errors. Java: TimerMessageStore copies every message each timerRollWindowSlot.
        The copies are made in the order of the queue, and each names its original. So the last copy
        says that nothing in front of its original waits.

        `saved` is the progress that is on disk; it covers records below the commit-log offset
        `saved_to`. No record says what became of a message that was recalled. So a recall is
        needed as long as only the memory knows that its time is over.
        """
        if self._current is not None:
            self._give_back(self._current)
        queue = self._queue()
        self._rolled_to = max(self._rolled_to, queue.min_offset)
        count = 0
        while count < limit:
            unit = self._store.mender.unit(queue, self._rolled_to)
            if unit is None or unit.physical_offset >= end_place:
                break
            if code := self.window.needed_code(self._rolled_to, saved, saved_to):
                self._roll(self._rolled_to, code)
            self._rolled_to += 1
            self.window.floor = max(self.window.floor, self._rolled_to)
            count += 1
        return count

    def _roll(self, offset: int, code: int) -> None:
        try:
            waiting = self._read(offset)
        except UndeliverableError as error:
            log.error("timed message dropped", queue_offset=offset, reason=str(error))  # noqa: TRY400 - the reason says it all
            self.pending -= code > 0
            return
        text = _find_roll_times(waiting.text) or ""
        rolled = int(text) + 1 if text.isdecimal() and len(text) < _MAX_SLOT_DIGITS else 1
        self._append_again(waiting, code, b"TIMER_ROLL_TIMES\x01%d\x02" % rolled, needed=False)

    def take_over(self, waiting: WaitingMessage, due_ms: int) -> None:
        """Let a message of a delay level wait here until `due_ms`. Raises the store's errors."""
        slot = self.slot_of(due_ms)
        self._append_again(waiting, slot, b"TIMER_OUT_MS\x01%d\x02" % slot, needed=True)
        self.pending += 1

    def _append_again(
        self, waiting: WaitingMessage, code: int, more_properties: bytes, *, needed: bool
    ) -> None:
        offset = self._delivery.wait_again(
            waiting, self._queue(), code, more_properties, needed=needed
        )
        slot = abs(code)
        self.progress.arrived(slot, offset)
        self.window.add(slot, offset, recall=code < 0)
        self._on_due(slot + self._precision_ms)

    # -- opening --

    def open(self, progress: TimerProgress, floor: int, now_ms: int) -> None:
        """Continue from `progress`; no message below queue offset `floor` waits."""
        self.progress = progress
        self.window = self._new_window()
        self.window.floor = self._rolled_to = floor
        self.window.move(now_ms)
        self.pending = 0
        while self.window.scanning:
            self.pending += self.window.scan(SCAN_UNITS)

    def code_of_record(self, physical_offset: int, size: int) -> int:
        """Return the tags code for a record of the timer topic; 0 if the record has no slot."""
        try:
            waiting = self._delivery.read(physical_offset, size)
        except UndeliverableError:
            return 0
        out_ms = _find_out_ms(waiting.text)
        if out_ms is None or not out_ms.isdecimal() or len(out_ms) > _MAX_SLOT_DIGITS:
            return 0
        return -int(out_ms) if _find_recall_key(waiting.text) else int(out_ms)

    def _new_window(self) -> TimerWindow:
        return TimerWindow(
            self._queue,
            self.progress,
            self.code_of_record,
            window_ms=self._window_ms,
            max_loaded=self._max_loaded,
        )

    def _queue(self) -> ConsumeQueue:
        return self._store.queue(names.TIMER_TOPIC, 0)

    def _read(self, offset: int) -> WaitingMessage:
        unit = self._store.mender.unit(self._queue(), offset)
        if unit is None:
            raise UndeliverableError(f"the timer queue has no offset {offset} any more")
        return self._delivery.read(unit.physical_offset, unit.size)

    def _recalled_by(self, offset: int) -> bytes | None:
        """Return the mark of the message that a recall names."""
        try:
            order = self._read(offset)
        except UndeliverableError:
            return None
        key, topic = _find_recall_key(order.text), _find_real_topic(order.text) or ""
        # Brokers of 5.2 to 5.3 name the topic too, newer ones with appendTopicForTimerDeleteKey only.
        return None if key is None else _mark(topic, key.removeprefix(recall_key(topic, "")))


def _is_recalled(waiting: WaitingMessage, recalled: set[bytes]) -> bool:
    unique_id = _find_unique_id(waiting.text)
    if unique_id is None:
        return False
    return _mark(_find_real_topic(waiting.text) or "", unique_id) in recalled


def _mark(topic: str, unique_id: str) -> bytes:
    """Return 16 bytes that stand for a message: its id may have 32 KiB, and all recalls of a slot are
    held at once.
    """
    return blake2b(recall_key(topic, unique_id).encode(), digest_size=16).digest()

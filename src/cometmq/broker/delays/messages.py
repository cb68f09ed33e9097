"""Keep all delayed messages, those with a delay level and timed ones, without a loop.

Callers pass the time; `broker/delays/service.py` reads the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.delays.delivery import Delivery
from cometmq.broker.delays.levels import DelayLevels
from cometmq.broker.delays.state import DelayState, Replay, decode_timer_check
from cometmq.broker.delays.timer import TimerQueue
from cometmq.broker.delays.timer_progress import TimerProgress
from cometmq.broker.delays.timer_window import MAX_LOADED, WINDOW_MS
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.topic import DataVersion
from cometmq.store.store import MessageStore

log = get_logger(__name__)


class DelayedMessages:
    """Keeps the waiting messages of one open store.

    `on_due(due_ms)` is called when a message was put that may be the next one to fall due. For the
    loop's thread only.
    """

    def __init__(
        self,
        store: MessageStore,
        timer_precision_ms: int,
        on_due: Callable[[int], None] = lambda _: None,
        *,
        window_ms: int = WINDOW_MS,
        max_loaded: int = MAX_LOADED,
    ) -> None:
        self._store = store
        self._delivery = Delivery(store)
        self.levels = DelayLevels(store, self._delivery, store.config.delay_levels_ms, on_due)
        self.timers = TimerQueue(
            store,
            self._delivery,
            timer_precision_ms,
            on_due,
            window_ms=window_ms,
            max_loaded=max_loaded,
        )

    @property
    def delivered_count(self) -> int:
        """How many messages were delivered since the start."""
        return self._delivery.delivered_count

    def open(self, state: DelayState | None, now_ms: int, java_timer_check: bytes = b"") -> None:
        """Find out what is delivered: from `state`, as `capture` returned it, and from the log.

        `java_timer_check` is the content of config/timercheck, for a store that a Java broker had
        last. Call this once, before anything is put.
        """
        state = state or DelayState()
        offsets = dict(state.offset_table)
        accounted = state.commit_log_offset
        floor = state.timer_floor
        if accounted is not None and accounted <= self._store.commit_log.end:
            progress = TimerProgress(state.timer_segments)
        else:
            progress = decode_timer_check(java_timer_check) or TimerProgress()
            if accounted is not None:
                # The log was cut, or is that of a slave which lacks its end: the copies of messages
                # that count as delivered may be missing. The log says which are there.
                offsets.clear()
                progress = TimerProgress()
            accounted = floor = 0
        replay = Replay(self._store, offsets, progress, self.timers.code_of_record)
        with self._store.mender.patiently():
            replay.run(accounted, floor)
            self.levels.open(offsets, now_ms)
            self.timers.open(progress, replay.timer_floor, now_ms)
        log.info(
            "delayed messages found",
            by_level={level: count for level, count in self.levels.pending().items() if count},
            timed=self.timers.pending,
            delivered_since_saved=replay.delivered_count,
        )

    def run(self, now_ms: int, limit: int) -> int:
        """Deliver up to `limit` messages of each kind; return 0 if nothing is left to do now."""
        count = self.levels.deliver_due(now_ms, limit)
        return count + self.timers.run(now_ms, limit)

    def roll(self, end_place: int, now_ms: int, limit: int, saved: DelayState) -> int:
        """Copy messages that wait in front of the commit-log offset `end_place` to the end of the
        log, up to `limit` of each kind; return 0 when none waits there any more.

        `saved` is the state that is on disk. Raises the store's errors.
        """
        count = self.levels.roll(end_place, limit, now_ms, self.timers.take_over)
        progress = TimerProgress(saved.timer_segments)
        return count + self.timers.roll(end_place, limit, progress, saved.commit_log_offset or 0)

    def next_due_ms(self) -> int:
        """Return when to call `run` next; NEVER_MS while nothing waits."""
        return min(self.levels.next_due_ms(), self.timers.next_due_ms())

    @property
    def pending(self) -> int:
        """How many messages wait."""
        return self.timers.pending + sum(self.levels.pending().values())

    def waiting_from(self) -> dict[tuple[str, int], int]:
        """Return the queue offset, by internal topic and queue, before which no message waits."""
        offsets = self.levels.offsets()
        found = {
            (names.SCHEDULE_TOPIC, level - 1): offsets.get(level, 0) for level in self.levels.ends()
        }
        return found | {(names.TIMER_TOPIC, 0): self.timers.floor()}

    def capture(self, version: DataVersion) -> DelayState:
        """Return the progress as of now.

        Write it down only once the log is on disk up to its `commit_log_offset`.
        """
        return DelayState(
            data_version=version,
            offset_table=self.levels.offsets(),
            commit_log_offset=self._store.commit_log.end,
            timer_segments=self.timers.progress.copy(),
            timer_floor=self.timers.floor(),
        )

"""Deliver delayed messages, on one timer of the loop, and write the progress to disk.

Java: ScheduleMessageService, TimerMessageStore, which have a thread for each level and eight for
the timer. The rules are in `messages.py`, which knows no loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from cometmq.broker.delays.levels import NEVER_MS
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.delays.put import MessagePut
from cometmq.broker.delays.recall import RecallHandler
from cometmq.broker.delays.state import TIMER_CHECK_SIZE, DelayState, encode_timer_check
from cometmq.broker.delays.state_handlers import DelayStateHandlers
from cometmq.broker.parts import Parts, Service
from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.topic import DataVersion
from cometmq.protocol.fastjson.dialect import decode_body, pretty_pieces
from cometmq.runtime.slices import SLICE_S
from cometmq.runtime.state_files.json_file import JsonFile

log = get_logger(__name__)

# The time of a slice is checked after each batch, which is about as long. So a hundred thousand
# messages that are due at once do not delay sends for long, nor do sends delay them.
_BATCH: Final = 32
# While any message waits, the clock is read this often, because somebody may set it.
_LONGEST_SLEEP_MS: Final = 1_000


class Delays(Service):
    """Delivers the delayed messages of a broker. Must be open before anything is put.

    For the loop's thread only.
    """

    runs_on_slave = False

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
        self._disk = parts.disk
        self._clock = parts.clock
        self._state = parts.state
        self._tasks = parts.tasks
        self._config = parts.config
        self._root = parts.store.config.store_path_root_dir
        self._file = JsonFile(self._root / "config" / "delayOffset.json", files=parts.files)
        self._java_timer_file = self._root / "config" / "timercheck"
        self.messages = DelayedMessages(
            self._store, self._config.timer_precision_ms, self._due_earlier
        )
        self.put = MessagePut(self._config, self._store, self._clock, self.messages)
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for_ms = NEVER_MS
        self._version = DataVersion()
        # Written only once the log is on disk up to its commit-log offset.
        self._unsaved: DelayState | None = None
        self._saved = DelayState()
        self._on_disk = DelayState()

    async def open(self) -> None:
        """Find out what is delivered already. Raises ConfigError for an unreadable state file."""
        # In a thread, because recovery may read much of the log.
        await asyncio.get_running_loop().run_in_executor(None, self._recover)
        parts = self._parts
        RecallHandler(parts.config, parts.clock, parts.topics, self.put).register(parts.handlers)
        DelayStateHandlers(parts.config, self._progress).register(parts.handlers)

    def _progress(self) -> DelayState:
        return self.messages.capture(msgspec.structs.replace(self._version))

    def _recover(self) -> None:
        state = self._file.read(lambda text: decode_body(text.encode(), DelayState))
        if state is not None and state.data_version is not None:
            self._version = state.data_version
        java_timer_check = b""
        if self._disk.size(self._java_timer_file) is not None:
            java_timer_check = self._disk.read(self._java_timer_file)
        self.messages.open(state, self._clock.now_ms(), java_timer_check)

    def show(self, state: DelayState) -> None:
        """Show the master's figures on a slave, where nothing is delivered."""
        self.messages.levels.open(state.offset_table, self._clock.now_ms())

    def start(self) -> None:
        """Deliver from now on."""
        self._running = True
        self._arm(0)
        self._capture()
        config = self._config
        self._tasks.every(
            lambda: config.flush_delay_offset_interval / 1000, self._save, "save-delay-offsets"
        )

    def roll(self, end_place: int) -> int:
        """Copy some messages waiting in front of a commit-log offset; see `Cleaner.on_expiring`."""
        return self.messages.roll(end_place, self._clock.now_ms(), _BATCH, self._on_disk)

    def close(self) -> None:
        """Stop delivering and write the progress down."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._store.flush_commit_log()
            self._write_for_java()
        except StoreError as error:
            # The files stay as they are; the log says what was delivered since.
            log.warning("delay offsets not saved", reason=str(error))
            return
        self._capture()
        self._save()

    def _write_for_java(self) -> None:
        """Write down for a Java broker which messages are delivered, and let it build its own timer files again."""
        if not self._store.max_offset(names.TIMER_TOPIC, 0):
            return
        self.messages.timers.floor(exact=True)
        state = self.messages.capture(self._version)
        self._disk.make_directory(self._java_timer_file.parent)
        self._disk.overwrite(
            self._java_timer_file,
            encode_timer_check(state, self._config.timer_precision_ms),
            TIMER_CHECK_SIZE,
        )
        self._disk.remove(self._root / "timerwheel")
        self._disk.remove_tree(self._root / "timerlog")

    # -- the timer --

    def _due_earlier(self, due_ms: int) -> None:
        """Set the timer earlier if need be, because a message was put that is due at `due_ms`."""
        if self._running and due_ms < self._armed_for_ms:
            self._arm(due_ms - self._clock.now_ms())

    def _arm(self, sleep_ms: int) -> None:
        """Set the timer, for _LONGEST_SLEEP_MS at most: meanwhile the clock may be set."""
        if self._timer is not None:
            self._timer.cancel()
        sleep_ms = min(max(sleep_ms, 0), _LONGEST_SLEEP_MS)
        self._armed_for_ms = self._clock.now_ms() + sleep_ms
        self._timer = asyncio.get_running_loop().call_later(sleep_ms / 1000, self._run)

    def _run(self) -> None:
        self._timer = None
        self._armed_for_ms = NEVER_MS
        now_ms = self._clock.now_ms()
        until = self._clock.monotonic() + SLICE_S
        try:
            while count := self.messages.run(now_ms, _BATCH):
                if self._clock.monotonic() >= until:
                    break
                now_ms = self._clock.now_ms()
        except Exception:
            # The outermost edge of a callback: without it a fault would end all deliveries.
            log.exception("delayed messages could not be delivered")
            self._arm(_LONGEST_SLEEP_MS)
            return
        if count:
            self._arm(0)
            return
        due_ms = self.messages.next_due_ms()
        if due_ms != NEVER_MS:
            # A message that is due but not delivered has failed. It is tried again.
            self._arm(due_ms - now_ms if due_ms > now_ms else _LONGEST_SLEEP_MS)

    # -- the state file --

    def _save(self) -> None:
        """Write the captured progress once the log on disk covers it, and capture what follows."""
        unsaved = self._unsaved
        if unsaved is not None:
            assert unsaved.commit_log_offset is not None
            if self._store.flushed_offset < unsaved.commit_log_offset:
                return
            self._state.soon(
                self._file, lambda: pretty_pieces(unsaved), lambda: self._written(unsaved)
            )
            self._saved = unsaved
            self._unsaved = None
        self._capture()

    def _written(self, state: DelayState) -> None:
        self._on_disk = state

    def _capture(self) -> None:
        """Capture the progress, if it goes beyond the saved one."""
        state = self._progress()
        saved = self._saved
        same = (
            state.offset_table == saved.offset_table
            and state.timer_segments == saved.timer_segments
        )
        # While a message waits, a saved commit-log offset further on spares the next start a part
        # of the log.
        if same and (
            not self.messages.pending or state.commit_log_offset == saved.commit_log_offset
        ):
            return
        self._version.next(self._clock.now_ms())
        state.data_version = msgspec.structs.replace(self._version)
        self._unsaved = state

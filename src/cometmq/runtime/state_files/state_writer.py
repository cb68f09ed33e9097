"""Write state files in a thread beside the loop (Java: ConfigManager.persist).

Changes that come while a file waits for its turn go out in one write. A failed write is tried
again, with pauses of up to five seconds, until it succeeds; the log says when the failures begin
and when they end. After a write of d seconds the file rests for 20 d, so that a large table that
changes all the time takes at most a twentieth of the disk's time and of the process's. A write that
somebody waits for does not wait for the end of a rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Final

from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.workers import THREADS, Workers

log = get_logger(__name__)

_REST: Final = 20
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
# The writer's thread sleeps so long between two pieces of a text, to leave the interpreter to the
# loop's thread.
_BETWEEN_PIECES_S: Final = 0.0005

# How often servers have `look` called.
LOOK_PERIOD_S: Final = 1.0

# Called on the loop when the file's turn has come. Returns the whole text, or an iterable of pieces
# that the writer's thread makes, from values that nobody changes any more or that it copies itself. A
# piece may be empty: others run for a moment after it, too.
Capture = Callable[[], str | Iterable[str]]


class _Job:
    """One write of a file.

    `capture` gives the text, `written` is called when the disk has it, and `waiter` is for those
    who wait for the attempt. `at_once` says that the write does not wait for the end of a rest.
    """

    __slots__ = ("at_once", "capture", "waiter", "written")

    def __init__(self, capture: Capture, written: Callable[[], None] | None) -> None:
        self.capture = capture
        self.written = written
        self.at_once = False
        self.waiter: asyncio.Future[None] | None = None


class _State:
    """Holds the writes that are due and under way for one file, and from when on it may be written
    again.
    """

    __slots__ = ("due", "failures", "not_before", "running", "timer", "timer_at")

    def __init__(self) -> None:
        self.due: _Job | None = None
        self.running: tuple[_Job, Future[float]] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0
        self.not_before = 0.0
        self.failures = 0


class StateWriter:
    """Writes state files in one thread. Call its methods from the loop's thread, and `close` it
    when nothing changes any more.
    """

    def __init__(self, workers: Workers = THREADS, clock: BlockingClock = SYSTEM_CLOCK) -> None:
        self._executor = workers.worker("state-writer")
        self._clock = clock
        self._states: dict[JsonFile, _State] = {}
        # Files that must exist, and the functions that return their contents.
        self._kept: dict[JsonFile, Capture] = {}
        # Files that exist, as a look has found: a new store has not written all of them yet. Only the
        # thread uses this.
        self._found: set[JsonFile] = set()
        self._looking: Future[None] | None = None
        self._closed = False

    def keep(self, file: JsonFile, capture: Capture) -> None:
        """Have `look` and `close` write a file if it is missing, as they do for files that were
        written.
        """
        self._kept[file] = capture

    def look(self, beside: Callable[[], None] = lambda: None) -> None:
        """Have missing files written, after a look in the thread, which calls `beside` first.

        The loop is woken only if a file is missing. Raises what `beside` raised in the look before.
        """
        if self._closed or not (self._looking is None or self._looking.done()):
            return
        loop, kept, looked = asyncio.get_running_loop(), list(self._kept), self._looking

        def look() -> None:
            beside()
            if missing := self._missing(kept):
                loop.call_soon_threadsafe(self._write_again, missing)

        self._looking = self._executor.submit(look)
        if looked is not None:
            looked.result()

    def _write_again(self, missing: Iterable[JsonFile]) -> None:
        for file in missing:
            # A failed write is tried again anyway, on its own schedule.
            if not self._closed and not self._states.setdefault(file, _State()).failures:
                self.soon(file, self._kept[file])

    def _missing(self, files: Iterable[JsonFile]) -> list[JsonFile]:
        missing = []
        for file in files:
            if not file.is_missing:
                self._found.add(file)
                continue
            missing.append(file)
            if file in self._found:
                log.warning("state file is missing and is written again", path=str(file.path))
        return missing

    def soon(
        self,
        file: JsonFile,
        capture: Capture,
        written: Callable[[], None] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Write the text of `capture` when the file's turn has come, after this turn of the loop.

        `written` is called when the disk has the text. A later call replaces this one if the file's
        turn has not come by then. With `at_once` the file does not rest first; after a failed
        write it still pauses.
        """
        job = self._ask(file, capture, written)
        state = self._states[file]
        if at_once:
            job.at_once = True
            if not state.failures:
                state.not_before = 0.0
        self._arm(file)

    async def save(self, file: JsonFile, capture: Capture) -> None:
        """Write as `soon` does, but without a rest or a pause first, and wait for the attempt.

        Raises OSError if the attempt fails; the write is then tried again.
        """
        job = self._ask(file, capture, None)
        if job.waiter is None:
            job.waiter = asyncio.get_running_loop().create_future()
        job.at_once = True
        self._states[file].not_before = 0.0
        self._arm(file)
        await asyncio.wait([job.waiter])
        job.waiter.result()

    def close(self) -> None:
        """Try every write that is due once, and wait until all have ended. Idempotent.

        A write may have another file written as it ends; that file is tried, too. An error of a `capture` is a
        failed write: the other files are written all the same.
        """
        if self._closed:
            return
        self._closed = True
        for file, state in list(self._states.items()):
            if state.timer is not None:
                state.timer.cancel()
            if state.running is not None:
                # `_ended` would need another turn of the loop, which may not come any more.
                job, future = state.running
                self._finish(file, job, future.exception(), 0.0)
        # Now, or a file that was removed right after its last write would stay missing.
        self._have_missing_written()
        files = list(self._states)
        for file in files:
            if (due := self._states[file].due) is not None:
                self._states[file].due = None
                self._finish(file, due, self._tried(file, due), 0.0)
            files += [added for added in self._states if added not in files]
        self._executor.shutdown(wait=True)

    def _tried(self, file: JsonFile, job: _Job) -> BaseException | None:
        """Write a file, and return why it could not be written, None if it was."""
        try:
            text = job.capture()
        except Exception as error:  # noqa: BLE001 - a fault in one table must not cost the others
            return error
        return self._executor.submit(self._write, file, text, paced=False).exception()

    def _have_missing_written(self) -> None:
        idle = [
            file
            for file in self._kept
            if (state := self._states.get(file)) is None or state.due is None
        ]
        for file in self._executor.submit(self._missing, idle).result():
            self._ask(file, self._kept[file], None)

    def _ask(self, file: JsonFile, capture: Capture, written: Callable[[], None] | None) -> _Job:
        state = self._states.setdefault(file, _State())
        if state.due is None:
            state.due = _Job(capture, written)
        else:
            state.due.capture, state.due.written = capture, written
        return state.due

    def _arm(self, file: JsonFile) -> None:
        """Set the timer of the write that is due, unless another one is under way."""
        state = self._states[file]
        if state.due is None or state.running is not None or self._closed:
            return
        loop = asyncio.get_running_loop()
        at = max(state.not_before, loop.time())
        if state.timer is not None:
            if state.timer_at <= at:
                return
            state.timer.cancel()
        state.timer_at, state.timer = at, loop.call_at(at, self._begin, file)

    def _begin(self, file: JsonFile) -> None:
        state = self._states[file]
        state.timer = None
        job, state.due = state.due, None
        assert job is not None, "the timer is set for something"
        future = self._executor.submit(self._write, file, job.capture(), paced=True)
        state.running = job, future
        asyncio.wrap_future(future).add_done_callback(partial(self._ended, file, job))

    def _ended(self, file: JsonFile, job: _Job, future: asyncio.Future[float]) -> None:
        error = future.exception()
        if self._states[file].running is None:  # `close` has finished it already
            return
        self._finish(file, job, error, 0.0 if error is not None else future.result())
        self._arm(file)

    def _finish(
        self, file: JsonFile, job: _Job, error: BaseException | None, took_s: float
    ) -> None:
        state = self._states[file]
        state.running = None
        now = asyncio.get_running_loop().time()
        if error is None:
            if state.failures:
                log.info("state file is written again", path=str(file.path))
            if not file.is_operators:
                self._kept[file] = job.capture
            state.failures = 0
            rests = state.due is None or not state.due.at_once
            state.not_before = now + _REST * took_s if rests else 0.0
            if job.written is not None:
                job.written()
        else:
            if not state.failures:
                log.error(
                    "state file cannot be written, it is tried again until it can",
                    path=str(file.path),
                    reason=str(error) or repr(error),
                )
            state.not_before = now + min(_FIRST_PAUSE_S * 2**state.failures, _LONGEST_PAUSE_S)
            state.failures = min(state.failures + 1, 10)
            if state.due is None:
                state.due = _Job(job.capture, job.written)
        if job.waiter is not None and not job.waiter.done():
            if error is None:
                job.waiter.set_result(None)
            else:
                job.waiter.set_exception(error)

    def _write(self, file: JsonFile, text: str | Iterable[str], *, paced: bool) -> float:
        """Write the file and return how many seconds that took."""
        begun = self._clock.monotonic()
        pieces = [text] if isinstance(text, str) else text
        file.write(self._with_pauses(pieces) if paced else pieces)
        return self._clock.monotonic() - begun

    def _with_pauses(self, pieces: Iterable[str]) -> Iterator[str]:
        for number, piece in enumerate(pieces):
            if number > 1:
                self._clock.sleep(_BETWEEN_PIECES_S)
            yield piece

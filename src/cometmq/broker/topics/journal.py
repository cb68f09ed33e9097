"""`topics.journal` beside `topics.json`: the changes of the table of topics since that was written.

One line and one fdatasync make a new topic durable, whatever the table's size; all changes that
wait share the fdatasync. `topics.json` is written soon after, and its changes are then removed from
the journal. After a clean stop there is no journal. Java has no counterpart; it writes the whole
table for each topic.

Java knows no journal. So while the table is small, and written in milliseconds, a new topic counts
as durable only when `topics.json` has it, too. A Java broker that opens the store after a kill then
finds every topic of an acknowledged message.

A line is the CRC-32 of the rest in eight hex digits, a blank, and the JSON of a `TopicChange`. The
first line has the version of `topics.json` that the journal continues, and no change. A damaged
line is skipped: the last one may be incomplete after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from cometmq.logs.loggers import get_logger
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies.cluster import TopicConfigSerializeWrapper
from cometmq.runtime.state_files.files import SYSTEM_FILES, AppendFile, Files
from cometmq.runtime.workers import Workers

log = get_logger(__name__)

_CRC_LENGTH: Final = 8
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
# A change that the journal has counts as durable at the latest after this time, less than a client
# waits for an answer (3 s), even if `topics.json` cannot be written.
FOLD_WAIT_S: Final = 2.0


class TopicChange(msgspec.Struct, rename="camel", omit_defaults=True):
    """One change of the table, and the table's version after the change."""

    version: DataVersion
    topic: TopicConfig | None = None
    removed: str | None = None


class JournalFile:
    """Reads and writes the file. Each method blocks; one call at a time.

    After an OSError of `append` the file must be written as a whole.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._open: AppendFile | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def read(self) -> list[TopicChange]:
        """Read the changes; the first has the version of `topics.json`. Raises OSError."""
        try:
            lines = self._files.read(self.path).split(b"\n")
        except FileNotFoundError:
            return []
        changes = [change for line in lines if line and (change := _decode(line)) is not None]
        damaged = sum(map(bool, lines)) - len(changes)
        if damaged:
            log.warning("lines of a journal are damaged", path=str(self.path), count=damaged)
        return changes

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the file as a whole, durably."""
        self.close()
        temporary = self.path.with_name(self.path.name + ".tmp")
        self._files.make_directories(self.path.parent)
        self._files.write_new(temporary, lines)
        self._files.replace(temporary, self.path)
        self._files.sync(self.path.parent)
        self._open = self._files.append_to(self.path)

    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines, durably."""
        assert self._open is not None, "the file is written as a whole first"
        try:
            self._open.append(b"".join(lines))
        except OSError:
            self.close()
            raise

    def remove(self) -> None:
        """Remove the file durably: an old journal must not meet a table written without it."""
        self.close()
        if self._files.remove(self.path):
            self._files.sync(self.path.parent)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._open is not None:
            self._open.close()
            self._open = None


class TopicJournal:
    """Writes changes to the disk, many with one write. For the loop's thread.

    A position is the number of changes made since the start. `on_add` is called after each change:
    it has `topics.json` written, and returns whether that happens at once.
    """

    def __init__(self, path: Path, workers: Workers, files: Files = SYSTEM_FILES) -> None:
        self._file = JournalFile(path, files)
        self._executor = workers.worker("topic-journal")
        self.on_add: Callable[[], bool] = lambda: False
        # `topics.json` has version `_base` and all changes up to position `_folded`. `_lines` are
        # the changes behind that position.
        self._lines: list[bytes] = []
        self._folded = 0
        self._base = DataVersion()
        self._fold_due = False
        # `topics.json` is being written with the last change, and requests that wait for the disk
        # wait for that, too.
        self._folds_at_once = False
        # The journal, or `topics.json`, has all changes up to this position.
        self._journaled = 0
        # The disk has all changes up to this position; where that is possible in time, Java finds
        # them there.
        self.durable = 0
        self._running: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Each makes changes count as durable that `topics.json` does not have by then.
        self._later: list[asyncio.TimerHandle] = []
        self._failures = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False

    def recover(self, table: TopicConfigSerializeWrapper, now_ms: int) -> bool:
        """Make the journal's changes in the table of `topics.json`; return whether it has lines.

        Must be called first; blocks. Raises OSError. The journal stays until `folded`.
        """
        changes = self._file.read()
        self._base = msgspec.structs.replace(table.data_version)
        self._lines = [_encode(change) for change in replay(table, changes, now_ms)]
        self.durable = self._journaled = len(self._lines)
        return bool(changes)

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def position(self) -> int:
        return self._folded + len(self._lines)

    def add(self, change: TopicChange) -> int:
        """Have a change written soon; return its position."""
        self._lines.append(_encode(change))
        self._arm()
        self._folds_at_once = self.on_add()
        return self.position

    async def written(self) -> None:
        """Return when the disk has all changes made so far. Raises OSError when it refuses them.

        The journal then tries again for the next caller that waits, and every few seconds.
        """
        position = self.position
        if position <= self.durable:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((position, waiter))
        self._arm()
        await waiter

    def folded(self, position: int, version: DataVersion) -> None:
        """Note that `topics.json` now has the table as it was at `position`, with `version`."""
        del self._lines[: position - self._folded]
        self._folded = position
        self._base = version
        self._fold_due = True
        self._journaled = max(self._journaled, position)
        self._advance(position)
        self._arm()

    def close(self) -> None:
        """Write the changes that `topics.json` lacks, or remove the file. Blocks; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for timer in self._later:
            timer.cancel()
        if self._running is not None:
            self._running.exception()
        if self._lines or self._fold_due:
            self._fold_due = True
            if (error := self._executor.submit(self._work()).exception()) is not None:
                log.error("topics are not written", path=str(self.path), reason=str(error))
        self._executor.shutdown(wait=True)
        self._file.close()

    # Inside

    def _arm(self, pause_s: float = 0.0) -> None:
        """Write the changes that are due, after a pause of `pause_s`.

        The write begins in the loop's next turn at the soonest, so it has all changes of this turn.
        """
        if self._running is not None or self._closed:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + pause_s
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at, self._timer = at, loop.call_at(at, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self.position == self._journaled and not self._fold_due:
            return
        position, fold_due = self.position, self._fold_due
        future = self._running = self._executor.submit(self._work())
        self._fold_due = False
        asyncio.wrap_future(future).add_done_callback(
            lambda done: self._ended(position, fold_due, done.exception())
        )

    def _work(self) -> Callable[[], None]:
        """Return the function that writes the file now; the journal's thread calls it."""
        if not self._fold_due and self._file.is_open:
            return partial(self._file.append, self._lines[self._journaled - self._folded :])
        if not self._lines:
            return self._file.remove
        return partial(self._file.write, [_encode(TopicChange(self._base)), *self._lines])

    def _ended(self, position: int, fold_due: bool, error: BaseException | None) -> None:
        self._running = None
        if error is None:
            if self._failures:
                log.info("topics are written again", path=str(self.path))
            self._failures = 0
            self._journaled = max(self._journaled, position)
            if self._folds_at_once and not self._closed:
                self._advance_later(position)
            else:
                self._advance(position)
            if self.position > self._journaled or self._fold_due:
                self._arm()
            return
        if not self._failures:
            log.error(
                "topics cannot be written, it is tried again until they can; sends that make a topic "
                "are refused meanwhile",
                path=str(self.path),
                reason=str(error),
            )
        self._fold_due = self._fold_due or fold_due
        pause_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 10)
        waiters, self._waiters = self._waiters, []
        for waited_for, waiter in waiters:
            if waited_for > position:
                self._waiters.append((waited_for, waiter))
            elif not waiter.done():
                waiter.set_exception(error)
        self._arm(0.0 if self._waiters else pause_s)

    def _advance_later(self, position: int) -> None:
        loop = asyncio.get_running_loop()
        self._later = [timer for timer in self._later if timer.when() > loop.time()]
        self._later.append(loop.call_later(FOLD_WAIT_S, self._advance, position))

    def _advance(self, position: int) -> None:
        self.durable = max(self.durable, position)
        waiters, self._waiters = self._waiters, []
        for waited_for, waiter in waiters:
            if waited_for > self.durable:
                self._waiters.append((waited_for, waiter))
            elif not waiter.done():
                waiter.set_result(None)


def replay(
    table: TopicConfigSerializeWrapper, changes: list[TopicChange], now_ms: int
) -> list[TopicChange]:
    """Make the changes of a journal in the table of `topics.json`; return those that were made.

    If the journal does not know the table's version, another broker changed the table without the
    journal, or the table is an older backup. Then only topics that the table lacks are added.
    """
    if not changes:
        return []
    topics = table.topic_config_table
    log.info("topics are taken from their journal", lines=len(changes) - 1)
    if not any(change.version == table.data_version for change in changes):
        missing = {
            change.topic.topic_name: change.topic
            for change in changes
            if change.topic is not None and change.topic.topic_name not in topics
        }
        topics.update(missing)
        if missing:
            table.data_version.next(now_ms)
        version = msgspec.structs.replace(table.data_version)
        return [TopicChange(version, topic) for topic in missing.values()]
    for change in changes:
        if change.topic is not None:
            topics[change.topic.topic_name] = change.topic
        elif change.removed is not None:
            topics.pop(change.removed, None)
    table.data_version = msgspec.structs.replace(changes[-1].version)
    return changes[1:]


def _encode(change: TopicChange) -> bytes:
    data = msgspec.json.encode(change)
    return b"%08x %b\n" % (crc32(data), data)


def _decode(line: bytes) -> TopicChange | None:
    crc, _, data = line.partition(b" ")
    try:
        if len(crc) == _CRC_LENGTH and int(crc, 16) == crc32(data):
            return msgspec.json.decode(data, type=TopicChange)
    except ValueError:  # msgspec's errors are ValueErrors, too
        pass
    return None

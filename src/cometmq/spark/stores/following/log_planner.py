"""Decide how far the next batch of a stream reads a log, and what happens if the log is not as expected.

the log ends                            wait
no record, but later ones               wait for timeoutMs, since a copy may bring files out of order;
                                        then damage: fail, or leave it out as a gap
the log ends in front of the position   wait for timeoutMs, then fail
the record in front is another one      fail at once
files up to the position are deleted    fail, or leave them out as a gap
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cometmq.errors import DataLossError, StoreCorruptError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.messages.record_layout import (
    STORE_TIME_LIMIT_MS,
    STORE_TIMESTAMP_AT,
    record_struct,
)
from cometmq.runtime.clock import BlockingClock
from cometmq.spark.gaps import DAMAGE, RETENTION, Gap
from cometmq.spark.stores.following.log_walk import (
    Stop,
    Walked,
    file_at,
    head_at,
    record_behind,
    walk,
    written_end,
)
from cometmq.spark.stores.following.positions import Mark, Seen, mark_at, seen, with_mark
from cometmq.spark.stores.following.topics import ChosenTopics
from cometmq.store.reading.files import LogFile, StoreFiles

logger = get_logger(__name__)

# Spark asks an idle query for its latest offset a hundred times a second.
LOOK_EVERY_S: Final = 0.2
# A file with other bytes than zeros behind its last record is searched for later records this often: it
# may hold a gigabyte.
SEARCH_EVERY_S: Final = 10.0
_PAUSE_S: Final = 0.2
NO_END: Final = 2**63 - 1
# The position of a query that began before there was a log.
NO_LOG: Final = -1
_STORED: Final = record_struct("store_timestamp")


@dataclass(frozen=True)
class Next:
    """The end of the next batch: its position and the marks there. left_out: the batch's beginning, if the
    batch only leaves records out.
    """

    end: int
    marks: list[Mark]
    walked: Walked | None = None
    left_out: int | None = None


class LogPlanner:
    """Plans the batches of one query for as long as it runs."""

    def __init__(
        self,
        files: StoreFiles,
        topics: ChosenTopics,
        leave_out: Callable[[Gap], None],
        *,
        broker: str | None,
        timeout_ms: int,
        clock: BlockingClock,
    ) -> None:
        self._files = files
        self._topics = topics
        # Records a gap; raises if gaps are not allowed.
        self._leave_out = leave_out
        self._broker = broker
        self._patience_s = timeout_ms / 1000
        self._clock = clock
        # A position without a record (of the next batch, or of a mark), and the time since when.
        self._missing: tuple[int, float] | None = None
        self._look_after_s = 0.0
        self._first_base: int | None = None
        self._searched: tuple[int, float, int | None] = (-1, 0.0, None)
        self.written_end: int | None = None

    def first(self) -> int:
        """Return the position of the first record, NO_LOG if there is none yet."""
        log = self._files.log_files()
        return log[0].base if log else NO_LOG

    def last(self) -> tuple[int, list[Mark]]:
        """Return the end of what is written, and a mark of the record in front of it."""
        log = self._files.log_files()
        if not log:
            return NO_LOG, []
        found = walk(log, log[-1].base, self._topics, until=NO_END)
        mark = None if found.last is None else mark_at(log, *found.last)
        return found.end, [] if mark is None else [mark]

    def check_start(self, position: int) -> None:
        """Raise ValueError with the reason unless a record begins at a position that the user gave."""
        log = self._files.log_files()
        if not log or position < log[0].base:
            return  # reading begins at the first record that retention has left
        file = file_at(log, position)
        if file is None:
            if position == log[-1].end:
                return
            raise ValueError(f"the log ends at {log[-1].end}")
        if not head_at(file, position)[1] and position != self.last()[0]:
            raise ValueError(
                f"no record begins there; the files of the log begin at "
                f"{', '.join(str(one.base) for one in log[:10])}"
            )

    def look_at_end(self, log: list[LogFile] | None = None) -> None:
        """Estimate where the log ends now."""
        log = self._files.log_files() if log is None else log
        self.written_end = written_end(log[-1]) if log else 0

    def end_of_files(self) -> int:
        """Return the end of the last file: all present records lie in front of it."""
        log = self._files.log_files()
        return log[-1].end if log else 0

    def plan(
        self,
        start: int,
        marks: list[Mark],
        *,
        max_bytes: int | None,
        max_rows: int | None,
        until: int = NO_END,
        waits: bool = False,
    ) -> Next | None:
        """Return the next batch from a position on, None if there is nothing new.

        With `waits`, return None only at the end of the log, and wait where records are missing in front of
        later ones. Raise DataLossError if the log was cut or written again in front of the position. For
        deleted or damaged records, `leave_out` may raise its own errors.
        """
        if start >= until or (not waits and self._clock.monotonic() < self._look_after_s):
            return None
        while True:
            log = self._files.log_files()
            self._warn_of_earlier_files(log)
            found = self._planned(log, start, marks, max_bytes, max_rows, until, deep=waits)
            if found is not None:
                self._missing = None
                self.look_at_end(log)
                self.written_end = max(found.end, self.written_end or 0)
                return found
            if not waits or self._missing is None:
                self._look_after_s = self._clock.monotonic() + LOOK_EVERY_S
                return None
            self._clock.sleep(_PAUSE_S)

    def walk_again(self, start: int, end: int) -> Walked:
        """Walk a batch that was planned before, and record gaps for records that the log no longer has."""
        log = self._files.log_files()
        whole = Walked(start)
        if log and start < log[0].base:
            gone = min(end, log[0].base)
            self._leave_out(Gap(None, self._broker, None, start, gone, RETENTION))
            whole.end = gone
        while whole.end < end:
            part = walk(log, whole.end, self._topics, until=end)
            whole.runs += part.runs
            whole.end = part.end
            if part.end >= end:
                break
            behind = record_behind(log, part.end + 1, end)
            behind = end if behind is None else behind
            self._leave_out(Gap(None, self._broker, None, part.end, behind, DAMAGE))
            whole.end = behind
        return whole

    # Inside

    def _planned(
        self,
        log: list[LogFile],
        start: int,
        marks: list[Mark],
        max_bytes: int | None,
        max_rows: int | None,
        until: int,
        *,
        deep: bool,
    ) -> Next | None:
        if start == NO_LOG:
            return Next(log[0].base, [], None, start) if log else None
        if not self._is_as_before(log, start, marks):
            return None
        if log and start < log[0].base:
            return self._without(start, log[0].base, marks, RETENTION)
        found = walk(log, start, self._topics, until=until, max_bytes=max_bytes, max_rows=max_rows)
        if found.end > start:
            mark = None if found.last is None else mark_at(log, *found.last)
            return Next(found.end, with_mark(marks, mark), found)
        behind = self._behind(log, start, found.stop, deep=deep)
        if behind is None:
            self._missing = None
            return None
        if not self._is_overdue(start):
            return None
        # Records that came since the last search are read.
        self._searched = (-1, 0.0, None)
        behind = self._behind(log, start, found.stop, deep=deep)
        return None if behind is None else self._without(start, behind, marks, DAMAGE)

    def _warn_of_earlier_files(self, log: list[LogFile]) -> None:
        """Log that files appeared in front of the file with which the query began: nothing else shows it."""
        if not log:
            return
        base, first = log[0].base, self._first_base
        self._first_base = base
        if first is not None and base < first:
            logger.warning(
                "older files of the log have appeared: this query began behind them and does not read "
                "them; a new query does",
                store=str(self._files.root),
                position=base,
            )

    def _is_as_before(self, log: list[LogFile], start: int, marks: list[Mark]) -> bool:
        """Return whether the log still has the records that were read; False while they may come back.

        Raise DataLossError if the log has other records there, or none for longer than `timeoutMs`.
        """
        now = Seen.UNKNOWN if not marks else seen(log, marks[0])
        if now is Seen.SAME:
            return True
        end = log[-1].end if log else 0
        if now is Seen.UNKNOWN and start <= end:
            return True
        place = marks[0].position if marks else start
        if now is not Seen.OTHER and not self._is_overdue(place):
            return False
        raise self._rolled_back(log, start, marks, now)

    def _rolled_back(
        self, log: list[LogFile], start: int, marks: list[Mark], now: Seen
    ) -> DataLossError:
        root = self._files.root
        kept = next((mark for mark in marks if seen(log, mark) is Seen.SAME), None)
        first = log[0].base if log else 0
        safe = first if kept is None else kept.end
        if now is Seen.OTHER:
            what = (
                f"the record at position {marks[0].position} is not the one that the query has read there"
                f"{_stored_at(log, marks[0].position)}"
            )
        else:
            what = (
                f"the query has read up to position {start}, and the record in front of this position is "
                f"gone: the files of the log end at {log[-1].end if log else 0}, and this did not change for "
                f"{self._patience_s:.0f} s (timeoutMs)"
            )
        known = (
            f"the log is unchanged up to position {safe}"
            if kept is not None
            else "none of the records that the query remembers is there"
        )
        return DataLossError(
            f"{root}: the log was rolled back: {what}. A broker lost the end of its log, or the files are "
            f"those of another broker; {known}. Rows that the query gave with commit_log_offset from {safe} "
            "on may be of messages that no longer exist, so remove them from its output, and start the "
            f"query with a new checkpoint and startingOffsets={safe}. failOnDataLoss=false does not help "
            "here, because the missing messages are not known"
        )

    def _behind(self, log: list[LogFile], start: int, stop: Stop, *, deep: bool) -> int | None:
        """Return where reading can go on behind a place without a record; None at the end of the log."""
        files, end = log, NO_END
        if stop is not Stop.HOLE:
            file = file_at(log, start)
            if file is None:
                return None
            if not deep and not head_at(file, start)[0]:
                return None  # zeros: without a look at the rest, which may be most of a gigabyte
            files, end = [file], file.end
        place, when_s, found = self._searched
        now_s = self._clock.monotonic()
        if place != start or now_s >= when_s + SEARCH_EVERY_S:
            found = record_behind(files, start + 1, end)
            self._searched = (start, now_s, found)
        return found

    def _is_overdue(self, position: int) -> bool:
        """Return whether there has been no record at a position for the whole of `timeoutMs`."""
        now_s = self._clock.monotonic()
        if self._missing is None or self._missing[0] != position:
            self._missing = (position, now_s)
        return now_s - self._missing[1] >= self._patience_s

    def _without(self, start: int, end: int, marks: list[Mark], cause: str) -> Next:
        self._leave_out(Gap(None, self._broker, None, start, end, cause))
        return Next(end, marks, None, start)


def refused_gap(root: str, gap: Gap) -> DataLossError | StoreCorruptError:
    """Return the error for a gap where gaps are not allowed."""
    remedy = (
        "failOnDataLoss=false with gapLog=<directory> goes on behind it and lists what is left out"
    )
    if gap.cause == RETENTION:
        return DataLossError(
            f"{root}: {gap} are gone: files of the log were deleted before the query had read them. Keep "
            f"files for longer, or start the query with a new checkpoint; {remedy}"
        )
    return StoreCorruptError(
        f"{root}: no record is at position {gap.start} of the commit log, and the next one begins at "
        f"{gap.end}; {gap} would be left out. If the store is a copy, copy it again; `cometmq store check` "
        f"reports details; {remedy}"
    )


def _stored_at(log: list[LogFile], position: int) -> str:
    file = file_at(log, position)
    if file is None:
        return ""
    with Path(file.path).open("rb") as found:
        found.seek(position - file.base + STORE_TIMESTAMP_AT)
        data = found.read(_STORED.size)
    if len(data) < _STORED.size:
        return ""
    (stored_ms,) = _STORED.unpack(data)
    if not 0 <= stored_ms < STORE_TIME_LIMIT_MS:
        return ""
    when = datetime.fromtimestamp(stored_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"; the one there now was stored at {when}"

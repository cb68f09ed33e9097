"""Keep the causes why the store refuses messages, and count refusals (Java: RunningFlags,
isOSPageCacheBusy).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Final, NoReturn

from cometmq.errors import StoreBusyError, StoreError


class RefusalCause(Enum):
    """Why a message is refused. If several causes are in force, the first one here is reported.

    The values name the counters.
    """

    CLOSED = "store_closed"
    DISK_FAILED = "disk_failed"
    DISK_FULL = "disk_full"
    PAGE_CACHE_BUSY = "page_cache_busy"
    # The following refuse a single message and are never in force.
    NO_SPACE = "no_space"
    NO_BUFFER = "no_buffer"
    NO_DESCRIPTOR = "no_descriptor"
    MESSAGE_ILLEGAL = "message_illegal"


class Refusals:
    """Keeps the causes in force, each with the error that it raises, and a counter for every cause.

    `changed` is called with the error to raise from now on, or None. Any thread may set and lift
    causes; the counters belong to the store's thread.
    """

    def __init__(self, changed: Callable[[StoreError | None], None]) -> None:
        self._changed = changed
        self._in_force: dict[RefusalCause, StoreError] = {}
        self._lock = threading.Lock()
        self.counts: Final = dict.fromkeys(RefusalCause, 0)

    @property
    def current(self) -> StoreError | None:
        """The error that an append would raise now, or None."""
        return next(
            (self._in_force[cause] for cause in RefusalCause if cause in self._in_force), None
        )

    def is_set(self, cause: RefusalCause) -> bool:
        return cause in self._in_force

    def error(self, cause: RefusalCause) -> StoreError | None:
        """Return the error that a cause raises; None if the cause is not in force."""
        return self._in_force.get(cause)

    def set(self, cause: RefusalCause, error: StoreError) -> None:
        """Refuse with `error` until the cause is lifted."""
        with self._lock:
            self._in_force[cause] = error
            self._changed(self.current)

    def lift(self, cause: RefusalCause) -> None:
        """Stop refusing for this cause; nothing happens if it is not in force."""
        with self._lock:
            if self._in_force.pop(cause, None) is not None:
                self._changed(self.current)

    def count(self, cause: RefusalCause) -> None:
        self.counts[cause] += 1

    def refuse(self) -> NoReturn:
        """Count a refusal and raise the error of the first cause in force; there must be one."""
        cause = next(cause for cause in RefusalCause if cause in self._in_force)
        self.count(cause)
        # The same error object is raised many times, and each raise would lengthen its traceback.
        raise self._in_force[cause].with_traceback(None)


class PageCacheWatch:
    """Refuses messages while the page cache is behind: after an append that was blocked for longer
    than `limit_ms`, and while a flush takes longer than that.

    Java checks how long another thread has held the append lock. Here one thread appends, so while
    an append is blocked nothing can refuse the messages behind it. When it ends, messages are
    refused for `limit_ms`, which lets the disk catch up.
    """

    def __init__(self, limit_ms: int, monotonic: Callable[[], float], refusals: Refusals) -> None:
        self.configure(limit_ms)
        self._monotonic = monotonic
        self._refusals = refusals
        self._until = 0.0
        self._flush_began: float | None = None
        # By duration in ms: how many appends had to wait and took so long, 1 ms or longer.
        self.slow_appends: dict[int, int] = {}
        self.longest_append_ms = 0

    def configure(self, limit_ms: int) -> None:
        """Obey another limit from now on."""
        self._limit_s = limit_ms / 1000
        self._limit_ms = limit_ms

    def append_took(self, began: float) -> None:
        """Note the end of an append that began at `began` and had to wait for pages or a file."""
        now = self._monotonic()
        took_ms = int((now - began) * 1000)
        if took_ms > 0:
            self.slow_appends[took_ms] = self.slow_appends.get(took_ms, 0) + 1
            self.longest_append_ms = max(self.longest_append_ms, took_ms)
        if now - began > self._limit_s:
            self._until = now + self._limit_s
            self._refuse("an append", now - began)

    def flush_begins(self) -> None:
        """Note that a flush begins. For the flushing thread."""
        self._flush_began = self._monotonic()

    def flush_ends(self) -> None:
        """Note that the flush has ended. For the flushing thread."""
        self._flush_began = None

    @property
    def is_idle(self) -> bool:
        """Whether no flush is under way and no append was blocked lately."""
        return self._flush_began is None and not self._refusals.is_set(RefusalCause.PAGE_CACHE_BUSY)

    def look(self) -> None:
        """Refuse or admit messages by the state of now; call this a few times per `limit_ms`."""
        began = self._flush_began
        now = self._monotonic()
        if began is not None and now - began > self._limit_s:
            self._refuse("a flush", now - began)
        elif now >= self._until:
            self._refusals.lift(RefusalCause.PAGE_CACHE_BUSY)

    def _refuse(self, what: str, blocked_s: float) -> None:
        # Java's clients and operators look for the text's beginning.
        self._refusals.set(
            RefusalCause.PAGE_CACHE_BUSY,
            StoreBusyError(
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: {what} has been "
                f"blocked for {blocked_s * 1000:.0f} ms, the limit is "
                f"osPageCacheBusyTimeOutMills={self._limit_ms}; "
                f"send again in {self._limit_ms} ms"
            ),
        )

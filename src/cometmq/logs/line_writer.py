"""Write lines to standard output or standard error without ever failing or delaying the program.

A terminal may be closed, a pipe's reader may be gone or asleep, a disk may be full. None of that is
a reason for a server to stop serving, so a separate thread writes the lines. It counts the lines that
it cannot write, and logs the number as soon as it can write again.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TextIO

from cometmq.forks import PROCESS

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
# In virtual time a thread of this name may start, since nothing waits for its work.
THREAD_NAME: Final = "write-lines"
# How often the thread calls `more` and tries to report lost lines.
_RETRY_S: Final = 1.0
# How long a process that ends waits for its lines to be written.
_DRAIN_S: Final = 1.0
_PER_WRITE_BYTES: Final = 64 * 1024

# Renders the line that says how many lines were lost, and why.
DescribeLost = Callable[[int, str], str]
# Returns more texts to write: called about once a second, and with True when the process ends. It returns
# None if there are no more texts before the next line.
More = Callable[[bool], list[str] | None]


class Target(Protocol):
    """Is asked before each write for the descriptor that takes it. For the writer's thread."""

    def descriptor(self, size: int = 0) -> int:
        """Return the descriptor for the next `size` bytes. Raises OSError."""
        ...


class LineWriter:
    """Writes texts to a file descriptor, or to the one that a target names before each write.

    The texts keep their order. For any thread; only `drain` blocks.

    At most `max_waiting_bytes` wait to be written; lines beyond that are lost. The writer's thread
    calls `more` for further texts, and `drain` does so in its caller's thread.
    """

    def __init__(
        self,
        target: int | Target,
        *,
        describe_lost: DescribeLost | None = None,
        more: More | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._target = target
        self._describe_lost = describe_lost
        self._more = more
        self._max_waiting_bytes = max_waiting_bytes
        self._begin()
        atexit.register(self.drain)

    def _begin(self) -> None:
        """Start with empty state. A forked child does so too: it has no writer thread, and the lock
        may be held for ever.
        """
        self._generation = PROCESS.generation
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._writing = False
        self._lost = 0
        self._reason = ""
        self._line_is_cut = False
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Have `text`, one or more whole lines, written soon."""
        data = _encoded(text)
        if self._generation != PROCESS.generation:
            self._begin()
        with self._changed:
            if self._waiting_bytes + len(data) > self._max_waiting_bytes:
                self._lose(1, "nobody reads them")
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        # When the system gives no thread, the lines wait, and the next line tries again.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def flush(self) -> None:
        """Do nothing: no writer of a line waits for it. See `drain`."""

    def drain(self, limit_s: float = _DRAIN_S) -> bool:
        """Wait until all lines are written, `limit_s` seconds at most; return whether they are."""
        if self._generation != PROCESS.generation or self._thread is None:
            return True
        more = self._more(True) if self._more is not None else None
        for text in more or ():
            self.write(text)
        deadline = time.monotonic() + limit_s
        with self._changed:
            while self._waiting or self._writing:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def _work(self) -> None:
        more: list[str] | None = []
        while True:
            with self._changed:
                if not self._waiting:
                    is_over = more is None and not self._lost
                    self._changed.wait(None if is_over else _RETRY_S)
                batch = self._take()
                lost, reason = self._lost, self._reason
                self._writing = True
            more = self._more(False) if self._more is not None else None
            batch += map(_encoded, more or ())
            written = not batch and not lost
            if written:
                with suppress(OSError):  # the next line reports it
                    self._descriptor()
            else:
                head = (
                    self._describe_lost(lost, reason)
                    if lost and self._describe_lost is not None
                    else ""
                )
                written = self._write_all(_encoded(head), batch)
            with self._changed:
                self._writing = False
                if written:
                    self._lost -= lost
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._waiting and size < _PER_WRITE_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1])
        self._waiting_bytes -= size
        return batch

    def _write_all(self, head: bytes, batch: list[bytes]) -> bool:
        """Return whether all could be written; if not, count the lines of `batch` as lost."""
        # A line that a full disk has cut must not run into the next line.
        text = b"".join((b"\n" * self._line_is_cut, head, *batch))
        data = memoryview(text)
        try:
            fd = self._descriptor(len(data))
            while data:
                try:
                    data = data[os.write(fd, data) :]
                except BlockingIOError:  # another process made the shared descriptor non-blocking
                    poll = select.poll()
                    poll.register(fd, select.POLLOUT)
                    poll.poll(_RETRY_S * 1000)
        except OSError as error:
            self._line_is_cut = self._line_is_cut or len(data) < len(text)
            with self._changed:
                self._lose(len(batch), error.strerror or str(error))
            return False
        self._line_is_cut = False
        return True

    def _descriptor(self, size: int = 0) -> int:
        return self._target if isinstance(self._target, int) else self._target.descriptor(size)

    def _lose(self, count: int, reason: str) -> None:
        self._lost += count
        self._reason = reason


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


class GuardedStream:
    """Writes each line to the caller's stream at once and ignores its OSError and ValueError."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()


def line_writer(
    stream: TextIO | None, *, describe_lost: DescribeLost | None = None, more: More | None = None
) -> LineWriter | GuardedStream:
    """Return a writer to the stream's file descriptor, or to the stream itself if it has none."""
    try:
        fd = None if stream is None else stream.fileno()
    except (OSError, ValueError):
        fd = None
    return (
        GuardedStream(stream)
        if fd is None
        else LineWriter(fd, describe_lost=describe_lost, more=more)
    )


def reserve_standard_descriptors() -> None:
    """Open /dev/null in place of standard streams that the parent closed. Call this first of all.

    Otherwise the next file or socket could get the number 2, and with it everything that C
    libraries, a crashing interpreter and we write to standard error.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The system gives out the lowest free number, which is `fd`.
            os.open(os.devnull, os.O_RDWR)

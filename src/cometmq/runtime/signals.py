"""Stop a process cleanly at SIGTERM or SIGINT or when its parent is gone, at once at a second signal."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_STDIN: Final = 0
_READ_BYTES: Final = 64 * 1024


@contextmanager
def stop_event() -> Iterator[asyncio.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets, within the context.

    The second signal ends the process without cleaning up, with the exit status that a shell would
    report (128 + the signal's number). Contexts may overlap: the first signal sets all their events. For
    the main thread, inside a running loop.
    """
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    if not _stops:
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, _on_signal, number)
    _stops.append(event.set)
    try:
        yield event
    finally:
        _stops.remove(event.set)
        if not _stops:
            _stopping.clear()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)


@contextmanager
def blocking_stop() -> Iterator[Callable[[], None]]:
    """Yield a function that waits for the first SIGTERM or SIGINT, like `stop_event`, for a main thread
    without a loop.
    """
    # A signal's handler may interrupt the wait anywhere: an Event's lock might be held at that moment, while
    # this queue may be used inside of itself.
    came: queue.SimpleQueue[None] = queue.SimpleQueue()
    stop = functools.partial(came.put, None)
    before = {
        number: signal.signal(number, lambda received, _frame: _on_signal(signal.Signals(received)))
        for number in STOP_SIGNALS
    }
    _stops.append(stop)
    try:
        yield came.get
    finally:
        _stops.remove(stop)
        if not _stops:
            _stopping.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


# Called at the first signal, and the signal that came.
_stops: Final[list[Callable[[], None]]] = []
_stopping: Final[list[signal.Signals]] = []


def _on_signal(number: signal.Signals) -> None:
    if _stopping:
        os._exit(128 + number)
    _stopping.append(number)
    for stop in _stops:
        stop()
    log.info("stopping; once more to force it", signal=number.name)


@contextmanager
def set_by_end_of_input(event: asyncio.Event) -> Iterator[None]:
    """Set `event` when standard input ends, within the context, if it is a pipe or a socket.

    The program at the other end then has closed it or is gone. A terminal, a file and /dev/null say
    nothing about who has started the process, so they are left alone. Bytes that arrive are thrown away.
    """
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:  # it was closed before the start
        mode = 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        try:
            ended = not os.read(_STDIN, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(_STDIN)
            event.set()
            log.info("stopping: standard input has ended")

    loop.add_reader(_STDIN, on_input)
    try:
        yield
    finally:
        loop.remove_reader(_STDIN)

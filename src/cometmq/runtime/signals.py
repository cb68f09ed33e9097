"""Stops a process cleanly at SIGTERM or SIGINT or when its parent is gone, at once at a second signal."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Iterator
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
    report (128 + the signal's number). For the main thread, inside a running loop.
    """
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if event.is_set():
            os._exit(128 + number)
        event.set()
        log.info("stopping; once more to force it", signal=number.name)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield event
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


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

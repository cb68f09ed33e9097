"""Stops a process cleanly at SIGTERM or SIGINT, and at once when a second one comes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

log = structlog.get_logger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


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

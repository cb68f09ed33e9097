"""Undo what a test, and the clients in it, do to the log lines of their process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def as_before() -> Iterator[None]:
    """Have structlog as it was before the block, and no handler of ours in `logging` after it."""
    before = structlog.get_config() if structlog.is_configured() else None
    try:
        yield
    finally:
        if before is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**before)
        root = logging.getLogger()
        # The handlers of pytest stay: they change between the beginning and the end of a test.
        for handler in root.handlers[:]:
            if type(handler).__module__.startswith("cometmq."):
                root.removeHandler(handler)
                logging.captureWarnings(capture=False)

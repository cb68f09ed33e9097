"""Sends a client's log lines through `logging`, unless the application configures structlog."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

import structlog

_render: Final = structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True)
# Passed on to `logging` as they are: the application decides there how a traceback is written.
_FOR_LOGGING: Final = ("exc_info", "stack_info", "stacklevel")


def use_standard_logging() -> None:
    """Send CometMQ's lines through `logging`, unless the application configured structlog.

    structlog's own default prints every line to standard output, debug lines too, which a library
    must not do. With this function `logging.getLogger("cometmq")` governs level and destination,
    and an application that configures nothing sees warnings on standard error.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _for_logging,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _for_logging(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments for `logging`'s method: one line of text, and an exception as such."""
    kept = {key: event.pop(key) for key in _FOR_LOGGING if key in event}
    return (str(_render(logger, method, event)),), kept

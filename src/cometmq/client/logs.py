"""Where a client's log lines go in an application that says nothing about it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

import structlog

_render: Final = structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True)
# What `logging` makes of these is the application's choice: a traceback has lines of its own there.
_FOR_LOGGING: Final = ("exc_info", "stack_info", "stacklevel")


def use_standard_logging() -> None:
    """Send our lines through the `logging` module, unless the application configured structlog.

    structlog's own default prints every line to standard output, debug lines too, which is no way
    for a library to behave. So `logging.getLogger("cometmq")` governs level and destination, and an
    application that does nothing sees warnings on standard error.
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
    """The arguments of `logging`'s method: one line of text, and an exception as an exception."""
    kept = {key: event.pop(key) for key in _FOR_LOGGING if key in event}
    return (str(_render(logger, method, event)),), kept

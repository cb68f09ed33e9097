"""Where a client's log lines go in an application that says nothing about it."""

from __future__ import annotations

import structlog


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
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )

"""Sends a client's log lines through `logging`, unless the application configures structlog."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from cometmq.logs.loggers import configure_when_imported

# Passed on to `logging` as they are: the application decides there how a traceback is written.
_FOR_LOGGING: Final = ("exc_info", "stack_info", "stacklevel")


def use_standard_logging() -> None:
    """Send CometMQ's lines through `logging`, unless the application configured structlog.

    structlog's own default prints every line to standard output, debug lines too, which a library
    must not do. With this function `logging.getLogger("cometmq")` governs level and destination,
    and an application that configures nothing sees warnings on standard error.
    """
    configure_when_imported(_configure)


def _configure() -> None:
    import structlog

    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _ForLogging(),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


class _ForLogging:
    """Makes the arguments for `logging`'s method: one line of text, and an exception as such."""

    def __init__(self) -> None:
        from structlog.processors import KeyValueRenderer

        self._render = KeyValueRenderer(key_order=["event"], drop_missing=True)

    def __call__(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> tuple[tuple[str], dict[str, Any]]:
        kept = {key: event.pop(key) for key in _FOR_LOGGING if key in event}
        return (str(self._render(logger, method, event)),), kept

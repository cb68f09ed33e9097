"""Logs of a process: lines for people on a terminal, one JSON object a line otherwise."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

from cometmq.errors import ConfigError

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(
    level: str = "info", *, json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Send every log line of at least `level` to `stream` (default: standard error).

    `json` chooses the form; None takes JSON unless the stream is a terminal. Raises ConfigError
    for a level that is none of `LEVELS`. A library's user who configures structlog does not need
    this: loggers work without.
    """
    threshold = LEVELS.get(level.lower())
    if threshold is None:
        raise ConfigError(f"the log level {level} is none of {', '.join(LEVELS)}")
    target = sys.stderr if stream is None else stream
    as_json = not target.isatty() if json is None else json
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=as_json),
    ]
    if as_json:
        processors += [
            structlog.processors.format_exc_info,
            _in_reading_order,
            structlog.processors.JSONRenderer(),
        ]
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=target.isatty()))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )


def _in_reading_order(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """When, how bad and what before everything else."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return head | dict(event)

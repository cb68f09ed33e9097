"""Sets up a process's log: lines for people on a terminal, one JSON object a line otherwise.

Logging a line neither raises nor waits (`line_writer`), and the lines of one kind are limited
(`log_limits`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

from cometmq.errors import ConfigError
from cometmq.runtime.line_writer import GuardedStream, line_writer
from cometmq.runtime.log_limits import LineLimiter

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(
    level: str = "info", *, json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Send every log line of at least `level` to `stream`, or without one to standard error.

    The caller's thread writes to `stream`; a thread of its own writes to standard error. `json`
    chooses the form; None takes JSON unless the stream is a terminal. Raises ConfigError for a
    level that is none of `LEVELS`. Programs that use CometMQ as a library and configure structlog
    themselves do not need this: loggers work without it.
    """
    threshold = LEVELS.get(level.lower())
    if threshold is None:
        raise ConfigError(f"the log level {level} is none of {', '.join(LEVELS)}")
    target = sys.stderr if stream is None else stream
    on_terminal = target is not None and target.isatty()
    render = _rendering(json=not on_terminal if json is None else json, colors=on_terminal)
    limiter = LineLimiter()

    def line(event: dict[str, Any]) -> str:
        rendered: Any = {"level": "warning", **event}
        for processor in render:
            rendered = processor(None, "warning", rendered)
        return f"{rendered}\n"

    output: Any = GuardedStream(stream)  # the caller looks after it: a live display, a test
    if stream is None:
        output = line_writer(
            target,
            tell_lost=lambda count, why: line(
                {"event": "log lines lost", "lines": count, "why": why}
            ),
            more=lambda ending: [line(event) for event in limiter.summaries(at_once=ending)],
        )
    processors = [limiter, structlog.processors.add_log_level, *render]
    wrapper_class = structlog.make_filtering_bound_logger(threshold)
    loggers = structlog.WriteLoggerFactory(file=output)
    if stream is None:
        _take_over_standard_logging(
            structlog.wrap_logger(loggers(), processors=processors, wrapper_class=wrapper_class)
        )
    structlog.configure(
        processors=processors,
        wrapper_class=wrapper_class,
        logger_factory=loggers,
        cache_logger_on_first_use=False,
    )


def _rendering(*, json: bool, colors: bool) -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=json)
    if not json:
        return [
            structlog.contextvars.merge_contextvars,
            stamp,
            structlog.dev.ConsoleRenderer(colors=colors),
        ]
    return [
        structlog.contextvars.merge_contextvars,
        stamp,
        structlog.processors.format_exc_info,
        _in_reading_order,
        structlog.processors.JSONRenderer(),
    ]


def _in_reading_order(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Put time, level and event before all other keys."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return head | dict(event)


class _OtherLibraries(logging.Handler):
    """Bring what other libraries log (asyncio's faults, say) to the same place as our lines.

    `logger` is one of its own, because whoever configures structlog anew may send its lines to
    `logging`: each line would come back here, longer every time, until the memory is full.
    """

    def __init__(self, logger: Any) -> None:
        super().__init__(logging.WARNING)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )


def _take_over_standard_logging(logger: Any) -> None:
    # Without a handler `logging` writes to standard error itself, and may wait there for ever.
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _OtherLibraries):
            root.removeHandler(handler)
    root.addHandler(_OtherLibraries(logger))
    logging.captureWarnings(capture=True)

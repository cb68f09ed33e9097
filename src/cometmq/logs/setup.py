"""Set up a process's log: lines for people on a terminal, one JSON object a line otherwise.

Logging a line neither raises nor waits (`line_writer`), the lines of one kind are limited
(`limits`), and secrets are hidden.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from cometmq.errors import ConfigError
from cometmq.logs.file import LogFile
from cometmq.logs.levels import LevelFilter, parse_levels
from cometmq.logs.limits import LineLimiter
from cometmq.logs.line_writer import GuardedStream, LineWriter, line_writer
from cometmq.logs.plain import plain
from cometmq.logs.secret_names import names_secret

if TYPE_CHECKING:
    from structlog.typing import ExcInfo

FORMATS: Final = ("text", "json")
MAX_LOGGED_CHARACTERS: Final = 8_000
_SECRET: Final = re.compile(r"pass(word|wd|phrase)|secret|credential|token|signature", re.I)
_HIDDEN: Final = "(hidden)"


def configure_logging(
    level: str = "info",
    *,
    json: bool | None = None,
    stream: TextIO | None = None,
    file: LogFile | None = None,
) -> None:
    """Send every log line of at least `level` to `file`, `stream` or else to standard error.

    The caller's thread writes to `stream`; a thread of its own writes to a file or to standard
    error. `json` chooses the form; None takes JSON unless the stream is a terminal. Raises
    ConfigError for a level that `parse_levels` does not take. Programs that use CometMQ as a
    library and configure structlog themselves do not need this: loggers work without it.
    """
    levels = parse_levels(level)
    target = sys.stderr if stream is None else stream
    on_terminal = file is None and target is not None and target.isatty()
    render = _rendering(json=not on_terminal if json is None else json, colors=on_terminal)
    limiter = LineLimiter()

    def line(event: dict[str, Any]) -> str:
        rendered: Any = {"level": "warning", "logger": __name__, **event}
        for processor in render:
            rendered = processor(None, "warning", rendered)
        return f"{rendered}\n"

    def lost(count: int, why: str) -> str:
        return line({"event": "log lines lost", "lines": count, "why": why})

    def more(ending: bool) -> list[str] | None:
        events = limiter.summaries(at_once=ending)
        if file is not None and (why := file.new_fault()):
            fault = {"event": "full log file cannot be renamed", "path": str(file.path)}
            events.append({**fault, "why": why})
        if not events and file is None and limiter.is_empty:
            return None
        return [line(event) for event in events]

    output: Any = GuardedStream(stream)  # the caller looks after it: a live display, a test
    if file is not None:
        output = LineWriter(file, describe_lost=lost, more=more)
    elif stream is None:
        output = line_writer(target, describe_lost=lost, more=more)
    processors = [
        LevelFilter(levels),
        limiter,  # before our own loggers are named: their lines are told apart by their texts
        _name_logger,
        structlog.processors.add_log_level,
        _hide_secrets,
        *render,
    ]
    loggers = _Loggers(output)
    if stream is None:
        _take_over_standard_logging(
            structlog.wrap_logger(
                loggers(),
                processors=processors,
                wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            )
        )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(levels.least()),
        logger_factory=loggers,
        # A cached logger would not hear of a new level.
        cache_logger_on_first_use=False,
    )


def change_log_level(level: str) -> None:
    """Take lines of at least `level` from now on. Raises ConfigError; see `check_log_is_ours`."""
    levels = parse_levels(level)
    check_log_is_ours()
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, LevelFilter):
            processor.levels = levels
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(levels.least()))


def check_log_is_ours() -> None:
    """Raise ConfigError unless `configure_logging` set up the log of this process."""
    processors = structlog.get_config()["processors"]
    if not any(isinstance(processor, LevelFilter) for processor in processors):
        raise ConfigError(
            "logLevel cannot be changed here: the program that runs this server set up its log "
            "itself, so change the level there"
        )


class _Loggers:
    """Makes loggers that know their names, as the factory of structlog."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def __call__(self, name: str = "", *_: Any) -> _Logger:
        return _Logger(name, self._output)


class _Logger(structlog.WriteLogger):
    def __init__(self, name: str, output: Any) -> None:
        super().__init__(output)
        self.name = name


def _name_logger(
    logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    if "logger" not in event and logger.name:
        event["logger"] = logger.name
    return event


def _hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Hide values under names of secrets, also in tables: changed configuration keys, say. A value
    of a table that itself names a secret is hidden, too (Java: initAuthenticationUser).
    """
    for key, value in event.items():
        if names_secret(key):
            event[key] = _HIDDEN
        elif isinstance(value, dict):
            event[key] = {
                name: _HIDDEN if names_secret(str(name)) or _SECRET.search(str(inner)) else inner
                for name, inner in value.items()
            }
    return event


def _rendering(*, json: bool, colors: bool) -> list[Any]:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=json)
    if not json:
        return [
            structlog.contextvars.merge_contextvars,
            stamp,
            _cut_long_texts,
            _escape_event,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_write_traceback),
        ]
    return [
        structlog.contextvars.merge_contextvars,
        stamp,
        _cut_long_texts,
        structlog.processors.format_exc_info,
        _in_reading_order,
        structlog.processors.JSONRenderer(),
    ]


def _cut_long_texts(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Cut texts that clients may have written: a header has room for a megabyte of characters that
    have to be escaped, which would hold up a server's loop for a tenth of a second.
    """
    for key, value in event.items():
        if isinstance(value, str) and len(value) > MAX_LOGGED_CHARACTERS:
            event[key] = f"{value[:MAX_LOGGED_CHARACTERS]}… ({len(value)} characters)"
    return event


def _escape_event(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape the text of a line as the renderer escapes its values: clients may have written it."""
    event["event"] = plain(str(event.get("event", "")))
    return event


def _write_traceback(sio: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback without local variables, where passwords are, and without colours.

    The text of an error can be a client's, so what moves a cursor is escaped.
    """
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    sio.write(plain(text.getvalue(), keep="\n"))


def _in_reading_order(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Put time, level, logger and event before all other keys."""
    keys = ("timestamp", "level", "logger", "event")
    head = {key: event.pop(key) for key in keys if key in event}
    return head | dict(event)


class _OtherLibraries(logging.Handler):
    """Bring what other libraries log (asyncio's faults, say) to the same place as our lines.

    `logger` is one of its own, because a program that configures structlog again may send its lines to
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

"""Give modules their loggers: to structlog where it is configured, else to `logging`.

Servers and the pipelines configure structlog (`logs.setup`), and so may applications. A client needs no
structlog: without it `logging.getLogger("cometmq")` governs level and destination, and an application that
configures nothing sees warnings on standard error.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

# These fields go to `logging` as they are: the application decides there how a traceback is written.
_FOR_LOGGING: Final = ("exc_info", "stack_info")
# The frames from `logging` back to the module that wrote the line.
_STACK_LEVEL: Final = 3


class Logger:
    """Writes lines of a module: a constant text, and fields by name. For any thread."""

    __slots__ = ("_name", "_standard")

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard: logging.Logger | None = None

    def debug(self, event: str, /, **fields: Any) -> None:
        self._write("debug", logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._write("info", logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write("warning", logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write("error", logging.ERROR, event, fields)

    def critical(self, event: str, /, **fields: Any) -> None:
        self._write("critical", logging.CRITICAL, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """Write an error with the traceback of the exception that is being handled."""
        self._write("error", logging.ERROR, event, {"exc_info": True, **fields})

    def _write(self, method: str, level: int, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger(self._name), method)(event, **fields)
            return
        if self._standard is None:
            self._standard = logging.getLogger(self._name)
        if not self._standard.isEnabledFor(level):
            return
        passed = {key: fields.pop(key) for key in _FOR_LOGGING if key in fields}
        text = " ".join(f"{key}={value!r}" for key, value in {"event": event, **fields}.items())
        self._standard.log(level, "%s", text, stacklevel=_STACK_LEVEL, **passed)


def get_logger(name: str) -> Logger:
    """Return the logger of the module `name`."""
    return Logger(name)

"""Keep what servers log as faults of their own while they are fuzzed, and drop all other lines."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final, NoReturn

import structlog

from cometmq.errors import CometMQError

_MOST: Final = 100
# Errors that reached an outermost edge and are none of ours.
faults: Final[list[BaseException]] = []


def watch() -> None:
    """Have all log lines come here."""
    structlog.configure(processors=[_look], cache_logger_on_first_use=False)


def _look(_logger: object, _method: str, line: MutableMapping[str, Any]) -> NoReturn:
    error = line.get("exc_info")
    if error is True:
        error = _current()
    is_fault = isinstance(error, BaseException) and not isinstance(error, CometMQError | OSError)
    if is_fault and len(faults) < _MOST:
        faults.append(error)  # type: ignore[arg-type]  # mypy does not see the isinstance
    raise structlog.DropEvent


def _current() -> BaseException | None:
    import sys

    return sys.exception()


def raise_fault() -> None:
    """Raise the first fault that was logged, if there is one."""
    if faults:
        first = faults[0]
        faults.clear()
        raise first

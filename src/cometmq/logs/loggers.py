"""Gives modules their loggers, and imports structlog when the first line is written.

That import takes a tenth of a second, and most commands of `cometmq admin` write no line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_configurations: list[Callable[[], None]] = []


class _Logger:
    """Stands for the logger of a module until a line is written."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        with suppress(IndexError):  # another thread may take the last one
            while _configurations:
                _configurations.pop(0)()
        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> Any:
    """Return a logger like `structlog.get_logger`, for modules that a short command imports."""
    return _Logger(name)


def configure_when_imported(configure: Callable[[], None]) -> None:
    """Call `configure` now if structlog is imported, else before the first line is written."""
    if "structlog" in sys.modules:
        configure()
    elif configure not in _configurations:
        _configurations.append(configure)

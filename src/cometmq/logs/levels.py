"""Decide which lines a log takes: a level for the whole server, and others for parts of it.

`info,cometmq.store=debug` takes lines of level `info` and above, and from the store all lines.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from cometmq.errors import ConfigError

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
# The methods of a logger whose names are no level's.
_METHODS: Final = {**LEVELS, "exception": logging.ERROR, "critical": logging.CRITICAL}
_PACKAGE: Final = Path(__file__).parents[1]
# More parts than anybody looks at; each line of the log is compared with them.
_MOST_PARTS: Final = 50


class Levels(NamedTuple):
    """Holds the least level of the server's lines, and those of loggers that have another one."""

    whole: int
    parts: Mapping[str, int]

    def of(self, logger: str) -> int:
        """Return the least level of a logger's lines: the one of the longest part that holds it."""
        parts = self.parts
        while logger and parts:
            if (level := parts.get(logger)) is not None:
                return level
            logger = logger.rpartition(".")[0]
        return self.whole

    def least(self) -> int:
        return min(self.whole, *self.parts.values()) if self.parts else self.whole


def parse_levels(text: str) -> Levels:
    """Read `LEVEL[,LOGGER=LEVEL...]`. Raises ConfigError that names what does not fit."""
    whole, *rest = (part.strip() for part in text.split(","))
    if len(rest) > _MOST_PARTS:
        raise ConfigError(f"the log level names {len(rest)} loggers, the limit is {_MOST_PARTS}")
    parts = {}
    for part in rest:
        logger, equals, level = (piece.strip() for piece in part.partition("="))
        if not equals or not _exists(logger):
            raise ConfigError(
                f"the log level {part!r:.200} does not fit: after the server's level come parts of "
                "CometMQ with theirs, as in info,cometmq.store=debug"
            )
        parts[logger] = _level(level)
    return Levels(_level(whole), parts)


def check_levels(key: str, text: str) -> None:
    """Raise ConfigError that names the configuration key unless `text` can be read."""
    try:
        parse_levels(text)
    except ConfigError as error:
        raise ConfigError(f"{key}={text:.200} does not fit: {error}") from error


def _level(text: str) -> int:
    level = LEVELS.get(text.lower())
    if level is None:
        raise ConfigError(f"the log level {text:.200} is none of {', '.join(LEVELS)}")
    return level


def _exists(logger: str) -> bool:
    """Return whether CometMQ has a package or module of this name, compiled or not."""
    package, *names = logger.split(".")
    if package != "cometmq" or not all(name.isidentifier() for name in names):
        return False
    place = _PACKAGE.joinpath(*names)
    return place.is_dir() or any(place.parent.glob(f"{place.name}.*"))


class LevelFilter:
    """A structlog processor that drops the lines below their logger's level.

    structlog itself, with `make_filtering_bound_logger`, drops lines below the least of all levels.
    """

    def __init__(self, levels: Levels) -> None:
        self.levels = levels

    def __call__(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if _METHODS.get(method, logging.ERROR) < self.levels.of(event.get("logger") or logger.name):
            raise structlog.DropEvent
        return event

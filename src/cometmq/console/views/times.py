"""Read the times that people type into forms.

A browser sends a date with its own distance to UTC on that day (`zoned` in console.js), so an
address means the same time for every reader.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from cometmq.console.refusals import Refused
from cometmq.errors import IllegalArgumentError

_AGO: Final = re.compile(r"(\d{1,6})\s*(s|min|m|h|d)", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_MS: Final = 2**63 - 1
_MAX_TEXT: Final = 60


def time_ms(text: str, now_ms: int) -> int:
    """Return a time in ms since the epoch.

    `text` is a date, or a date and time of day (in UTC unless it names its zone, as 2026-11-23
    14:30:00+08:00), a number of ms since the epoch, a time span before now, such as 90s, 15m, 2h or
    3d, or `now`. Raises IllegalArgumentError for anything else.
    """
    given = text.strip()[:_MAX_TEXT]
    if given == "now":
        return now_ms
    if given.isascii() and given.isdigit() and int(given) <= _MAX_MS:
        return int(given)
    if ago := _AGO.fullmatch(given):
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        when = datetime.fromisoformat(given)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        at_ms = int(when.timestamp() * 1000)
    except (ValueError, OverflowError):
        at_ms = -1
    if at_ms < 0:
        raise IllegalArgumentError(Refused.NO_TIME(text=given))
    return at_ms

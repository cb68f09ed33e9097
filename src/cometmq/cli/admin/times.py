"""Parses the times that mqadmin's options take, in local time as mqadmin does."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

import typer

FORMAT: Final = "now|-1|MS|yyyy-MM-dd#HH:mm:ss:SSS"
# Stands for the end of every queue.
END: Final = -1

_DATE: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d)(?::(\d{3}))?")
_MAX_MS: Final = 2**63 - 1


def time_ms(text: str) -> int:
    """Return ms since the epoch; END for `-1`. Raises BadParameter for what is no time."""
    given = text.strip()
    if given == "now":
        return int(time.time() * 1000)
    if given.lstrip("-").isdecimal() and given.isascii():
        value = int(given) if len(given) < 20 else _MAX_MS + 1
        if END <= value <= _MAX_MS:
            return value
    elif (found := _DATE.fullmatch(given)) is not None:
        date, clock, millis = found.groups()
        try:
            moment = datetime.fromisoformat(f"{date}T{clock}")
            return int(moment.timestamp()) * 1000 + int(millis or 0)
        except (ValueError, OverflowError, OSError):
            pass  # there is no such day or hour
    raise typer.BadParameter(
        f"{text!r:.80} is no time; give now, -1 for the end of every queue, ms since the epoch, or "
        "local time as in 2026-11-22#08:30:00:000"
    )

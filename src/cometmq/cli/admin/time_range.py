"""Parse the times that options of `cometmq admin` take."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final

import typer

from cometmq.runtime.clock import SYSTEM_CLOCK

_METAVAR: Final = "TIME"
_MAX_MS: Final = 2**63 - 1
# mqadmin's way to write a time, and the one in which it and we print it.
_WRITTEN: Final = re.compile(r"(\d{4}-\d{2}-\d{2})[# T](\d{2}:\d{2}:\d{2})(?:[:,.](\d{1,3}))?")


def time_ms(text: str) -> int:
    """Return a time in ms since the epoch: a number of ms, a date and time of day, or `now`.

    A date is in local time. Raises BadParameter for anything else.
    """
    text = text.strip()
    if text == "now":
        return SYSTEM_CLOCK.now_ms()
    if text.isdecimal() and text.isascii() and int(text[:20]) <= _MAX_MS:
        return int(text)
    if found := _WRITTEN.fullmatch(text):
        date, clock, ms = found.groups()
        try:
            moment = datetime.fromisoformat(f"{date}T{clock}")
            return int(moment.timestamp()) * 1000 + int((ms or "0").ljust(3, "0"))
        except (ValueError, OverflowError, OSError):
            pass
    raise typer.BadParameter(
        f"{text!r:.80} is no time; give ms since the epoch, such as 1700000000000, a local time "
        "yyyy-MM-dd#HH:mm:ss:SSS, such as 2026-11-22#18:30:00:000, or now"
    )


def _time(letter: str, name: str, help_: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        letter, name, parser=time_ms, metavar=_METAVAR, help=help_
    )
    return option


_BEGIN: Final = (
    "Only messages that were stored from this time on: ms since the epoch, or "
    "yyyy-MM-dd#HH:mm:ss:SSS."
)
Begin = Annotated[int | None, _time("-b", "--beginTimestamp", _BEGIN)]
BeginS = Annotated[int | None, _time("-s", "--beginTimestamp", _BEGIN)]
_END: Final = "Only messages that were stored until this time."
End = Annotated[int | None, _time("-e", "--endTimestamp", _END)]
# queryMsgByUniqueKey has other names for these options.
StartTime = Annotated[int | None, _time("-s", "--startTime", _BEGIN)]
EndTime = Annotated[int | None, _time("-e", "--endTime", _END)]

"""Show an explanation: the answer, then its evidence and the remedy; or JSON for programs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from cometmq.admin.explain.records import Evidence, Explanation, Reason
from cometmq.cli.admin.output import as_text
from cometmq.logs.plain import plain_json
from cometmq.model.message import MessageExt
from cometmq.model.reports.finding import Severity

_STYLES: Final = {
    Severity.OK: "green",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
}
_NARROWEST: Final = 40
_MOST_FOR_FIGURES: Final = 48
# The fields of a message in JSON; a body may have megabytes.
_OF_MESSAGE: Final = (
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
    "commit_log_offset",
    "offset_msg_id",
    "unique_id",
    "store_timestamp_ms",
    "born_timestamp_ms",
    "born_host",
    "reconsume_times",
    "tags",
    "keys",
)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], object] | None]:
    """Show the present question on a terminal, and nothing anywhere else."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with console.status("asking") as status:
        yield lambda text: status.update(Text(as_text(f"{text} …")))


def print_json(explanation: Explanation) -> None:
    """Print all fields, with the answer, the causes and the status first."""
    values = {
        "answer": explanation.answer,
        "status": explanation.severity.name.lower(),
        "causes": [cause.value for cause in explanation.causes],
        **_plain(explanation),
    }
    text = json.dumps(values, indent=2, ensure_ascii=False)
    sys.stdout.write(f"{plain_json(text)}\n")


def _plain(value: Any) -> Any:
    """Turn records into JSON's types."""
    if isinstance(value, Severity):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, MessageExt):
        return {name: getattr(value, name) for name in _OF_MESSAGE}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(field) for name, field in value._asdict().items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def print_text(explanation: Explanation) -> None:
    """Print each reason, its evidence and its remedy. Nothing is cut, nor wrapped in a pipe."""
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else 0
    for number, reason in enumerate(explanation.reasons):
        if number:
            console.print()
        console.print(_reason(reason, width))
    if explanation.unasked:
        console.print(Text("\nWhat could not be asked", "bold"))
        for each in explanation.unasked:
            line = f"{each.request} of {each.address}: {each.error}"
            console.print(_wrapped(line, width, "  ", "  ", "yellow"))


def _reason(reason: Reason, width: int) -> Text:
    """Return the lines of a reason; the evidence that one answer gave stands below its source."""
    text = _wrapped(f"{reason.said}  [{reason.cause.value}]", width, "", "", "")
    text.stylize(_STYLES[reason.severity], 0, len(text) - len(reason.cause.value) - 2)
    text.stylize("dim", len(text) - len(reason.cause.value) - 2)
    figures = min(max((len(e.figure) for e in reason.evidence), default=0), _MOST_FOR_FIGURES)
    last = ""
    for evidence in reason.evidence:
        if (source := _source(evidence)) != last:
            text.append("\n").append_text(_wrapped(source, width, "  ", "    ", "dim"))
            last = source
        line = f"{evidence.figure:<{figures}}  {evidence.value}"
        indent = " " * (6 + figures)
        text.append("\n").append_text(_wrapped(line, width, "    ", indent, ""))
    if reason.remedy:
        text.append("\n").append_text(_wrapped(f"→ {reason.remedy}", width, "  ", "    ", "cyan"))
    return text


def _source(evidence: Evidence) -> str:
    at = datetime.fromtimestamp(evidence.at_ms / 1000).astimezone()
    return f"{evidence.request} at {evidence.address}, {at:%H:%M:%S}"


def _wrapped(line: str, width: int, first: str, rest: str, style: str) -> Text:
    line = as_text(line)  # clients and topics may have any name
    room = max(width, _NARROWEST) if width else sys.maxsize
    # The blanks that align figures stay as they are.
    lines = textwrap.wrap(
        line,
        room,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return Text("\n".join(lines), style)

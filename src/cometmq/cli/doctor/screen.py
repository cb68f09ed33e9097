"""Show the findings of `cometmq doctor`: lines for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.text import Text

from cometmq.logs.plain import plain, plain_json
from cometmq.model.reports.finding import Finding, Severity, alike, subjects, worst

_STYLES: Final = {
    Severity.OK: "green",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
}
_NARROWEST: Final = 40
_MOST_FOR_NAMES: Final = 34
# How many subjects of the same finding are named; JSON has each.
_MOST_SUBJECTS: Final = 3

Areas = Mapping[str, Sequence[Finding]]


def print_json(areas: Areas) -> None:
    findings = [
        {
            "area": area,
            "check": finding.check,
            "status": finding.severity.name.lower(),
            "value": finding.value,
            "limit": finding.limit,
            "remedy": finding.remedy,
        }
        for area, found in areas.items()
        for finding in found
    ]
    status = worst(finding for found in areas.values() for finding in found).name.lower()
    text = json.dumps({"status": status, "findings": findings}, indent=2, ensure_ascii=False)
    sys.stdout.write(f"{plain_json(text)}\n")


def print_table(areas: Areas) -> None:
    """Print a line for each finding, the most severe first, and the remedy below it.

    Findings that are alike share a line. Nothing else is shortened; a pipe gets no wrapped lines.
    """
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else 0
    everything = [finding for found in areas.values() for finding in found]
    shown = {area: [_as_one(group) for group in alike(found)] for area, found in areas.items()}
    checks = [finding.check for found in shown.values() for finding in found]
    names = min(max(map(len, checks), default=0), _MOST_FOR_NAMES)
    for area, found in shown.items():
        console.print(Text(plain(area), "bold"))
        for finding in found:
            console.print(_lines(finding, names, width))
        console.print()
    console.print(_summary(everything))
    if missing := _not_checked(areas):
        console.print(Text(missing, "dim"))


def _as_one(group: Sequence[Finding]) -> Finding:
    """Return one finding for several equal ones, such as for ten brokers with one fault."""
    return replace(group[0], check=subjects(group, _MOST_SUBJECTS))


def _lines(finding: Finding, names: int, width: int) -> Text:
    text = Text()
    text.append(f"  {finding.severity.name.lower():<8}", _STYLES[finding.severity])
    text.append(f"{plain(finding.check):<{names}}  ")
    indent = 12 + names
    first = True
    for part, style in _parts(finding):
        room = max(width - indent, _NARROWEST) if width else sys.maxsize
        for line in textwrap.wrap(
            plain(part), room, break_long_words=False, break_on_hyphens=False
        ):
            if (first and len(finding.check) > names and width) or not first:
                text.append(f"\n{'':<{indent}}")
            text.append(line, style)
            first = False
    return text


def _parts(finding: Finding) -> list[tuple[str, str]]:
    if finding.severity is Severity.OK:
        return [(finding.value, "")]
    limit = f" (wanted: {finding.limit})" if finding.limit else ""
    return [(f"{finding.value}{limit}", ""), (f"→ {finding.remedy}", "cyan")]


def _summary(findings: Sequence[Finding]) -> Text:
    counts = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    warnings, errors = counts[Severity.WARNING], counts[Severity.ERROR]
    if not warnings and not errors:
        return Text(f"All is well: {len(findings)} checks.", _STYLES[Severity.OK])
    said = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return Text(
        f"{' and '.join(said)} in {len(findings)} checks.",
        _STYLES[worst(findings)],
    )


def _not_checked(areas: Areas) -> str:
    """Say which options would have checked more."""
    missing = []
    if "Cluster" not in areas:
        missing.append("a cluster (-n HOST:9876)")
    if not any(area.startswith("Configuration") for area in areas):
        missing.append("a broker's configuration and disk (-c broker.conf)")
    return f"Not checked: {', '.join(missing)}." if missing else ""

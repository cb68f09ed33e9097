"""Define what a check of an installation, a machine or a cluster finds (`cometmq doctor`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad a finding is; the number is the exit status of a command that finds nothing worse."""

    OK = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """State the result of one check.

    `check` names what was looked at, `value` says what was found, `limit` what it should be, and
    `remedy` what to do. A finding that is not OK always has a remedy.
    """

    check: str
    severity: Severity
    value: str
    limit: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.severity is Severity.OK or self.remedy, f"{self.check}: no remedy"


def ok(check: str, value: str, limit: str = "") -> Finding:
    return Finding(check, Severity.OK, value, limit)


def warning(check: str, value: str, remedy: str, limit: str = "") -> Finding:
    return Finding(check, Severity.WARNING, value, limit, remedy)


def error(check: str, value: str, remedy: str, limit: str = "") -> Finding:
    return Finding(check, Severity.ERROR, value, limit, remedy)


def alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings that say the same about several things, the most severe first.

    `broker a: address` and `broker b: address` are the same check of two things.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for at in findings:
        key = (at.severity, at.check.rpartition(": ")[2], at.value, at.limit, at.remedy)
        groups.setdefault(key if ": " in at.check else (at,), []).append(at)
    return sorted(groups.values(), key=lambda group: -group[0].severity)


def subjects(group: Sequence[Finding], most: int) -> str:
    """Return the check of findings that are alike, with the first of the things in one list."""
    if len(group) == 1:
        return group[0].check
    names = [at.check.rpartition(": ")[0] for at in group]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}: {group[0].check.rpartition(': ')[2]}"


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity, OK if there are no findings."""
    return max((finding.severity for finding in findings), default=Severity.OK)

"""Define what a check of an installation, a machine or a cluster finds (`cometmq doctor`)."""

from __future__ import annotations

from collections.abc import Iterable
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


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity, OK if there are no findings."""
    return max((finding.severity for finding in findings), default=Severity.OK)

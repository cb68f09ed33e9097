"""Describe how one mqadmin command is run, and what is compared of it at our servers and at Java's.

The words in braces of the arguments are filled in for each place (see `place.Place.words`). The
arguments are those of `cometmq admin`, too.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.refused_requests import REFUSED

if TYPE_CHECKING:
    from tests.interop.mqadmin.place import Place
    from tests.interop.mqadmin.runner import Printed

Masks = tuple[tuple[str, str], ...]

# What a command says that prints nothing.
NOTHING: Final = r"\A\s*\Z"
# What differs between any two servers or any two runs.
COMMON: Final[Masks] = (
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:]\d+)?", "TIME"),
    (r"\b(20\d{12}|20\d{15}|1[6-9]\d{11})\b", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    # Ids of messages, of IPv4 and of IPv6 hosts.
    (r"(?<![0-9A-F])[0-9A-F]{32}([0-9A-F]{24})?(?![0-9A-F])", "ID"),
    (r"TPS: [0-9.]+", "TPS: RATE"),
    (r"(spentTimeMills|commitLogOffset|physicOffset)=\d+", r"\1=N"),
    (r"CommitLog Offset: +\d+", "CommitLog Offset: PLACE"),
    # Java 5.5 says where the next page of a query by key begins.
    (r"(@K@\S+@ID)@\d+", r"\1"),
    # Ours say that they are of 5.3.3.
    (r"\bV\d_\d_\d\b", "VERSION"),
    # Names that Java gives objects and functions.
    (r"@[0-9a-f]{5,8}\b|/0x[0-9a-f]+", ""),
    # The table of who subscribes of a Java broker 5.3 holds topics in place of groups. A mask before these
    # may have made the number of the line an N.
    (
        r"MessageTrack \[consumerGroup=(mqadmin-orders-[45N]|mqadmin-messages-5), .*|^See https://rocket.*",
        "",
    ),
    (r"^(DefaultCluster +)?(mqadmin-orders-[45N]) +\2\b.*", ""),
    (r"/tmp/\S+/", "DIR/"),
)


# What brokers of 4.9 do otherwise than those of 5.3, which ours follow: they store fewer properties,
# and begin with the offset 0 in a retry topic that is empty.
COMMON_4: Final[Masks] = (
    (r"\b(TRACE_ON=true|MSG_REGION=DefaultRegion|WAIT=true)(, )?", ""),
    (r", }", "}"),
    (r"(storeSize|physicSize)=\d+", r"\1=N"),
    (r"^%RETRY%mqadmin-billing-4 .*", ""),
)


@dataclass(frozen=True)
class Case:
    """One run of one command.

    Attributes:
        says: A pattern that must be in what is printed at our servers, so that two empty outputs
            do not pass for equal ones.
        lines: The release lines whose mqadmin is run so.
        only: Compare the lines alone that have this pattern, in which LINE stands for the release
            line. Servers are shared with other tests, and some commands print all topics.
        masks: Differences beside `COMMON`, each with what stands for it. both: Compare the settings
        alone (`name = value`) that both have. more: Whether our servers may say more than Java's,
        but not less. unlike: Why what is printed at Java's server is no measure; then `says` alone
        decides. unlike_in: The release lines of which that is so. file: Name of a JSON file below
        `{dir}` that the command writes; its fields are compared. changes: Whether the command
        changes what servers keep; then that is compared, too. refused: The request that our servers
        refuse; its reason must be printed, or `says` where the command keeps it to itself. stop_after_lines: After how many lines a command that
        runs forever is interrupted. local: Whether the command talks to no server, and so is run
        once. note: The table's remark on it beside the reason of a refusal.
    """

    command: str
    args: str = ""
    says: str = ""
    lines: tuple[int, ...] = (4, 5)
    only: str = ""
    masks: Masks = ()
    both: bool = False
    more: bool = False
    unlike: str = ""
    unlike_in: tuple[int, ...] = (4, 5)
    file: str = ""
    changes: bool = False
    refused: RequestCode | None = None
    stop_after_lines: int = 0
    local: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        assert self.says or self.refused is not None, f"{self.command}: what does it say?"

    def arguments(self, words: Mapping[str, str]) -> list[str]:
        """Return the arguments with the words of a place filled in."""
        return [part.format_map(words) for part in shlex.split(self.args)]

    def expected(self) -> str:
        """Return the pattern that must be in the output at our servers."""
        return self.says if self.refused is None or self.says else re.escape(REFUSED[self.refused])

    def compared(self, text: str, line: int) -> list[str]:
        """Return what is compared of an output at servers of a release line: its lines, masked,
        without blanks, in order.
        """
        masks = (*self.masks, *COMMON, *(COMMON_4 if line == 4 else ()))
        lines = []
        for row in text.splitlines():
            if re.search(self.only.replace("LINE", str(line)), row):
                masked = row
                for pattern, name in masks:
                    masked = re.sub(pattern, name, masked)
                lines.append(" ".join(masked.split()))
        return sorted(filter(None, lines))


@dataclass(frozen=True)
class Scenario:
    """Cases that run one after the other on what `prepare` left, at our servers and at Java's."""

    name: str
    cases: tuple[Case, ...]
    prepare: Callable[[Place], None] | None = None


def failures(case: Case, line: int, ours: Printed, java: Printed | None) -> Iterable[str]:
    """Say what is wrong with an output at our servers, next to that at Java's."""
    text = ours.out + ours.err
    if not re.search(case.expected(), text):
        yield f"at our servers it does not say {case.expected()!r}: {text[-1500:]}"
    if java is None or (case.unlike and line in case.unlike_in):
        return
    if case.says and not re.search(case.says, java.out + java.err):
        yield f"at Java's servers it does not say {case.says!r}: {(java.out + java.err)[-1500:]}"
    # Brokers of 4.9 answer much with the code 1 for which those of 5.3 have one of its own.
    if bool(ours.err) != bool(java.err) or (line == 5 and codes(ours.err) != codes(java.err)):
        yield f"other errors: ours {ours.err[-1500:]!r}, Java's {java.err[-1500:]!r}"
    yield from unequal(case, line, ours.out, java.out)


def codes(text: str) -> list[str]:
    """Return the response codes that the servers' refusals had."""
    return sorted(re.findall(r"CODE: (\d+)", text))


def unequal(case: Case, line: int, ours: str, java: str) -> Iterable[str]:
    """Say which of the compared lines only one of two texts has."""
    lines, measure = case.compared(ours, line), case.compared(java, line)
    if case.both:
        names = {row.split(" ")[0] for row in lines} & {row.split(" ")[0] for row in measure}
        assert len(names) > 1, (lines, measure)
        lines = [row for row in lines if row.split(" ")[0] in names]
        measure = [row for row in measure if row.split(" ")[0] in names]
    if not case.more:
        yield from (f"only at ours: {row}" for row in surplus(lines, measure))
    yield from (f"only at Java's: {row}" for row in surplus(measure, lines))


def surplus(lines: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the lines that are not among the others, each as often as it is missing there."""
    return sorted((Counter(lines) - Counter(others)).elements())


def fields(value: object, path: str = "") -> Iterable[str]:
    """Yield a line for each field of a JSON value: its path and its value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{path}[]")
    else:
        yield f"{path} = {value}"

"""List all cases, and write them as the page docs/reference/mqadmin.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.interop.mqadmin.case import NOTHING, Case, Scenario
from tests.interop.mqadmin.cases_messages import MESSAGES, OFFSETS, POPPED
from tests.interop.mqadmin.cases_metadata import GROUPS, SETTINGS, TOPICS
from tests.interop.mqadmin.cases_servers import CLIENTS, REFUSED_ON_PURPOSE, SERVERS
from tests.interop.mqadmin.cases_unknown import UNKNOWN
from tests.interop.peers import NEWEST_JAVA

from cometmq.protocol.refused_requests import REFUSED

RELEASES: Final = {4: "4.9.8", 5: NEWEST_JAVA}
SCENARIOS: Final[tuple[Scenario, ...]] = (
    *(TOPICS, GROUPS, SETTINGS, MESSAGES, OFFSETS, POPPED, CLIENTS, SERVERS),
    *(UNKNOWN, REFUSED_ON_PURPOSE),
)
# It ends neither by itself nor when it is interrupted, so it runs in a process of its own.
MONITORING: Final = Case(
    "startMonitoring",
    says=NOTHING,
    note="it runs until it is killed; its consumer joins its group",
)
HEAD: Final = f"""\
<!-- Written by scripts/mqadmin_reference.py: change tests/interop/mqadmin, then run it. -->
# mqadmin

This page shows how all commands of Apache's `mqadmin` (`rocketmq-tools` 4.9.8 and {NEWEST_JAVA}, as `MQAdminStartup` lists them)
work with CometMQ's servers. `tests/interop/test_mqadmin.py` ran each command in each way that is listed below, with our
servers and with Java's (4.9.7, the newest published broker of its line, and {NEWEST_JAVA}) that hold the same topics, groups and
messages.

*works*: with both servers the command prints the same, field by field except for addresses, times and rates, and leaves the same
topics, groups, offsets and settings; a note names any difference. *refused*: our servers refuse the request on purpose,
with the code and the remark in the note. *local*: the command reads files and asks no server. A dash: the release has
no such command.
"""


RUN_HEAD: Final = """
## Run as

The test replaced the words in braces: `{new}` by a name of its own, `{topic}` and `{group}` by a topic and a group whose
Java consumer had consumed the topic, `{id}` and `{unique}` by ids of a message, `{name}` by the broker's name.
"""


def all_cases() -> list[Case]:
    return [case for scenario in SCENARIOS for case in scenario.cases] + [MONITORING]


def commands(line: int) -> set[str]:
    """Return the commands that are run with the mqadmin of a release line."""
    return {case.command for case in all_cases() if line in case.lines}


def page() -> str:
    """Return the text of the page."""
    by_command: dict[str, list[Case]] = {}
    for case in all_cases():
        by_command.setdefault(case.command, []).append(case)
    return "\n".join([HEAD, *_verdicts(by_command), RUN_HEAD, *_runs(by_command), ""])


def _verdicts(by_command: dict[str, list[Case]]) -> Iterator[str]:
    yield f"| command | {' | '.join(RELEASES.values())} | note |"
    yield "| --- | --- | --- | --- |"
    for command, cases in sorted(by_command.items(), key=lambda item: item[0].lower()):
        cells = [_verdict([case for case in cases if line in case.lines]) for line in RELEASES]
        yield f"| `{command}` | {' | '.join(cells)} | {'; '.join(_notes(cases))} |"


def _verdict(cases: list[Case]) -> str:
    if not cases:
        return "-"
    if any(case.refused is not None for case in cases):
        return "refused"
    return "local" if all(case.local for case in cases) else "works"


def _notes(cases: list[Case]) -> list[str]:
    """Return the notes on a command, each one once."""
    notes = []
    for case in cases:
        if case.refused is not None:
            notes.append(f"{int(case.refused)}: {REFUSED[case.refused]}")
        notes += [text for text in (case.note, case.unlike) if text]
        if case.both:
            notes.append("only the keys that both servers have are compared")
        if case.more:
            notes.append("ours has all fields of Java's, and more")
        if case.stop_after_lines:
            notes.append("the test interrupts it, because it would run forever")
    return list(dict.fromkeys(notes))


def _runs(by_command: dict[str, list[Case]]) -> Iterator[str]:
    yield "| command | options | of |"
    yield "| --- | --- | --- |"
    for command, cases in sorted(by_command.items(), key=lambda item: item[0].lower()):
        for case in cases:
            # Braces that stand for themselves are doubled.
            shown = case.args.replace("{{", "{").replace("}}", "}")
            arguments = f"`{shown}`" if shown else ""
            yield f"| `{command}` | {arguments} | {', '.join(RELEASES[n] for n in case.lines)} |"

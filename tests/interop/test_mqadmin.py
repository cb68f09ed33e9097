"""Run every command of Apache's `mqadmin`, of 4.9 and of the newest, against our servers and Java's.

`tests.interop.mqadmin` lists the commands and comparisons. Java's servers are of the same line as
the mqadmin, and hold the same topics, groups and messages.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.interop.clients import JavaClient, RunningClient
from tests.interop.conftest import need
from tests.interop.mqadmin import table
from tests.interop.mqadmin.case import Case, Scenario, failures, fields, unequal
from tests.interop.mqadmin.place import (
    COUNT,
    PULL,
    QUEUES,
    SEND,
    Place,
    keeps_other,
    place,
)
from tests.interop.mqadmin.runner import MqAdmin, Printed
from tests.interop.peers import ask
from tests.waits import JVM_WAIT_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CONSUMERS, COMMIT, CONSUME_STATS = 38, 15, 208
MONITORS = "__MONITOR_CONSUMER"
RATED, RATER = "mqadmin-rated", "mqadmin-rater"


class Tools(NamedTuple):
    """One release of mqadmin, our servers, and Java's of the same line; with the watched message."""

    admin: MqAdmin
    ours: Namesrv
    java: Namesrv
    watched: dict[Namesrv, str]

    def places(self, name: str, directory: Path) -> tuple[Place, Place]:
        """Return both places with the words for the cases of one scenario."""
        made = []
        for side, namesrv in (("ours", self.ours), ("java", self.java)):
            at = place(namesrv, self.admin.line, name, directory / side)
            at.words["id"] = self.watched[namesrv]
            at.words["client"] = self._client(namesrv)
            made.append(at)
        return made[0], made[1]

    def consumer_has_queues(self) -> bool:
        """Whether the consumer at ours has its queues."""
        client = self._client(self.ours)
        printed = self.admin.run(
            self.ours, "consumerStatus", "-g", _group(self.admin.line), "-i", client
        )
        kept = re.findall(rf"^{_topic(self.admin.line)} .*droped=false", printed.out, re.MULTILINE)
        return len(kept) == QUEUES

    def _client(self, namesrv: Namesrv) -> str:
        printed = self.admin.run(namesrv, "consumerConnection", "-g", _group(self.admin.line))
        found = re.search(r"\S+@m1\S*", printed.out)
        assert found is not None, printed
        return found.group()


def _topic(line: int) -> str:
    return f"mqadmin-orders-{line}"


def _group(line: int) -> str:
    return f"mqadmin-billing-{line}"


@pytest.fixture(scope="module", params=[4, 5])
def line(request: pytest.FixtureRequest) -> int:
    """The release line of mqadmin, and of the Java servers beside ours."""
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def watched(
    line: int,
    comet_servers: Namesrv,
    java_servers: Namesrv,
    java4_servers: Namesrv,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[Namesrv, str]]:
    """A Java consumer at each name server, and the id of a message that it consumed.

    Each line has a topic and a group of its own: its scenarios reset the consumer's offsets, and Java's
    client then drops its queues and takes them again with one of its next rebalances.
    """
    need("java", "mvn", "cc")
    with ExitStack() as stack:
        consumers: list[tuple[Place, RunningClient]] = []
        ids = {}
        for namesrv in (comet_servers, {4: java4_servers, 5: java_servers}[line]):
            at = place(namesrv, line, "watched", tmp_path_factory.mktemp("watched"))
            ids[namesrv] = at.fill(_topic(line))[3]
            consumer = JavaClient(5).start(
                "consume",
                namesrv=namesrv,
                topic=_topic(line),
                group=_group(line),
                expression="*",
                expected=COUNT,
                member="m1",
                until_stdin=True,
                **{"from": "first"},
            )
            consumers.append((at, stack.enter_context(consumer)))
            at.make_topic(RATED, 1)
            _rate(at)
        for at, consumer in consumers:
            consumer.wait_messages(COUNT)
            # It commits ten seconds after its start, and then has its queues for sure. Committed for it
            # before, offsets would change again.
            eventually(partial(_has_committed, at), wait_s=JVM_WAIT_S, pause_s=0.2)
        yield ids


def _has_committed(at: Place) -> bool:
    group = at.words["group"]
    reported = at.ask(CONSUME_STATS, {"consumerGroup": group}).decode()
    known = re.findall(r'"consumerOffset":(-?\d+)', reported)
    return f"%RETRY%{group}" in reported and sorted(known) == [
        "0",
        *[str(COUNT // QUEUES)] * QUEUES,
    ]


@pytest.fixture(scope="module")
def tools(
    line: int,
    watched: dict[Namesrv, str],
    comet_servers: Namesrv,
    java_servers: Namesrv,
    java4_servers: Namesrv,
) -> Iterator[Tools]:
    with MqAdmin(line) as admin:
        made = Tools(admin, comet_servers, {4: java4_servers, 5: java_servers}[line], watched)
        eventually(made.consumer_has_queues, wait_s=JVM_WAIT_S, pause_s=0.2)
        yield made


def test_every_command_of_the_release_is_in_the_table(tools: Tools) -> None:
    assert set(tools.admin.commands()) == table.commands(tools.admin.line)


@pytest.mark.parametrize("scenario", table.SCENARIOS, ids=lambda scenario: scenario.name)
def test_commands_print_and_leave_what_they_do_at_java(
    tools: Tools, scenario: Scenario, tmp_path: Path
) -> None:
    ours, java = tools.places(scenario.name, tmp_path)
    if scenario.prepare is not None:
        scenario.prepare(ours)
        scenario.prepare(java)
    wrong = [
        f"{case.command} {case.args}: {failure}"
        for case in scenario.cases
        if tools.admin.line in case.lines
        for failure in _run(tools.admin, case, ours, java)
    ]
    assert not wrong, "\n".join(wrong)


def _run(admin: MqAdmin, case: Case, ours: Place, java: Place) -> Iterator[str]:
    """Run a case at both places, and say what differs."""

    def printed(at: Place) -> Printed:
        arguments = case.arguments(at.words)
        lines = case.stop_after_lines
        return admin.run(at.namesrv, case.command, *arguments, stop_after_lines=lines)

    at_ours = printed(ours)
    if case.refused is not None or case.local:
        yield from failures(case, admin.line, at_ours, None)
        return
    yield from failures(case, admin.line, at_ours, printed(java))
    if case.file:
        files = _exported(ours, case.file), _exported(java, case.file)
        yield from unequal(case, admin.line, *files)
    if case.changes:
        yield from keeps_other(ours, java, admin.line)


def _exported(at: Place, name: str) -> str:
    written = (Path(at.words["dir"]) / name).read_text()
    return "\n".join(fields(json.loads(written)))


def test_monitoring_joins_its_group_as_at_java(tools: Tools, tmp_path: Path) -> None:
    with MqAdmin(tools.admin.line) as admin:
        for namesrv in (tools.java, tools.ours):
            printed = admin.run(namesrv, table.MONITORING.command)
            assert not printed.out + printed.err, printed
            broker = place(namesrv, tools.admin.line, "monitoring", tmp_path).broker
            members = partial(ask, broker, CONSUMERS, {"consumerGroup": MONITORS})
            eventually(members, lambda answer: answer[0] == 0, wait_s=JVM_WAIT_S)


def test_figures_of_a_cluster_are_numbers(tools: Tools) -> None:
    printed = tools.admin.run(tools.ours, "clusterList")
    (row,) = printed.rows
    assert "null" not in printed.out
    assert row[0:3] == ["DefaultCluster", "broker-a", "0"]
    assert re.search(r"\d+\.\d\d\(0,\d+ms\)", printed.out), printed.out
    if tools.admin.line == 5:
        assert row[-1] == "true"
    (totals,) = tools.admin.run(tools.ours, "clusterList", "-m").rows
    # What came in and what went out: yesterday, and since midnight, which may have passed meanwhile.
    assert int(totals[2]) + int(totals[4]) >= COUNT
    assert int(totals[3]) + int(totals[5]) >= COUNT


def _rate(at: Place) -> None:
    """Send a message and pull it, so that it is counted."""
    at.ask(SEND, send_ext(RATED, queueId=0), b"x")
    # A Java broker puts a message into its queue a little later.
    pull = pull_ext(RATED, consumerGroup=RATER)
    eventually(partial(ask, at.broker, PULL, pull), lambda answer: answer[0] == 0)
    place_of = {"consumerGroup": RATER, "topic": RATED, "queueId": "0", "commitOffset": "1"}
    at.ask(COMMIT, place_of)


def test_rates_of_topics_and_groups_are_counted_as_at_java(tools: Tools, tmp_path: Path) -> None:
    def row(at: Place) -> list[str]:
        """Count a message more, and return what the command says of all that so far."""
        _rate(at)
        printed = tools.admin.run(at.namesrv, "statsAll", "-t", RATED)
        assert not printed.err, printed.err
        found = [row for row in printed.rows if row[:2] == [RATED, RATER]]
        return found[0] if found else []

    def counted(row: list[str]) -> bool:
        # A topic that name servers have not heard of is in no row.
        return len(row) == 7 and all(float(figure) > 0 for figure in row[3:])

    # A broker takes a sample each ten seconds, ours and Java's meanwhile.
    places = tools.places("rates", tmp_path)
    rows = eventually(
        lambda: [row(at) for at in places],
        lambda rows: all(map(counted, rows)),
        wait_s=JVM_WAIT_S,
        pause_s=1.0,
    )
    for reported in rows:
        # All are behind by what was sent but for the one that was consumed.
        assert int(reported[2]) >= 0
        assert float(reported[3]) <= int(reported[5])
        assert float(reported[4]) <= int(reported[6])

"""Define mqadmin's startMonitoring, which shows faults of consumer groups, round by round."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import typer

from cometmq.admin.groups.findings import Finding, judge
from cometmq.admin.groups.records import GroupProgress
from cometmq.admin.topics.records import stats_of
from cometmq.cli.admin.command import Run, command
from cometmq.cli.admin.commands.members import (
    FINDING,
    ask_members,
    online_or_none,
    progress_of,
)
from cometmq.cli.admin.commands.progress import groups_of
from cometmq.cli.admin.many import ask_each
from cometmq.cli.admin.output import Column, Form, Output, as_time
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.clock import SYSTEM_CLOCK

app = typer.Typer()

_UNDONE: Final = (
    Column("group", "Group"),
    Column("topic", "Topic"),
    Column("undoneMsgsTotal", "Undone"),
    Column("undoneMsgsSingleMQ", "Undone In One Queue"),
    Column("undoneMsgsDelayTimeMills", "Behind(ms)"),
)


class Undone(NamedTuple):
    """How far a group is behind in a topic: the messages in all queues, in the worst queue, and the
    time by which that queue is behind.
    """

    group: str
    topic: str
    total: int
    of_queue: int
    behind_ms: int | None


class Seen(NamedTuple):
    undone: list[Undone]
    findings: list[Finding]


@command(app, "startMonitoring")
async def start_monitoring(
    run: Run,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="S",
            min=0.1,
            help="The time between the beginnings of two rounds.",
        ),
    ] = 60.0,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="How many rounds. Default: until Ctrl-C."),
    ] = None,
) -> None:
    """Watch all consumer groups: their lag, and their faults."""
    try:
        count = 0
        while True:
            try:
                await _round(run)
            except CometMQError as error:
                if rounds == 1:
                    raise
                run.failed("round", error)  # the servers may be back in the next one
            count += 1
            if count == rounds:
                return
            run.failures = 0  # the errors of the last round count
            await asyncio.sleep(interval_s)
    except asyncio.CancelledError:
        return  # Ctrl-C ends it


async def _round(run: Run) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    groups = await groups_of(run)

    async def look(group: str) -> Seen:
        try:
            return await _look(run, group, now_ms)
        except CometMQError as error:  # the other groups can be looked at
            run.failed(f"group {group}", error)
            return Seen([], [])

    seen = await ask_each(run, "groups", groups, look)
    _print(
        run.out.form,
        {"time": now_ms, "groups": len(groups)},
        [undone for each in seen for undone in each.undone],
        [finding for each in seen for finding in each.findings],
    )


def _print(
    form: Form, head: dict[str, Any], undone: Sequence[Undone], findings: Sequence[Finding]
) -> None:
    """Print a round as a document of its own, because the rounds may never end."""
    out = Output(form)
    if form is Form.TABLE:
        groups = "1 group" if head["groups"] == 1 else f"{head['groups']} groups"
        nothing = "" if undone or findings else ", and all is consumed and well"
        sys.stdout.write(f"{as_time(head['time'])}: {groups}{nothing}\n\n")
    else:
        out.record(head, section="round")
    if form is not Form.TABLE or undone:
        out.table(_UNDONE, undone, section="undone")
    if form is not Form.TABLE or findings:
        out.table(FINDING, findings, section="findings")
    if form is Form.YAML:
        sys.stdout.write("---\n")
    if form is Form.CSV or (form is Form.TABLE and (undone or findings)):
        sys.stdout.write("\n")
    out.finish()


async def _look(run: Run, group: str, now_ms: int) -> Seen:
    try:
        progress = await progress_of(run, group)
    except RemoteError as error:
        if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return Seen([], [])  # only its retry topic is left
        raise
    undone = await _undone(run, progress)
    found = await online_or_none(run, group)
    if found is None:
        waiting = sum(each.total for each in undone)
        text = f"no member is online, and {waiting} messages wait; start one"
        if not progress.complete:
            text = f"no member is connected to a broker that answers, and {waiting} messages wait there"
        return Seen(undone, [Finding(group, None, text)] if waiting else [])
    members = await ask_members(run, found)
    findings = [
        Finding(group, client_id, f"did not report about itself: {error}")
        for client_id, error in members.errors.items()
    ]
    return Seen(undone, findings + judge(group, members.reports, now_ms))


async def _undone(run: Run, progress: GroupProgress) -> list[Undone]:
    found = []
    for topic in sorted({at.queue.topic for at in progress.queues}):
        queues = [at for at in progress.queues if at.queue.topic == topic and (at.lag or 0) > 0]
        if not queues:
            continue
        newest = await _newest(run, topic)
        behind = [
            newest[at.queue] - at.last_consumed_ms
            for at in queues
            if at.last_consumed_ms is not None and newest.get(at.queue, 0) > 0
        ]
        found.append(
            Undone(
                progress.group,
                topic,
                sum(at.lag or 0 for at in queues),
                max(at.lag or 0 for at in queues),
                max(0, *behind) if behind else None,
            )
        )
    return found


async def _newest(run: Run, topic: str) -> dict[MessageQueue, int]:
    """Return when the newest message of each queue was stored."""
    stats = await run.reached(run.admin.topics.stats(topic), partial(stats_of, topic))
    return {at.queue: at.last_stored_ms for at in stats.queues}

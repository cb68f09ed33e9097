"""Define `cometmq store check|dump|stats|repair|slice|explain|rejoin`, tools for a store whose broker is down.

They work on stores of the Java broker, too; `explain` also works while the broker runs. The exit
status is 0 if all is well, 1 if something is damaged, 2 if the directory cannot be used.
"""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.forms import Form, Output
from cometmq.cli.help import Command, Group
from cometmq.cli.store.options import CommitLogDirectory, Directory, Settings, config_of
from cometmq.cli.store.rejoin import rejoin

if TYPE_CHECKING:
    from cometmq.protocol.messages.record import StoredRecord
    from cometmq.store.offline.store import Damage

app = typer.Typer(
    cls=Group,
    help="Look into a store directory, check it, repair it. The broker must not run.",
    no_args_is_help=True,
)


class DumpForm(Enum):
    JSON = "json"


QueueId = Annotated[int | None, typer.Option("-i", "--queueId", min=0)]
BeginTime = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--beginTime",
        help="First time of storing: ms, or 2026-03-01T12:00:00 (local).",
    ),
]
EndTime = Annotated[
    str | None,
    typer.Option("-e", "--endTime", help="Time to stop before."),
]


@app.command("check", cls=Command)
def check(
    directory: Directory,
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    output: Output = Form.TABLE,
) -> None:
    """Check every record, every unit of every queue, every index entry. Changes nothing."""
    from cometmq.cli.store import screen
    from cometmq.store.offline.repair import check as check_store

    config = config_of(directory, settings, commit_log)
    with screen.progress() as progress:
        store, report = check_store(config, progress=progress)
    if output is Form.JSON:
        screen.print_json(screen.report_json(store, report))
    else:
        screen.print_report(store, report)
    if not report.is_sound:
        raise typer.Exit(1)


@app.command("stats", cls=Command)
def stats(
    directory: Directory,
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    output: Output = Form.TABLE,
    queues: Annotated[bool, typer.Option("--queues", help="A line for each queue.")] = False,
) -> None:
    """Count messages, bytes and tags by topic and queue."""
    from cometmq.cli.store import screen
    from cometmq.store.offline.stats import collect
    from cometmq.store.offline.store import open_offline

    with (
        open_offline(config_of(directory, settings, commit_log)) as store,
        screen.progress() as progress,
    ):
        found = collect(store, progress("commit log"))
    if output is Form.JSON:
        screen.print_json(screen.stats_json(found))
    else:
        screen.print_stats(found, with_queues=queues)


@app.command("dump", cls=Command)
def dump(
    directory: Directory,
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic")] = None,
    queue_id: QueueId = None,
    first_offset: Annotated[
        int, typer.Option("--from-offset", help="First queue offset.", min=0)
    ] = 0,
    end_offset: Annotated[
        int | None,
        typer.Option("--to-offset", help="Queue offset to stop before."),
    ] = None,
    begin: BeginTime = None,
    end: EndTime = None,
    key: Annotated[
        str | None,
        typer.Option("-k", "--key", help="One of KEYS, or the unique id."),
    ] = None,
    limit: Annotated[int, typer.Option("-l", "--limit", help="0 for all.", min=0)] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Bodies as stored, compressed ones too.")
    ] = False,
    _output: Annotated[
        DumpForm, typer.Option("-o", "--output", help="How to print: a JSON object on each line.")
    ] = DumpForm.JSON,
) -> None:
    """Print messages as JSON, one a line, in the order of the log. Damaged ones are left out."""
    from itertools import islice

    from cometmq.cli.store import screen
    from cometmq.store.offline.dump import Filter
    from cometmq.store.offline.dump import dump as dump_store
    from cometmq.store.offline.store import open_offline

    wanted = Filter(
        topic=topic,
        queue_id=queue_id,
        first_offset=first_offset,
        end_offset=end_offset,
        begin_ms=0 if begin is None else screen.time_ms("--beginTime", begin),
        end_ms=None if end is None else screen.time_ms("--endTime", end),
        key=key,
    )
    damages: list[Damage] = []
    # On a terminal, a bar would run through the messages.
    quiet = sys.stdout.isatty()
    with (
        open_offline(config_of(directory, settings, commit_log)) as store,
        screen.progress(quiet=quiet) as progress,
    ):
        messages = dump_store(
            store,
            wanted,
            decode_body=_stored_body if raw else _original_body,
            on_damage=damages.append,
            progress=progress("commit log"),
        )
        for message in islice(messages, limit or None):
            screen.print_line(message)
    for damage in damages:
        typer.echo(
            f"cometmq: {damage.path} at {damage.position}: {damage.reason}; left out", err=True
        )
    if damages:
        raise typer.Exit(1)


@app.command("repair", cls=Command)
def repair(
    directory: Directory,
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    output: Output = Form.TABLE,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the changes; without it, only say what would be done."),
    ] = False,
) -> None:
    """Remove damaged parts, keep the rest, rebuild queues and index from the log."""
    from datetime import UTC, datetime

    from cometmq.cli.store import screen
    from cometmq.logs.setup import configure_logging
    from cometmq.runtime.clock import SYSTEM_CLOCK
    from cometmq.store.offline import repair as tool

    # The rebuilding starts a store, whose log lines would repeat what the screen shows.
    configure_logging("error")
    config = config_of(directory, settings, commit_log)
    with screen.progress() as progress:
        store, report = tool.check(config, progress=progress)
        plan = tool.plan_repair(store, report)
        if write and not plan.is_empty:
            now = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
            stamp = now.strftime("%Y%m%d%H%M%S")
            tool.repair(store, plan, clock=SYSTEM_CLOCK, stamp=stamp, progress=progress)
            store, report = tool.check(store.config, progress=progress)
    done = write and not plan.is_empty
    if output is Form.JSON:
        screen.print_json(screen.repair_json(store, report, plan, done=done))
    else:
        screen.print_repair(store, report, plan, done=done)
    if not report.is_sound:
        raise typer.Exit(1)


@app.command("slice", cls=Command)
def slice_(
    directory: Directory,
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A directory that is new or empty."),
    ],
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    output: Output = Form.TABLE,
    first_offset: Annotated[
        int, typer.Option("--from", help="First offset in the commit log.", min=0)
    ] = 0,
    end_offset: Annotated[
        int | None,
        typer.Option("--to", help="Offset in the commit log to stop before."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--topic",
            help="From the first to the last message of a topic, with all others in between.",
        ),
    ] = None,
    queue_id: QueueId = None,
    begin: BeginTime = None,
    end: EndTime = None,
) -> None:
    """Copy a part of the log with its queues, index and settings, for a broker or a simulation."""
    from cometmq.cli.store import screen
    from cometmq.logs.setup import configure_logging
    from cometmq.runtime.clock import SYSTEM_CLOCK
    from cometmq.store.offline.slice import Selection, make_slice
    from cometmq.store.offline.store import open_offline

    # Queues and index are built by a store, whose log lines would stand between the lines here.
    configure_logging("error")
    selection = Selection(
        first_offset=first_offset,
        end_offset=end_offset,
        topic=topic,
        queue_id=queue_id,
        begin_ms=None if begin is None else screen.time_ms("--beginTime", begin),
        end_ms=None if end is None else screen.time_ms("--endTime", end),
    )
    with (
        open_offline(config_of(directory, settings, commit_log)) as store,
        screen.progress() as progress,
    ):
        made = make_slice(store, target, selection, clock=SYSTEM_CLOCK, progress=progress)
    if output is Form.JSON:
        screen.print_json(screen.slice_json(made))
    else:
        screen.print_slice(made)


@app.command("explain", cls=Command)
def explain(
    directory: Directory,
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    output: Output = Form.TABLE,
    every: Annotated[bool, typer.Option("--all", help="All files, not the next 20.")] = False,
) -> None:
    """Say which file of the commit log is deleted next, when and why. The broker may run."""
    from cometmq.cli.store import screen
    from cometmq.cli.store.consumer_offsets import committed_offsets
    from cometmq.runtime.clock import SYSTEM_CLOCK
    from cometmq.store.offline.marks import offline_hold
    from cometmq.store.offline.store import open_offline
    from cometmq.store.retention.cleaner import plan_for

    with open_offline(config_of(directory, settings, commit_log), lock=False) as store:
        hold = offline_hold(store, committed_offsets(store))
        plan = plan_for(store.log_files, store.config, store.disk, SYSTEM_CLOCK.now_ms(), hold=hold)
    if output is Form.JSON:
        screen.print_json(screen.plan_json(plan, store))
    else:
        screen.print_plan(plan, store, limit=None if every else 20)


def _stored_body(record: StoredRecord) -> bytes:
    return record.body


def _original_body(record: StoredRecord) -> bytes:
    from cometmq.protocol.messages.compression import decompress

    return decompress(record.body, record.sys_flag, max_length=256 * 1024 * 1024, limit="256 MiB")


app.command("rejoin", cls=Command)(rejoin)

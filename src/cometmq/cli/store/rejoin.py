"""Define `cometmq store rejoin`, which mends the store of a slave whose log has diverged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cometmq.cli import connection
from cometmq.cli.connection import Connection, Security
from cometmq.cli.forms import Form, Output
from cometmq.cli.spread import spread
from cometmq.cli.store.options import CommitLogDirectory, Directory, Settings, config_of

if TYPE_CHECKING:
    from cometmq.replication.divergence import Common
    from cometmq.store.offline.rejoin import OwnLog, RejoinPlan
    from cometmq.store.offline.store import Progress


_Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="HOST:PORT",
        help="The broker port of the master whose log counts, Java's or ours.",
    ),
]
_Write = Annotated[
    bool,
    typer.Option("--write", help="Write the changes; without it, only say what would be done."),
]
_Everything = Annotated[
    bool,
    typer.Option("--all", help="Also cut off a whole log, if the master has none of its records."),
]


@spread
def rejoin(
    directory: Directory,
    *,
    master: _Master,
    settings: Settings = None,
    commit_log: CommitLogDirectory = None,
    output: Output = Form.TABLE,
    write: _Write = False,
    everything: _Everything = False,
    timeout_ms: connection.TimeoutMs = 5_000,
    security: Security,
) -> None:
    """Cut off the end of this log that the master's log does not have, so that a slave can go on.

    Asks the master for some records of this log, and finds the last one that both have. The records
    after it go to a directory beside the commit log, which `cometmq store dump` shows. The exit
    status is 1 if a change is needed and was not made.
    """
    from cometmq.cli.store import screen
    from cometmq.logs.setup import configure_logging
    from cometmq.runtime.clock import SYSTEM_CLOCK
    from cometmq.runtime.loop import run
    from cometmq.store.offline import rejoin as tool
    from cometmq.store.offline.store import open_offline

    # The rebuilding starts a store, whose log lines would repeat what the screen shows.
    configure_logging("error")
    given = security.connection(None, timeout_ms)
    config = config_of(directory, settings, commit_log)
    with screen.progress() as progress:
        with open_offline(config) as store:
            log = tool.OwnLog(store)
            common = run(_compare(log, master, given, progress("records of the master")))
            plan = tool.plan_rejoin(store, log, common.offset, whole=common.whole)
        # A master may have removed the records that this log has; otherwise it may be a wrong one.
        is_foreign = plan.common < 0 and not plan.is_empty and common.master.begin < plan.own_end
        done = write and not plan.is_empty and (everything or not is_foreign)
        if done:
            tool.rejoin(plan, store.disk, clock=SYSTEM_CLOCK, master=master, progress=progress)
    if output is Form.JSON:
        screen.print_json(_json(plan, common, done=done))
    else:
        _print(plan, common, master, done=done, is_foreign=is_foreign)
    if not (done or plan.is_empty):
        raise typer.Exit(1)


async def _compare(
    log: OwnLog, master: str, given: Connection, progress: Progress | None
) -> Common:
    from cometmq.remoting.client import RemotingClient
    from cometmq.replication.divergence import MasterLog, find_common
    from cometmq.tls.contexts import tls_of

    timeout_s = given.timeout_ms / 1000
    remoting = RemotingClient(
        connect_timeout_s=timeout_s, credentials=given.credentials, tls=tls_of(given.tls)
    )
    try:
        theirs = MasterLog(remoting, master, timeout_s=timeout_s)
        return await find_common(log, theirs, progress or (lambda _done, _total: None))
    finally:
        await remoting.close()


def _json(plan: RejoinPlan, common: Common, *, done: bool) -> dict[str, Any]:
    return {
        "lastCommonRecord": plan.common,
        "from": plan.cut,
        "to": plan.own_end,
        "bytes": plan.cut_bytes,
        "records": plan.record_count,
        "keptIn": None if plan.is_empty else str(plan.kept),
        "stateFiles": [path.name for path in plan.states],
        "masterBegins": common.master.begin,
        "masterEnds": common.master.end,
        "done": done,
    }


def _print(plan: RejoinPlan, common: Common, master: str, *, done: bool, is_foreign: bool) -> None:
    root = plan.config.store_path_root_dir
    typer.echo(f"The log of {master} reaches from {common.master.begin} to {common.master.end}.")
    if plan.is_empty:
        typer.echo(f"{root} ends at {plan.own_end} and has nothing else: it needs no mending.")
        return
    if plan.common < 0:
        typer.echo("It has none of the records that this log has.")
    else:
        typer.echo(f"The last record that both logs have is at {plan.common}.")
    count = "" if plan.record_count is None else f"{plan.record_count} records, "
    typer.echo(
        f"{'Cut off' if done else 'To be cut off'}: {count}{plan.cut_bytes} bytes, from {plan.cut} to "
        f"{plan.own_end}"
    )
    typer.echo(f"{'They are' if done else 'They would be'} in {plan.kept}")
    for path in plan.states:
        typer.echo(f"So {'is' if done else 'would be'} {path.name}, which lists them")
    if done:
        typer.echo(f"To see their messages: cometmq store dump {plan.kept}")
        return
    if is_foreign:
        typer.echo(
            f"That is the whole log. If {master} is another broker's master, or has lost its log, do "
            "not do it: this store may be the only copy, and its broker can be the master."
        )
    typer.echo(
        f"Nothing was changed. To do it: cometmq store rejoin {root} --master {master} --write"
        + (" --all" if is_foreign else "")
    )

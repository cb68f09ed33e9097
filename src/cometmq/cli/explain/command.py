"""Define `cometmq explain group|message|write|disk|restart`: questions with evidence and remedies.

Changes nothing. The exit status is 0 if nothing is wrong, 1 if something is or could not be asked, 2
if something given does not fit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli import connection as c
from cometmq.cli.forms import Form, Output
from cometmq.cli.help import Command, Group
from cometmq.cli.spread import spread
from cometmq.errors import ConfigError, RemoteError, RouteNotFoundError

if TYPE_CHECKING:
    from cometmq.admin.client import AdminClient
    from cometmq.admin.explain.inquiry import Step
    from cometmq.admin.explain.records import Explanation

_TIMEOUT_MS = 5_000
_DEADLINE_S = 30.0

app = typer.Typer(
    cls=Group,
    help="Say why a group is behind, a message not delivered or a write refused, and what comes next.",
    no_args_is_help=True,
)


Deadline = Annotated[
    float,
    typer.Option(
        "--deadline",
        metavar="SECONDS",
        help="How long all answers may take together; missing answers are listed.",
        min=0.1,
        max=3600,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option("-c", "--cluster", metavar="NAME", help="Ask this cluster only."),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--broker",
        metavar="NAME|HOST:PORT",
        help="Ask this broker only.",
    ),
]


@dataclass(frozen=True)
class Question:
    """Holds the options that all questions have."""

    namesrv_addr: c.NamesrvAddr = None
    deadline_s: Deadline = _DEADLINE_S
    output: Output = Form.TABLE


Ask = Callable[["AdminClient", float, "Step | None"], Awaitable["Explanation"]]


@app.callback()
@spread
def connect(
    context: typer.Context,
    *,
    namesrv_addr: c.NamesrvAddr = None,
    timeout_ms: c.TimeoutMs = _TIMEOUT_MS,
    security: c.Security,
) -> None:
    """Say why a group is behind, a message not delivered or a write refused, and what comes next.

    Changes nothing. The exit status is 0 if nothing is wrong, 1 if something is or could not be
    asked, 2 if something given does not fit.
    """
    context.obj = (security, namesrv_addr, timeout_ms)


@app.command("group", cls=Command)
@spread
def group(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="A consumer group.")],
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", help="Look at this topic only."),
    ] = None,
    cluster: Cluster = None,
    question: Question,
) -> None:
    """Say why a group is behind: its members, listeners, queues, offsets, filters and permissions."""

    def ask(admin: AdminClient, deadline: float, step: Step | None) -> Awaitable[Explanation]:
        return admin.explain.group(name, topic, cluster=cluster, deadline_s=deadline, on_step=step)

    _explain(context, ask, question)


@app.command("message", cls=Command)
@spread
def message(
    context: typer.Context,
    *,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="An offset id, or with --topic a unique id.")
    ],
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="The message's topic.")] = None,
    group_name: Annotated[
        str | None,
        typer.Option("-g", "--group", help="Ask for this group only."),
    ] = None,
    question: Question,
) -> None:
    """Follow a message: stored, indexed, filtered, pulled by whom, retried, dead-lettered, deleted."""

    def ask(admin: AdminClient, deadline: float, step: Step | None) -> Awaitable[Explanation]:
        return admin.explain.message(
            message_id, topic, group=group_name, deadline_s=deadline, on_step=step
        )

    _explain(context, ask, question)


@app.command("write", cls=Command)
@spread
def write(
    context: typer.Context,
    *,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic that messages are sent to.")
    ],
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            metavar="BYTES",
            help="The length of the body that was refused.",
            min=1,
        ),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    question: Question,
) -> None:
    """Say why brokers refuse messages of a topic, or why producers do not choose them."""

    def ask(admin: AdminClient, deadline: float, step: Step | None) -> Awaitable[Explanation]:
        return admin.explain.write(
            topic, size=size, cluster=cluster, broker=broker, deadline_s=deadline, on_step=step
        )

    _explain(context, ask, question)


@app.command("disk", cls=Command)
@spread
def disk(
    context: typer.Context,
    *,
    cluster: Cluster = None,
    broker: Broker = None,
    question: Question,
) -> None:
    """Say which file of the commit log each broker deletes next, when and why."""

    def ask(admin: AdminClient, deadline: float, step: Step | None) -> Awaitable[Explanation]:
        return admin.explain.disk(cluster=cluster, broker=broker, deadline_s=deadline, on_step=step)

    _explain(context, ask, question)


@app.command("restart", cls=Command)
@spread
def restart(
    context: typer.Context,
    *,
    cluster: Cluster = None,
    broker: Broker = None,
    question: Question,
) -> None:
    """Say what the restart of each broker would cost: log to read, queues, clients that wait."""

    def ask(admin: AdminClient, deadline: float, step: Step | None) -> Awaitable[Explanation]:
        return admin.explain.restart(
            cluster=cluster, broker=broker, deadline_s=deadline, on_step=step
        )

    _explain(context, ask, question)


def _explain(
    context: typer.Context,
    ask: Ask,
    question: Question,
) -> None:
    """Connect, ask, show the answer and end with its exit status."""
    from cometmq.cli.explain import screen
    from cometmq.runtime.loop import run

    security, general_addr, timeout_ms = context.obj
    connection = security.connection(question.namesrv_addr or general_addr, timeout_ms)
    with screen.progress(quiet=question.output is Form.JSON) as step:
        explanation = run(_asked(connection, ask, question.deadline_s, step))
    if question.output is Form.JSON:
        screen.print_json(explanation)
    else:
        screen.print_text(explanation)
    raise typer.Exit(1 if explanation.severity else 0)


async def _asked(
    connection: c.Connection, ask: Ask, deadline_s: float, step: Step | None
) -> Explanation:
    from cometmq.cli.admin.remedies import in_commands
    from cometmq.protocol.codes import ResponseCode

    async with connection.admin() as admin:
        try:
            return await ask(admin, deadline_s, step)
        except RouteNotFoundError as error:
            raise ConfigError(in_commands(str(error))) from error
        except RemoteError as error:
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise ConfigError(in_commands(str(error))) from error
            raise

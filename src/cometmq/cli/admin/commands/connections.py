"""Define mqadmin's commands that show the connected clients."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.admin.groups.producers import joined
from cometmq.admin.groups.records import Connection
from cometmq.cli.admin.command import Broker, Run, command
from cometmq.cli.admin.commands.members import online
from cometmq.cli.admin.output import Column, as_time

app = typer.Typer()

_CLIENTS = (
    Column("clientId", "ClientId"),
    Column("clientAddr", "ClientAddr"),
    Column("language", "Language"),
    Column("version", "Version"),
)


def version_name(version: str) -> str:
    """Return a release as mqadmin names it: V5_3_3."""
    known = version[:1].isdigit()
    return f"V{version}".replace(".", "_").replace("-", "_") if known else version


def _row(client: Connection) -> tuple[str, ...]:
    return client.client_id, client.address, client.language, version_name(client.version)


@command(app, "consumerConnection")
async def consumer_connection(
    run: Run,
    group: Annotated[
        str, typer.Option("-g", "--consumerGroup", metavar="NAME", help="The consumer group.")
    ],
    broker: Broker = None,
) -> None:
    """Show the members of a consumer group, and what they subscribe to."""
    members = await online(run, group, broker)
    run.out.table(_CLIENTS, map(_row, members.clients), section="connections")
    run.out.table(
        (
            Column("topic", "Topic"),
            Column("subExpression", "SubExpression"),
            Column("expressionType", "ExpressionType"),
        ),
        [(data.topic, data.sub_string, data.expression_type) for data in members.subscriptions],
        section="subscription",
    )
    run.out.record(
        {
            "consumeType": members.consume_type,
            "messageModel": members.message_model,
            "consumeFromWhere": members.consume_from_where,
        },
        section="group",
    )


@command(app, "producerConnection")
async def producer_connection(
    run: Run,
    group: Annotated[
        str, typer.Option("-g", "--producerGroup", metavar="NAME", help="The producer group.")
    ],
    topic: Annotated[
        str, typer.Option("-t", "--topic", metavar="NAME", help="A topic that it sends to.")
    ],
) -> None:
    """Show the members of a producer group at the brokers of a topic."""
    clients = await run.reached(run.admin.producers.connections(group, topic), joined)
    run.out.table(_CLIENTS, map(_row, clients))


@command(app, "producer")
async def producer(
    run: Run,
    broker: Annotated[str, typer.Option("-b", "--broker", metavar="HOST:PORT", help="The broker.")],
) -> None:
    """Show the producers that are connected to a broker."""
    found = await run.admin.producers.of_brokers(broker=broker)
    run.out.table(
        (
            Column("producerGroup", "ProducerGroup"),
            *_CLIENTS,
            Column("lastUpdateTimestamp", "LastUpdate", as_time),
        ),
        [
            (group, *_row(client), client.last_seen_ms)
            for groups in found.values()
            for group, clients in groups.items()
            for client in clients
        ],
    )

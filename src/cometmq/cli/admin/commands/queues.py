"""Define mqadmin's command that looks into consume queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import Run, command
from cometmq.cli.admin.output import Column
from cometmq.errors import RouteNotFoundError

if TYPE_CHECKING:
    from cometmq.model.route import TopicRouteData

app = typer.Typer()

_UNITS: Final = (
    Column("index", "Index"),
    Column("physicOffset", "PhysicOffset"),
    Column("physicSize", "PhysicSize"),
    Column("tagsCode", "TagsCode"),
    Column("extendDataJson", "ExtendDataJson"),
    Column("bitMap", "BitMap"),
    Column("eval", "Eval"),
    Column("msg", "Msg"),
)


@command(app, "queryCq")
async def query_queue(
    run: Run,
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic.")],
    queue_id: Annotated[int, typer.Option("-q", "--queue", min=0, help="The queue.")],
    index: Annotated[int, typer.Option("-i", "--index", min=0, help="The offset to begin at.")],
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="How many units.")] = 10,
    broker: Annotated[
        str | None,
        typer.Option(
            "-b",
            "--broker",
            metavar="HOST:PORT",
            help="The broker, by its address or name. Default: the topic's first.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--consumer",
            help="Also say what this group selects, if it is online.",
        ),
    ] = None,
) -> None:
    """Show units of a consume queue: the places of its messages in the commit log."""
    from cometmq.model.queue import MessageQueue

    route = await run.admin.topics.route(topic)
    queue = MessageQueue(topic, _broker_name(route, topic, broker), queue_id)
    found = await run.admin.messages.units(queue, index, count=count, group=group)
    if not found.min_offset <= index < found.max_offset:
        has = (
            "has no units"
            if found.min_offset >= found.max_offset
            else f"has the units {found.min_offset} to {found.max_offset - 1}"
        )
        run.failed(f"index {index}", f"queue {queue_id} of {queue.broker_name} {has}")
    ends: dict[str, object] = {
        "brokerName": queue.broker_name,
        "max": found.max_offset,
        "min": found.min_offset,
    }
    if found.subscription is not None:
        data = found.subscription
        ends["subscription"] = data.sub_string
        ends["expressionType"] = data.expression_type
        ends["tags"] = list(data.tags_set)
    if found.filter not in (None, "null"):
        ends["filter"] = found.filter
    run.out.record(ends, section="queue")
    run.out.table(
        _UNITS,
        [
            (
                index + place,
                unit.physic_offset,
                unit.physic_size,
                unit.tags_code,
                unit.extend_data_json,
                unit.bit_map,
                unit.eval,
                unit.msg,
            )
            for place, unit in enumerate(found.units)
        ],
        section="units",
    )


def _broker_name(route: TopicRouteData, topic: str, broker: str | None) -> str:
    """Return the name of the chosen broker, if it has the topic."""
    if not route.broker_datas:
        raise RouteNotFoundError(f"no broker of topic {topic} is online; see topicRoute")
    if broker is None:
        return min(data.broker_name for data in route.broker_datas)
    for data in route.broker_datas:
        if broker == data.broker_name or broker in data.broker_addrs.values():
            return data.broker_name
    known = ", ".join(
        f"{data.broker_name} ({', '.join(data.broker_addrs.values())})"
        for data in route.broker_datas
    )
    raise RouteNotFoundError(f"topic {topic} has no broker {broker!r:.80}; it has {known}")

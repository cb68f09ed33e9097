"""Define mqadmin's commands for topics."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import (
    TRUTH,
    Broker,
    Cluster,
    Run,
    Topic,
    command,
    exactly_one,
    truth,
)
from cometmq.cli.admin.output import Column, Form, as_time
from cometmq.errors import ConfigError, RouteNotFoundError

if TYPE_CHECKING:
    from cometmq.model.topic import TopicConfig

app = typer.Typer()

# Java: TopicSysFlag.
_UNIT: Final = 1
_HAS_UNIT_SUB: Final = 2
_LEFT_OUT: Final = ("%RETRY%", "%DLQ%")

Permission = Annotated[
    int,
    typer.Option(
        "-p", "--perm", help="The sum of 4 to read, 2 to write, 1 to be the model of new topics."
    ),
]


@command(app, "updateTopic", changes=True)
async def update_topic(
    run: Run,
    topic: Topic,
    broker: Broker = None,
    cluster: Cluster = None,
    read_queues: Annotated[
        int, typer.Option("-r", "--readQueueNums", help="How many queues are read.")
    ] = 8,
    write_queues: Annotated[
        int, typer.Option("-w", "--writeQueueNums", help="How many queues are written.")
    ] = 8,
    permission: Permission = 6,
    order: Annotated[
        bool,
        typer.Option(
            "-o", "--order", metavar=TRUTH, parser=truth, help="Keep its order on brokers."
        ),
    ] = False,
    unit: Annotated[
        bool,
        typer.Option(
            "-u", "--unit", metavar=TRUTH, parser=truth, help="Whether the topic belongs to a unit."
        ),
    ] = False,
    has_unit_sub: Annotated[
        bool,
        typer.Option(
            "-s",
            "--hasUnitSub",
            metavar=TRUTH,
            parser=truth,
            help="Whether other units subscribe to it.",
        ),
    ] = False,
    attributes: Annotated[
        str | None,
        typer.Option(
            "-a",
            "--attributes",
            metavar="+KEY=VALUE,-KEY",
            help="Attributes to set and to remove: +message.type=FIFO.",
        ),
    ] = None,
) -> None:
    """Make a topic at the masters of a cluster or at one broker, or set one that exists."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    added, removed = _attributes(attributes or "")
    servers = await run.masters(cluster, broker)
    text = f"set topic {topic} to {read_queues} read queues, {write_queues} write queues, "
    text += f"permission {permission}"

    async def make() -> None:
        await run.admin.topics.create(
            topic,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            order=order,
            attributes=added,
            system_flag=unit * _UNIT + has_unit_sub * _HAS_UNIT_SUB,
            cluster=cluster,
            broker=broker,
        )
        if removed:
            await run.admin.topics.update(
                topic, remove_attributes=removed, cluster=cluster, broker=broker
            )

    await run.change(text, servers, make)


@command(app, "updateTopicList", changes=True)
async def update_topic_list(
    run: Run,
    file: Annotated[
        Path,
        typer.Option(
            "-f", "--filename", metavar="FILE", help="A JSON list of configurations of topics."
        ),
    ],
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Make or set the topics of a file, all in one request to each broker."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    configs = _configs(file)
    await run.change(
        f"set topics {', '.join(config.topic_name for config in configs)}",
        await run.masters(cluster, broker),
        lambda: run.admin.topics.create_many(configs, cluster=cluster, broker=broker),
    )


@command(app, "deleteTopic", changes=True)
async def delete_topic(
    run: Run,
    topic: Topic,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="The cluster.")],
) -> None:
    """Delete a topic with its messages at the masters and the name servers."""
    await run.change(
        f"delete topic {topic}",
        await run.masters(cluster),
        lambda: run.admin.topics.delete(topic, cluster=cluster),
        destroys=True,
    )


@command(app, "updateTopicPerm", changes=True)
async def update_topic_permission(
    run: Run,
    topic: Topic,
    permission: Permission,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Change who may use a topic, and leave everything else as each broker has it."""
    exactly_one(brokerAddr=broker, clusterName=cluster)
    await run.change(
        f"set the permission of topic {topic} to {permission}",
        await run.masters(cluster, broker),
        lambda: run.admin.topics.update(
            topic, permission=permission, cluster=cluster, broker=broker
        ),
    )


@command(app, "topicRoute")
async def topic_route(
    run: Run,
    topic: Topic,
    as_list: Annotated[
        bool, typer.Option("-l", "--list", help="One line for each broker, and the sums.")
    ] = False,
) -> None:
    """Show which brokers have a topic, and how many queues."""
    import msgspec

    route = await run.admin.topics.route(topic)
    run.lacks(await run.admin.brokers.missing(topic=topic))
    if run.out.form in (Form.JSON, Form.YAML) and not as_list:
        run.out.record(msgspec.to_builtins(route))
        return
    brokers = {data.broker_name: data for data in route.broker_datas}
    rows: list[tuple[object, ...]] = []
    for queues in sorted(route.queue_datas, key=lambda data: data.broker_name):
        data = brokers.get(queues.broker_name)
        rows.append(
            (
                data.cluster if data else None,
                queues.broker_name,
                ";".join(data.broker_addrs[id_] for id_ in sorted(data.broker_addrs))
                if data
                else None,
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
            )
        )
    if as_list:
        read = sum(data.read_queue_nums for data in route.queue_datas)
        write = sum(data.write_queue_nums for data in route.queue_datas)
        rows.append(("Total:", len(route.queue_datas), None, read, write, None))
    run.out.table(
        [
            Column("cluster", "Cluster"),
            Column("broker", "Broker"),
            Column("addresses", "Addresses"),
            Column("readQueues", "Read Queues"),
            Column("writeQueues", "Write Queues"),
            Column("perm", "Perm"),
        ],
        rows,
    )


@command(app, "topicStatus")
async def topic_status(
    run: Run,
    topic: Topic,
    cluster: Annotated[
        str | None,
        typer.Option("-c", "--cluster", help="Only the brokers of this cluster."),
    ] = None,
) -> None:
    """Show the first and last offset of each queue, and when it got its last message."""
    from cometmq.admin.topics.records import stats_of

    stats = await run.reached(
        run.admin.topics.stats(topic, cluster=cluster), partial(stats_of, topic)
    )
    run.out.table(
        [
            Column("broker", "Broker"),
            Column("queue", "QID"),
            Column("minOffset", "Min Offset"),
            Column("maxOffset", "Max Offset"),
            Column("lastUpdated", "Last Updated", as_time),
        ],
        [
            (
                at.queue.broker_name,
                at.queue.queue_id,
                at.min_offset,
                at.max_offset,
                at.last_stored_ms,
            )
            for at in stats.queues
        ],
        section="queues",
    )
    # A sum is known only if each of its parts is.
    rate = None if run.failures else stats.put_per_s
    run.out.record({"Topic Put TPS": rate}, section="topic")


@command(app, "topicClusterList")
async def topic_clusters(run: Run, topic: Topic) -> None:
    """List the clusters that have a topic."""
    run.out.table(
        [Column("cluster", "Cluster")],
        [(cluster,) for cluster in await run.admin.topics.clusters(topic)],
    )


@command(app, "topicList")
async def topic_list(
    run: Run,
    with_clusters: Annotated[
        bool,
        typer.Option(
            "-c",
            "--clusterModel",
            help="With clusters and consumer groups, without retry topics and dead letters.",
        ),
    ] = False,
) -> None:
    """List the topics that the name servers know."""
    names = await run.admin.topics.names()
    run.lacks(await run.admin.brokers.missing())
    if not with_clusters:
        run.out.table([Column("topic", "Topic")], [(name,) for name in names])
        return
    topics = [name for name in names if not name.startswith(_LEFT_OUT)]
    rows: list[tuple[object, ...]] = []
    with run.progress("topics") as show:
        for done, topic in enumerate(topics):
            show(done, len(topics))
            try:
                clusters = await run.admin.topics.clusters(topic)
            except RouteNotFoundError:
                clusters = []  # name servers keep topics of lost brokers
            groups = (
                await run.reached(run.admin.groups.of_topic(topic), _joined) if clusters else []
            )
            rows += [
                (cluster, topic, group) for cluster in clusters or [""] for group in groups or [""]
            ]
    run.out.table(
        [Column("cluster", "Cluster"), Column("topic", "Topic"), Column("group", "Consumer Group")],
        rows,
    )


@command(app, "allocateMQ")
async def allocate(
    run: Run,
    topic: Topic,
    members: Annotated[
        str, typer.Option("-i", "--ipList", metavar="IP,IP", help="The members of a group.")
    ],
) -> None:
    """Show which queues of a topic each member of a group would get."""
    from cometmq.client.membership.allocation import allocate_averagely

    ids = [part.strip() for part in members.split(",") if part.strip()]
    queues = sorted((await run.admin.topics.route(topic)).subscribe_queues(topic))
    run.lacks(await run.admin.brokers.missing(topic=topic))
    run.out.table(
        [Column("member", "Member"), Column("broker", "Broker"), Column("queue", "QID")],
        [
            (member, queue.broker_name, queue.queue_id)
            for member in ids
            for queue in allocate_averagely("", member, queues, ids)
        ],
    )


class OrderMethod(Enum):
    GET = "get"
    PUT = "put"
    DELETE = "delete"


@command(app, "updateOrderConf", changes=True)
async def order_config(
    run: Run,
    topic: Topic,
    method: Annotated[OrderMethod, typer.Option("-m", "--method", help="The action.")],
    config: Annotated[
        str | None,
        typer.Option(
            "-v",
            "--orderConf",
            metavar="BROKER:COUNT;BROKER:COUNT",
            help="With -m put: how many queues each broker has.",
        ),
    ] = None,
) -> None:
    """Get, put or delete the order configuration of a topic at the name servers."""
    topics = run.admin.topics
    if method is OrderMethod.GET:
        found = await topics.order_config(topic)
        if found is None:
            run.failed(topic, "the name servers have no order configuration of this topic")
        else:
            run.out.record({"topic": topic, "orderConf": found})
    elif method is OrderMethod.PUT:
        if not config:
            raise ConfigError("--method put needs --orderConf, such as 'broker-a:4;broker-b:4'")
        text = config
        await run.change(
            f"set the order configuration of topic {topic} to {text}",
            await run.name_servers(),
            lambda: topics.set_order_config(topic, text),
        )
    else:
        await run.change(
            f"delete the order configuration of topic {topic}",
            await run.name_servers(),
            lambda: topics.delete_order_config(topic),
            destroys=True,
        )


def _joined(found: Mapping[str, list[str]]) -> list[str]:
    return sorted({group for groups in found.values() for group in groups})


def _attributes(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the attributes to set and those to remove of `+key=value,-key`."""
    added: dict[str, str] = {}
    removed: list[str] = []
    for part in filter(None, text.split(",")):
        key, equals, value = part[1:].partition("=")
        if part[0] == "+" and equals:
            added[key] = value
        elif part[0] == "-" and not equals:
            removed.append(key)
        else:
            raise ConfigError(
                f"--attributes: {part!r:.80} is neither +KEY=VALUE, to set it, nor -KEY, to remove it"
            )
    return added, removed


def _configs(file: Path) -> list[TopicConfig]:
    import msgspec

    from cometmq.model.topic import TopicConfig

    try:
        configs = msgspec.json.decode(file.read_bytes(), type=list[TopicConfig])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"file {file} is no JSON list of configurations of topics: {error}"
        ) from error
    if not configs or not all(config.topic_name for config in configs):
        raise ConfigError(f'file {file} must name at least one topic, and each with "topicName"')
    return configs

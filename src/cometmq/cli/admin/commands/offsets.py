"""Define mqadmin's commands that move and show the offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from cometmq.admin.groups.offsets import END, QueueOffsets
from cometmq.admin.groups.room import joined_offsets
from cometmq.cli.admin.command import TRUTH, Run, command, truth
from cometmq.cli.admin.many import ask_each
from cometmq.cli.admin.output import Column, as_time
from cometmq.cli.admin.time_range import time_ms
from cometmq.errors import ConfigError, RemotingError, ServersFailedError
from cometmq.model.queue import MessageQueue

app = typer.Typer()

Group = Annotated[str, typer.Option("-g", "--group", metavar="NAME", help="The consumer group.")]
Topic = Annotated[str, typer.Option("-t", "--topic", metavar="NAME", help="The topic.")]
Cluster = Annotated[
    str | None,
    typer.Option("-c", "--cluster", metavar="NAME", help="The cluster, if several have the topic."),
]
Force = Annotated[
    Any,
    typer.Option(
        "-f",
        "--force",
        metavar=TRUTH,
        parser=truth,
        help="With false no offset moves ahead; brokers of 5.x ignore it.",
    ),
]


def _time_or_end(text: str) -> int:
    if text.strip() == str(END):
        return END
    try:
        return time_ms(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message}, or -1 for the end of every queue") from error


_MOVED: Final = (
    Column("brokerName", "brokerName"),
    Column("queueId", "queueId"),
    Column("offset", "offset"),
)
_PLANNED: Final = (
    Column("brokerName", "brokerName"),
    Column("queueId", "queueId"),
    Column("minOffset", "minOffset"),
    Column("brokerOffset", "brokerOffset"),
    Column("consumerOffset", "consumerOffset"),
    Column("resetOffset", "resetOffset"),
)


@command(app, "resetOffsetByTime", changes=True)
async def reset_offset_by_time(
    run: Run,
    group: Group,
    topic: Topic,
    timestamp: Annotated[
        Any,
        typer.Option(
            "-s",
            "--timestamp",
            metavar="now|-1|MS|yyyy-MM-dd#HH:mm:ss:SSS",
            parser=_time_or_end,
            help="Go on with the messages stored then or later; -1 is the end of every queue.",
        ),
    ] = None,
    force: Force = "true",
    cluster: Cluster = None,
    broker: Annotated[
        str | None,
        typer.Option("-b", "--broker", metavar="NAME|HOST:PORT", help="The broker of one queue."),
    ] = None,
    queue_id: Annotated[int | None, typer.Option("-q", "--queue", min=0, help="One queue.")] = None,
    offset: Annotated[
        int | None,
        typer.Option("-o", "--offset", min=0, help="Go on at this offset of the one queue."),
    ] = None,
    for_cpp: Annotated[
        bool,
        typer.Option(
            "--cplus",
            help="Have brokers of 4.x notify the members in the form that C++ clients read.",
        ),
    ] = False,
) -> None:
    """Have a group go on with the messages of a time, in all queues of a topic or in one."""
    if timestamp is None and offset is None:
        raise ConfigError("give --timestamp, or --offset with --broker and --queue")
    if broker is not None and queue_id is not None:
        await _reset_one(run, group, topic, (broker, queue_id), timestamp, offset)
        return
    if (broker, queue_id, offset) != (None, None, None):
        # mqadmin would reset all queues at all brokers.
        raise ConfigError(
            "one queue is named by --broker and --queue, and only then --offset counts: give both, "
            "or none of them to reset all queues"
        )
    await _reset(run, group, topic, timestamp, force=force, for_cpp=for_cpp, cluster=cluster)


@command(app, "skipAccumulatedMessage", changes=True)
async def skip_accumulated_message(
    run: Run, group: Group, topic: Topic, force: Force = "true", cluster: Cluster = None
) -> None:
    """Have a group go on at the end of every queue: it never gets the messages that wait for it
    now.
    """
    await _reset(run, group, topic, END, force=force, cluster=cluster)


@command(app, "cloneGroupOffset", changes=True)
async def clone_group_offset(
    run: Run,
    source: Annotated[
        str,
        typer.Option("-s", "--srcGroup", metavar="NAME", help="The group to copy offsets from."),
    ],
    target: Annotated[
        str, typer.Option("-d", "--destGroup", metavar="NAME", help="The group that gets them.")
    ],
    topic: Topic,
    offline: Annotated[
        str | None,
        typer.Option("-o", "--offline", help="Accepted and ignored, as by mqadmin."),
    ] = None,
) -> None:
    """Give a group the offsets that another one has in a topic."""
    del offline
    await _need_group(run, target, topic)
    plan: list[tuple[QueueOffsets, int]] = []
    if run.dry_run:
        taken = await run.admin.offsets.to_clone(source, topic)
        offsets = {at.queue: at.committed_offset for at in taken}
        plan = [
            (at, offset)
            for at in await run.admin.offsets.of_topic(topic, target)
            if (offset := offsets.get(at.queue)) is not None
        ]
    await _move(
        run,
        f"set the offsets of group {target} in topic {topic} to those of group {source}",
        await _masters(run, topic, None),
        plan,
        lambda: run.admin.offsets.clone(source, target, topic),
    )


@command(app, "getConsumerStatus")
async def get_consumer_status(
    run: Run,
    group: Group,
    topic: Topic,
    client: Annotated[
        str | None,
        typer.Option("-i", "--originClientId", metavar="ID", help="One member."),
    ] = None,
) -> None:
    """Show the offsets of a topic as the members of a group know them."""
    known = await run.reached(run.admin.groups.member_offsets(group, topic, client), joined_offsets)
    run.out.table(
        (Column("clientId", "clientId"), *_MOVED),
        [
            (member, queue.broker_name, queue.queue_id, offset)
            for member in sorted(known)
            for queue, offset in sorted(known[member].items(), key=lambda item: item[0])
        ],
    )


# Inside


async def _reset(
    run: Run,
    group: str,
    topic: str,
    timestamp: int,
    *,
    force: bool,
    cluster: str | None,
    for_cpp: bool = False,
) -> None:
    await _need_group(run, group, topic)
    plan: list[tuple[QueueOffsets, int]] = []
    if run.dry_run:
        queues = await run.admin.offsets.of_topic(topic, group, cluster=cluster)
        targets = await ask_each(
            run, "queues", queues, lambda at: run.admin.offsets.at_time(at.queue, timestamp)
        )
        plan = list(zip(queues, targets, strict=True))
    where = "the end of every queue" if timestamp == END else "the first message"
    if timestamp > 0:
        where = f"the messages stored at {as_time(timestamp)} or later"
    await _move(
        run,
        f"move group {group} in topic {topic} to {where}",
        await _masters(run, topic, cluster),
        plan,
        lambda: run.admin.offsets.reset_to_time(
            group, topic, timestamp, force=force, for_cpp=for_cpp, cluster=cluster
        ),
    )


async def _reset_one(
    run: Run,
    group: str,
    topic: str,
    place: tuple[str, int],
    timestamp: int | None,
    offset: int | None,
) -> None:
    await _need_group(run, group, topic)
    at = await _queue(run, group, topic, *place)
    if offset is None:
        assert timestamp is not None
        target = await run.admin.offsets.at_time(at.queue, timestamp)
    else:
        target = offset
    if not at.min_offset <= target <= at.max_offset:
        raise ConfigError(
            f"the offset to go on at is {target}, and queue {at.queue.queue_id} of "
            f"{at.queue.broker_name} has the offsets {at.min_offset} to {at.max_offset}; give one of "
            "them"
        )

    async def reset() -> Mapping[MessageQueue, int]:
        await run.admin.offsets.reset_queue(group, at.queue, target)
        return {at.queue: target}

    what = f"move group {group} in queue {at.queue.queue_id} of topic {topic} to offset {target}"
    await _move(run, what, [at.queue.broker_name], [(at, target)], reset)


async def _move(
    run: Run,
    what: str,
    servers: Sequence[str],
    plan: Sequence[tuple[QueueOffsets, int]],
    move: Callable[[], Awaitable[Mapping[MessageQueue, int]]],
) -> None:
    """Move offsets and print the new ones, or print what `--dry-run` would move."""
    if run.dry_run:
        run.out.table(_PLANNED, [_planned(at, target) for at, target in plan])
        return
    run.confirm(what, servers)
    moved = await run.reached(
        move(),
        lambda results: {queue: to for table in results.values() for queue, to in table.items()},
    )
    run.out.table(
        _MOVED,
        [(queue.broker_name, queue.queue_id, moved[queue]) for queue in sorted(moved)],
    )


async def _masters(run: Run, topic: str, cluster: str | None) -> list[str]:
    route = await run.admin.topics.route(topic)
    return sorted(
        data.broker_name for data in route.broker_datas if cluster in (None, data.cluster)
    )


def _planned(at: QueueOffsets, target: int) -> tuple[object, ...]:
    return (
        *(at.queue.broker_name, at.queue.queue_id, at.min_offset, at.max_offset),
        *(at.committed_offset, target),
    )


async def _queue(run: Run, group: str, topic: str, broker: str, queue_id: int) -> QueueOffsets:
    """Return the offsets of the queue that a user named. Raises ConfigError if there is none."""
    name = broker
    if ":" in broker:
        known = {at.address: at.broker_name for at in await run.admin.brokers.addresses()}
        if broker not in known:
            raise ConfigError(
                f"no broker is registered as {broker!r:.80}; there are {', '.join(known) or 'none'}"
            )
        name = known[broker]
    try:
        queues = await run.admin.offsets.of_topic(topic, group)
    except ServersFailedError as error:  # queues of other brokers are not wanted
        queues = [at for some in error.results.values() for at in some]
        if not any(at.queue.broker_name == name for at in queues):
            raise
    for at in queues:
        if (at.queue.broker_name, at.queue.queue_id) == (name, queue_id):
            return at
    there = [at.queue.queue_id for at in queues if at.queue.broker_name == name]
    has = f"its queues there are 0 to {max(there)}" if there else "the topic is not there"
    raise ConfigError(
        f"topic {topic} has no queue {queue_id} at {broker}: {has}; topicRoute -t {topic} shows all"
    )


async def _need_group(run: Run, group: str, topic: str) -> None:
    """Raise RemoteError unless the group has an offset in the topic, or is known to a broker.

    A broker would store offsets for any name, also for a misspelt one.
    """
    try:
        if group in await run.admin.groups.of_topic(topic):
            return
        await run.admin.groups.need(group)
    except (RemotingError, ServersFailedError):
        return  # the change goes to the brokers that answer, and names the others

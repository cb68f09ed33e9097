"""Define mqadmin's commands that show how far consumer groups are, and the state of their
members.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote
from zlib import crc32

import msgspec
import typer

from cometmq.admin.groups.findings import PUSH, judge
from cometmq.admin.groups.records import GroupConnections, RunningInfo
from cometmq.cli.admin.command import TRUTH, Broker, Run, command, truth
from cometmq.cli.admin.commands.connections import version_name
from cometmq.cli.admin.commands.members import (
    FINDING,
    ask_members,
    online,
    online_or_none,
    progress_of,
)
from cometmq.cli.admin.many import ask_each
from cometmq.cli.admin.output import Column, Form, as_time
from cometmq.errors import CometMQError, ConfigError, RemoteError
from cometmq.model.names import groups_of_retry_topics
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.clock import SYSTEM_CLOCK

app = typer.Typer()

# Most file systems end names at 255 bytes; a quoted id has one byte for each character.
_LONGEST_NAME: Final = 200

_QUEUE: Final = (
    Column("topic", "Topic"),
    Column("brokerName", "Broker Name"),
    Column("queueId", "QID"),
)
_NOTHING_COMMITTED: Final = (
    "it has committed no offset in a topic that has messages, so its lag is not known: it depends on "
    "where its members begin"
)
_GROUPS: Final = (
    Column("group", "Group"),
    Column("count", "Count"),
    Column("version", "Version"),
    Column("type", "Type"),
    Column("model", "Model"),
    Column("tps", "TPS"),
    Column("diffTotal", "Diff Total"),
)


_Group = Annotated[
    str | None,
    typer.Option("-g", "--groupName", metavar="NAME", help="The group. Default: all."),
]
_Topic = Annotated[
    str | None,
    typer.Option("-t", "--topicName", metavar="NAME", help="One topic of the group."),
]
_ShowClient = Annotated[
    Any,
    typer.Option(
        "-s",
        "--showClientIP",
        metavar=TRUTH,
        parser=truth,
        help="Whether to show which client has each queue.",
    ),
]
_Cluster = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--cluster",
        metavar="NAME",
        help="The cluster, if several have the topic.",
    ),
]


@command(app, "consumerProgress")
async def consumer_progress(
    run: Run,
    group: _Group = None,
    topic: _Topic = None,
    show_client: _ShowClient = "false",
    cluster: _Cluster = None,
) -> None:
    """Show how far a group is in each queue, or how far all groups are."""
    if group is None:
        if topic is not None:
            raise ConfigError("--topicName needs --groupName: give both, or statsAll --topic")
        await _all_groups(run)
        return
    progress = await progress_of(run, group, topic, cluster)
    found = await online_or_none(run, group)
    if found is None:
        run.out.note(
            f"group {group} is offline: no member of it is connected to a broker"
            if progress.complete
            else f"group {group} has no member at the brokers that answer"
        )
    holders = {} if found is None or not show_client else await _holders(run, found)
    client = (Column("clientIp", "Client IP"),) if show_client else ()
    rows = [
        (
            at.queue.topic,
            at.queue.broker_name,
            at.queue.queue_id,
            at.broker_offset,
            at.consumer_offset,
            *([holders.get(at.queue)] if show_client else []),
            at.lag,
            at.in_flight,
            at.last_consumed_ms,
        )
        for at in progress.queues
    ]
    columns = (
        *_QUEUE,
        Column("brokerOffset", "Broker Offset"),
        Column("consumerOffset", "Consumer Offset"),
        *client,
        Column("diff", "Diff"),
        Column("inflight", "Inflight"),
        Column("lastTime", "LastTime", as_time),
    )
    run.out.table(columns, rows, section="queues")
    run.out.record(
        {
            "consumeTps": progress.consume_per_s,
            "diffTotal": progress.lag,
            "inflightTotal": progress.in_flight,
        },
        section="total",
    )
    if progress.lag is None and progress.complete:
        run.failed(f"group {group}", _NOTHING_COMMITTED)


async def _holders(run: Run, found: GroupConnections) -> dict[MessageQueue, str]:
    """Return the host of the member that holds each queue."""
    members = await ask_members(run, found)
    for client_id, error in members.errors.items():
        run.failed(client_id, error)
    return {
        queue: client_id.partition("@")[0]
        for client_id, info in members.reports.items()
        for queue in info.queues
    }


async def groups_of(run: Run) -> list[str]:
    """Return the groups that have retry topics: all that have ever consumed."""
    topics = await run.admin.topics.names()
    try:
        known = await run.admin.groups.names()
    except CometMQError:
        known = []  # some broker does not answer: retry topics of groups that pop then keep their names
    return groups_of_retry_topics(topics, set(known))


async def _all_groups(run: Run) -> None:
    groups = await groups_of(run)

    async def row(group: str) -> tuple[object, ...] | None:
        try:
            return await _group_row(run, group)
        except CometMQError as error:  # the other groups can be shown
            run.failed(f"group {group}", error)
            return None

    found = await ask_each(run, "groups", groups, row)
    run.out.table(_GROUPS, [row for row in found if row is not None])


async def _group_row(run: Run, group: str) -> tuple[object, ...]:
    try:
        progress = await progress_of(run, group)
    except RemoteError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        return group, 0, "UNKNOWN", None, None, None, None  # only its retry topic is left
    found = await online_or_none(run, group)
    if found is None:
        count, version = (0, "OFFLINE") if progress.complete else (None, "UNKNOWN")
        return group, count, version, None, None, progress.consume_per_s, progress.lag
    is_push = found.consume_type == PUSH
    return (
        group,
        len(found.clients),
        version_name(min((each.version for each in found.clients), key=_order)),
        "PUSH" if is_push else "PULL",
        found.message_model if is_push else None,
        progress.consume_per_s,
        progress.lag,
    )


def _order(version: str) -> tuple[list[int], bool]:
    """Sort releases by their numbers, and a snapshot before its release."""
    numbers, _, snapshot = version.partition("-")
    return [int(part) for part in numbers.split(".") if part.isdecimal()], not snapshot


@command(app, "consumerStatus")
async def consumer_status(
    run: Run,
    group: Annotated[str, typer.Option("-g", "--consumerGroup", metavar="NAME", help="The group.")],
    client: Annotated[
        str | None,
        typer.Option("-i", "--clientId", metavar="ID", help="One member."),
    ] = None,
    broker: Broker = None,
    stacks: Annotated[
        bool, typer.Option("-s", "--jstack", help="Ask for the stacks of its threads, too.")
    ] = False,
) -> None:
    """Show what the members of a group report of themselves, and their faults.

    A member's whole report goes into a file; with --clientId that of one member is shown.
    """
    if client is not None:
        _show(run, await run.admin.groups.running_info(group, client, stacks=stacks))
        return
    group_online = await online(run, group, broker)
    members = await ask_members(run, group_online, stacks=stacks)
    for client_id, error in members.errors.items():
        run.failed(client_id, error)
    now_ms = SYSTEM_CLOCK.now_ms()
    versions = {each.client_id: each.version for each in group_online.clients}
    rows = []
    for index, (client_id, info) in enumerate(members.reports.items(), 1):
        file = Path(str(now_ms), _file_name(client_id))
        _write(file, info)
        rows.append((index, client_id, version_name(versions[client_id]), str(file)))
    run.out.table(
        (
            Column("index", "Index"),
            Column("clientId", "ClientId"),
            Column("version", "Version"),
            Column("consumerRunningInfoFile", "ConsumerRunningInfoFile"),
        ),
        rows,
        section="members",
    )
    findings = judge(group, members.reports, now_ms)
    run.out.table(FINDING, findings, section="findings")


def _file_name(client_id: str) -> str:
    """Return the name of a file for a member, whose id may have any characters.

    An id that is too long for a name is cut and has its checksum at the end.
    """
    name = quote(client_id, safe="@#:%,")
    if name in (".", ".."):
        return name.replace(".", "%2E")
    if len(name) > _LONGEST_NAME:
        return f"{name[: _LONGEST_NAME - 9]}-{crc32(client_id.encode()):08x}"
    return name


def _write(file: Path, info: RunningInfo) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(_document(info)), indent=2))
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written here: {error}; go to a directory that can be written, or ask "
            "for one member with --clientId"
        ) from error


def _document(info: RunningInfo) -> dict[str, object]:
    return {
        "properties": dict(info.properties),
        "subscriptionSet": info.subscriptions,
        "mqTable": [
            {**_queue_names(queue), **msgspec.to_builtins(at)}
            for queue, at in sorted(info.queues.items(), key=lambda item: item[0])
        ],
        "statusTable": info.topics,
        "jstack": info.stacks,
    }


def _queue_names(queue: MessageQueue) -> dict[str, object]:
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}


def _show(run: Run, info: RunningInfo) -> None:
    queues = sorted(info.queues.items(), key=lambda item: item[0])
    run.out.record(dict(sorted(info.properties.items())), section="properties")
    run.out.table(
        (
            Column("topic", "Topic"),
            Column("classFilter", "ClassFilter"),
            Column("subExpression", "SubExpression"),
        ),
        [(data.topic, data.class_filter_mode, data.sub_string) for data in info.subscriptions],
        section="subscription",
    )
    run.out.table(
        (
            *_QUEUE,
            Column("consumerOffset", "Consumer Offset"),
            Column("cachedMsgCount", "Cached"),
            Column("cachedMsgSizeInMiB", "Cached MiB"),
            Column("locked", "Locked"),
            Column("dropped", "Dropped"),
            Column("lastPullTimestamp", "Last Pull", as_time),
            Column("lastConsumeTimestamp", "Last Consume", as_time),
        ),
        [
            (
                *(queue.topic, queue.broker_name, queue.queue_id, at.commit_offset),
                *(at.cached_msg_count, at.cached_msg_size_in_mi_b, at.locked, at.droped),
                *(at.last_pull_timestamp, at.last_consume_timestamp),
            )
            for queue, at in queues
        ],
        section="queues",
    )
    run.out.table(
        (
            Column("topic", "Topic"),
            Column("pullRt", "Pull RT"),
            Column("pullTps", "Pull TPS"),
            Column("consumeRt", "Consume RT"),
            Column("consumeOkTps", "ConsumeOK TPS"),
            Column("consumeFailedTps", "ConsumeFailed TPS"),
            Column("consumeFailedMsgs", "ConsumeFailedMsgsInHour"),
        ),
        [
            (
                *(topic, of.pull_rt, of.pull_tps, of.consume_rt),
                *(of.consume_ok_tps, of.consume_failed_tps, of.consume_failed_msgs),
            )
            for topic, of in sorted(info.topics.items())
        ],
        section="rates",
    )
    if info.stacks is not None:
        if run.out.form is Form.TABLE:
            run.out.text(info.stacks, section="jstack")
        else:
            run.out.record({"stacks": info.stacks}, section="jstack")

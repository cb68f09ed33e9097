"""Define mqadmin's commands that find messages, and send or consume them again."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import TRUTH, Run, command, truth
from cometmq.cli.admin.commands import message_view as view
from cometmq.cli.admin.commands.message_view import BodyFormat, BodyPath
from cometmq.cli.admin.output import Column, Form, as_time
from cometmq.cli.admin.time_range import Begin, End, EndTime, StartTime
from cometmq.errors import CometMQError, ConfigError, IllegalArgumentError, ServersFailedError

if TYPE_CHECKING:
    from cometmq.admin.messages.room import MessageTrack
    from cometmq.model.message import MessageExt

app = typer.Typer()

Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]
InCluster = Annotated[
    str | None,
    typer.Option("-c", "--cluster", help="Ask only the brokers of this cluster."),
]
_Group = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--consumerGroup",
        help="With -d: have a member of this group consume the message once more.",
    ),
]
_Client = Annotated[
    str | None,
    typer.Option("-d", "--clientId", help="With -g: the client id of that member."),
]

_SENT: Final = (
    Column("originalMsgId", "Original Message ID"),
    Column("brokerName", "Broker Name"),
    Column("queueId", "QID"),
    Column("queueOffset", "Queue Offset"),
    Column("sendStatus", "Send Result"),
    Column("msgId", "MsgId"),
    Column("offsetMsgId", "OffsetID"),
)
_CONSUMED: Final = (
    Column("msgId", "Message ID"),
    Column("clientId", "Client ID"),
    Column("consumeResult", "Consume Result"),
    Column("spentTimeMills", "Spent Time (ms)"),
    Column("order", "Orderly"),
    Column("autoCommit", "Auto Commit"),
    Column("remark", "Remark"),
)
_FOUND: Final = (
    Column("msgId", "Message ID"),
    Column("queueId", "QID"),
    Column("queueOffset", "Offset"),
    Column("brokerName", "Broker Name"),
    Column("storeTimestamp", "Store Timestamp", as_time),
    Column("offsetMsgId", "OffsetID"),
)
_SHOWN_IDS: Final = 5
# Java: MessageConst.INDEX_KEY_TYPE.
_KEYS: Final = "K"
_WOULD: Final = (Column("msgId", "Message ID"), Column("result", "Result"))


@command(app, "queryMsgById", changes=True)
async def query_by_id(
    run: Run,
    msg_id: Annotated[
        str, typer.Option("-i", "--msgId", help="Offset ids or unique ids, separated by commas.")
    ],
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", help="The topic. Unique ids need it."),
    ] = None,
    group: _Group = None,
    client: _Client = None,
    send_message: Annotated[
        bool | None,
        typer.Option(
            "-s",
            "--sendMessage",
            parser=truth,
            metavar=TRUTH,
            help="Send the message again, to the queue that it is in.",
        ),
    ] = None,
    unit_name: Annotated[
        str | None,
        typer.Option(
            "-u",
            "--unitName",
            help="Accepted without effect; it names mqadmin's sending client.",
        ),
    ] = None,
    encoding: BodyFormat = "utf-8",
    cluster: InCluster = None,
    body_path: BodyPath = None,
) -> None:
    """Show messages by their ids, and which groups consumed them; or send them again (-s true)."""
    del unit_name
    ids = _ids(msg_id)
    _check_again(group, client, send=bool(send_message))
    acts = bool(send_message) or (group is not None and client is not None)
    found = {one: await _found(run, one, topic, cluster) for one in ids}
    # The first messages are shown, also of a batch.
    messages = {
        one: at[0]
        for one, at in found.items()
        if at and (_is_meant(run, one, at, acts=acts) or not acts)
    }
    if group is not None and client is not None:
        await _consume(run, messages, group, client)
    elif send_message:
        await _resend(run, messages)
    elif send_message is None:
        await _show(run, list(messages.values()), encoding, body_path)
    # mqadmin does nothing with "-s false", and neither do we.


@command(app, "queryMsgByKey")
async def query_by_key(
    run: Run,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="The key.")],
    begin: Begin = None,
    end: End = None,
    max_num: Annotated[
        int,
        typer.Option("-m", "--maxNum", min=1, max=10_000, help="The most messages of each broker."),
    ] = 64,
    cluster: InCluster = None,
    key_type: Annotated[str, typer.Option("-p", "--keyType", hidden=True)] = _KEYS,
    last_key: Annotated[str | None, typer.Option("-l", "--lastKey", hidden=True)] = None,
) -> None:
    """List the messages that have a key, oldest first."""
    from cometmq.protocol.redrive import NO_END_MS

    if key_type != _KEYS:
        raise ConfigError(
            f"--keyType={key_type:.40}: CometMQ's brokers index keys ({_KEYS}) and no tags; to list the "
            f"messages of a tag, use printMsg -t {topic} -s {key}, which works with Java's brokers, too"
        )
    if last_key is not None:
        raise ConfigError(
            "--lastKey asks for the next page of Java's index in RocksDB, which is not supported: get all "
            "messages at once with a larger --maxNum, or begin later with --beginTimestamp"
        )

    found, is_all = await _searched(
        run,
        run.admin.messages.by_key(
            topic,
            key,
            max_messages=max_num,
            begin_ms=begin or 0,
            end_ms=NO_END_MS if end is None else end,
            cluster=cluster,
        ),
    )
    rows = [view.values(message) for message in found]
    run.out.table(_FOUND, [[row[column.key] for column in _FOUND] for row in rows])
    if not found:
        indexes = "no broker's index" if is_all else "no index of a broker that answers"
        run.failed(
            f"key {key}",
            f"{indexes} has a message of topic {topic} with it"
            + (" in this time" if begin is not None or end is not None else "")
            + "; check the key (upper and lower case differ) and the topic",
        )


@command(app, "queryMsgByUniqueKey", changes=True)
async def query_by_unique_key(
    run: Run,
    msg_id: Annotated[
        str, typer.Option("-i", "--msgId", help="The unique id that the producer gave.")
    ],
    topic: Topic,
    group: _Group = None,
    client: _Client = None,
    show_all: Annotated[
        bool,
        typer.Option("-a", "--showAll", help="Show all messages with this id, not the oldest."),
    ] = False,
    encoding: BodyFormat = "utf-8",
    cluster: InCluster = None,
    body_path: BodyPath = None,
    begin: StartTime = None,
    end: EndTime = None,
) -> None:
    """Show the message with a unique id, and which groups consumed it."""
    from cometmq.protocol.redrive import NO_END_MS

    [one] = _ids(msg_id, most=1)
    _check_again(group, client)
    found, is_all = await _searched(
        run,
        run.admin.messages.by_unique_id(
            topic,
            one,
            begin_ms=begin or 0,
            end_ms=NO_END_MS if end is None else end,
            cluster=cluster,
        ),
    )
    if not found:
        _missing(run, one, topic, is_all=is_all, in_time=begin is not None or end is not None)
    elif group is not None and client is not None:
        if _is_meant(run, one, found, acts=True):
            await _consume(run, {one: found[0]}, group, client)
        return
    await _show(run, found if show_all else found[:1], encoding, body_path)
    if len(found) > 1 and not show_all and _is_meant(run, one, found, acts=False):
        run.out.note(
            f"{len(found)} messages have this id, because a send was repeated; -a shows all"
        )


@command(app, "queryMsgByOffset")
async def query_by_offset(
    run: Run,
    topic: Topic,
    broker: Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="The queue.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="The offset in it.")],
    encoding: BodyFormat = "utf-8",
    body_path: BodyPath = None,
    route_topic: Annotated[str | None, typer.Option("-r", "--routeTopic", hidden=True)] = None,
) -> None:
    """Show the message of a queue at an offset, and which groups consumed it."""
    from cometmq.model.queue import MessageQueue

    if route_topic is not None:
        raise ConfigError(
            "--routeTopic is for light message queues, which CometMQ does not have: leave it out"
        )
    queue = MessageQueue(topic, broker, queue_id)
    message = await run.admin.messages.by_offset(queue, offset)
    if message is None:
        offsets = await run.admin.offsets.of_topic(topic)
        has = next((at for at in offsets if at.queue == queue), None)
        range_ = (
            "the queue cannot be read"
            if has is None
            else "the queue is empty"
            if has.min_offset == has.max_offset
            else f"the queue has the offsets {has.min_offset} to {has.max_offset - 1}"
        )
        run.failed(
            f"offset {offset}", f"no message is there in queue {queue_id} of {broker}; {range_}"
        )
    await _show(run, [] if message is None else [message], encoding, body_path)


def _ids(text: str, most: int = 1_000) -> list[str]:
    """Return the ids in an option. Raises ConfigError for a text that cannot be an id."""
    ids = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not ids or len(ids) > most:
        raise ConfigError(f"-i has {len(ids)} ids; give 1" + (f" to {most}" if most > 1 else ""))
    for one in ids:
        if one.split() != [one] or not one.isprintable():
            raise ConfigError(f"{one!r:.80} is no message id: it has white space in it")
    return ids


def _check_again(group: str | None, client: str | None, *, send: bool = False) -> None:
    if (group is None) != (client is None):
        raise ConfigError(
            "--consumerGroup and --clientId belong together: the member of the group that consumes "
            "the message; consumerConnection -g GROUP lists the members"
        )
    if send and group is not None:
        raise ConfigError("--sendMessage and --clientId: send again or consume again, not both")


async def _found(run: Run, msg_id: str, topic: str | None, cluster: str | None) -> list[MessageExt]:
    """Return the messages with an id; print a failure and go on if there are none."""
    try:
        if topic is None:
            return [await run.admin.messages.by_id(msg_id)]
        found, is_all = await _searched(
            run, run.admin.messages.find(msg_id, topic, cluster=cluster)
        )
    except IllegalArgumentError as error:
        if topic is not None:
            raise
        raise ConfigError(
            f"{error}; for the unique id that a producer gave, name the topic by -t"
        ) from error
    except CometMQError as error:
        run.failed(f"message {msg_id}", error)
        return []
    if not found:
        _missing(run, msg_id, topic, is_all=is_all)
    return found


async def _searched(run: Run, search: Awaitable[list[MessageExt]]) -> tuple[list[MessageExt], bool]:
    """Return the messages that a search found, and whether all brokers answered. Name the brokers that
    did not answer, and those where a limit ended the search.
    """
    from cometmq.admin.messages.room import FoundMessages

    is_all = True
    try:
        found = await search
    except ServersFailedError as error:
        is_all = False
        run.lacks(error.errors)
        found = FoundMessages.joined(error.results)
    if isinstance(found, FoundMessages):
        for address, text in found.ended_by.items():
            run.failed(address, f"the search ended early: {text}")
    return found, is_all


def _is_meant(run: Run, msg_id: str, found: Sequence[MessageExt], *, acts: bool) -> bool:
    """Return whether all messages found by an id are copies of one. If they are the messages of the
    batch with this id, print their offset ids (their unique ids are in no index): as a failure if
    one of them is to be sent or consumed.
    """
    own = {message.msg_id: message.offset_msg_id for message in found}
    if len(own) <= 1:
        return True
    ids = list(own.values())
    some = ", ".join(ids[:_SHOWN_IDS]) + (" …" if len(ids) > _SHOWN_IDS else "")
    text = f"{len(own)} messages came in the batch with this id; name one by its offset id: {some}"
    if acts:
        run.failed(f"message {msg_id}", text)
        return False
    run.out.note(f"message {msg_id}: {text}")
    return False


def _missing(run: Run, msg_id: str, topic: str, *, is_all: bool, in_time: bool = False) -> None:
    if not is_all:
        run.failed(f"message {msg_id}", "no broker that answers has it; another broker may have it")
        return
    if in_time:
        run.failed(
            f"message {msg_id}",
            f"topic {topic} has none with this id that was stored between these times; leave out "
            "--startTime and --endTime to search all of the topic",
        )
        return
    run.failed(
        f"message {msg_id}",
        f"topic {topic} has none with this id: it was never stored, or retention has deleted it, "
        "or it is in another topic, or it came in a batch to a Java broker of 4.8 to 5.3.3, and is found "
        "by key, offset id or the batch's id",
    )


async def _show(
    run: Run, messages: Sequence[MessageExt], encoding: str, directory: Path | None
) -> None:
    """Show messages, and what became of them in each group."""
    out = run.out
    columns = [*view.FIELDS, *view.BODY, view.TRACKS]
    if directory is not None:
        columns.insert(-1, view.BODY_PATH)
    if out.form is Form.TABLE:
        for message in messages:
            path = view.write_body(message, directory)
            view.show(out, message, encoding, await _tracks(run, message), path)
        return
    with out.stream(columns) as put:
        for message in messages:
            path = view.write_body(message, directory)
            tracks = await _tracks(run, message)
            record = view.record(message, encoding, tracks, path)
            put([record[column.key] for column in columns])


async def _tracks(run: Run, message: MessageExt) -> list[MessageTrack] | None:
    """Return what became of a message in each group. If not all brokers can be asked, print that
    and return None: the message itself was found.
    """
    try:
        return await run.admin.messages.tracks(message)
    except CometMQError as error:
        run.failed(f"consumers of message {message.msg_id}", error)
        return None


async def _resend(run: Run, messages: dict[str, MessageExt]) -> None:
    if not messages:
        return
    topics = ", ".join(sorted({message.topic for message in messages.values()}))
    if run.dry_run:
        run.out.table(_WOULD, [(one, f"would be sent again to {topics}") for one in messages])
        return
    run.confirm(
        f"send {_count(messages)} to {topics} again, where every group gets the copy",
        (),
        for_good=False,
    )
    with run.out.stream(_SENT) as put:
        for one, message in messages.items():
            try:
                sent = await run.admin.messages.resend(message)
            except CometMQError as error:
                run.failed(f"message {one}", error)
                continue
            queue = sent.queue
            put(
                (
                    one,
                    queue.broker_name,
                    queue.queue_id,
                    sent.queue_offset,
                    sent.status.value,
                    sent.msg_id,
                    sent.offset_msg_id,
                )
            )


async def _consume(run: Run, messages: dict[str, MessageExt], group: str, client: str) -> None:
    if not messages:
        return
    if run.dry_run:
        would = f"would be consumed by {client} of group {group}"
        run.out.table(_WOULD, [(one, would) for one in messages])
        return
    run.confirm(
        f"have {client} of group {group} consume {_count(messages)} once more", (), for_good=False
    )
    with run.out.stream(_CONSUMED) as put:
        for one, message in messages.items():
            try:
                done = await run.admin.messages.consume_directly(
                    group, client, message.offset_msg_id, message.topic
                )
            except CometMQError as error:
                run.failed(f"message {one}", error)
                continue
            put(
                (
                    one,
                    client,
                    done.result,
                    done.spent_ms,
                    done.orderly,
                    done.auto_commit,
                    done.remark or None,
                )
            )
            if done.result != "CR_SUCCESS":
                run.failed(f"message {one}", f"the listener of {client} ended with {done.result}")


def _count(messages: dict[str, MessageExt]) -> str:
    return "the message" if len(messages) == 1 else f"{len(messages)} messages"

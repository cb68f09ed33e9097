"""Define mqadmin's commands that print the messages of queues, however many there are."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import TRUTH, Run, command, truth
from cometmq.cli.admin.commands import message_view as view
from cometmq.cli.admin.commands.message_view import CharsetName
from cometmq.cli.admin.output import Column, Form
from cometmq.cli.admin.time_range import Begin, BeginS, End
from cometmq.errors import CometMQError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.model.message import MessageExt
    from cometmq.model.queue import MessageQueue
    from cometmq.protocol.messages.record import StoredRecord

app = typer.Typer()

Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]
_Tags = Annotated[
    str,
    typer.Option(
        "-s", "--subExpression", help="Only messages with one of these tags: 'TagA || TagB'."
    ),
]
# The most tags that are counted apart; messages with other tags are counted together.
_MOST_TAGS: Final = 100_000
_OTHER_TAGS: Final = "(other tags)"
_SHOWN_EACH: Final = 500


@dataclass(frozen=True, slots=True)
class _Part:
    """Is the part of a queue to read: from `begin` up to `end`, which is left out.

    `before` counts the offsets of the parts that are read earlier.
    """

    queue: MessageQueue
    begin: int
    end: int
    before: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.begin)


@command(app, "printMsg")
async def print_messages(
    run: Run,
    topic: Topic,
    encoding: CharsetName = "utf-8",
    tags: _Tags = "*",
    begin: Begin = None,
    end: End = None,
    print_body: Annotated[
        bool, typer.Option("-d", "--printBody", parser=truth, metavar=TRUTH, help="Print bodies.")
    ] = True,
    parent: Annotated[
        str | None,
        typer.Option(
            "-l",
            "--lmqParentTopic",
            hidden=True,
        ),
    ] = None,
) -> None:
    """Print the messages of a topic, queue by queue, each from its oldest."""
    if parent is not None:
        raise ConfigError(
            "--lmqParentTopic: CometMQ has no light message queues; read the parent topic with "
            f"printMsg -t {parent}"
        )
    parts = await _parts(run, topic, begin, end)
    columns = view.list_columns(run.out.form, with_body=print_body)
    with _progress(run, parts) as done, run.out.stream(columns) as put:
        for part in parts:
            await _read(
                run,
                part,
                tags,
                lambda message: put(view.list_row(message, columns, encoding)),
                done,
                (begin, end),
            )


@command(app, "printMsgByQueue")
async def print_messages_of_queue(
    run: Run,
    topic: Topic,
    broker: Annotated[str, typer.Option("-a", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="The queue.")],
    encoding: CharsetName = "utf-8",
    tags: _Tags = "*",
    begin: Begin = None,
    end: End = None,
    print_messages: Annotated[
        bool, typer.Option("-p", "--print", parser=truth, metavar=TRUTH, help="Print messages.")
    ] = False,
    print_body: Annotated[
        bool, typer.Option("-d", "--printBody", parser=truth, metavar=TRUTH, help="Print bodies.")
    ] = False,
    calculate: Annotated[
        bool,
        typer.Option(
            "-f", "--calculate", parser=truth, metavar=TRUTH, help="Count messages by tag."
        ),
    ] = False,
) -> None:
    """Print the messages of one queue (-p true), or count them by tag (-f true)."""
    from cometmq.model.queue import MessageQueue

    if not print_messages and not calculate:
        raise ConfigError(
            "this prints nothing: give -p true to print messages, -f true to count them by tag"
        )
    parts = await _parts(run, topic, begin, end, MessageQueue(topic, broker, queue_id))
    columns = view.list_columns(run.out.form, with_body=print_body)
    counts: Counter[str] = Counter()

    def count(message: MessageExt) -> None:
        tag = message.tags or ""
        counts[tag if tag in counts or len(counts) < _MOST_TAGS else _OTHER_TAGS] += 1

    with _progress(run, parts) as done:
        if print_messages:
            with run.out.stream(columns, section="messages" if calculate else "") as put:

                def show(message: MessageExt) -> None:
                    put(view.list_row(message, columns, encoding))
                    count(message)

                for part in parts:
                    await _read(run, part, tags, show, done, (begin, end))
        else:
            for part in parts:
                await _read(run, part, tags, count, done, (begin, end))
    if calculate:
        run.out.table(
            (Column("tag", "Tag"), Column("count", "Count")),
            [(tag or None, number) for tag, number in counts.most_common()],
            section="tags" if print_messages else "",
        )


_Broker = Annotated[
    str | None,
    typer.Option("-b", "--brokerName", help="Only at this broker."),
]
_QueueId = Annotated[
    int | None,
    typer.Option("-i", "--queueId", min=0, help="Only this queue of the broker."),
]
_Offset = Annotated[
    int | None,
    typer.Option("-o", "--offset", min=0, help="Begin at this offset of the queue."),
]
_Group = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--consumerGroup",
        help="The group to read as; its offsets stay as they are.",
    ),
]
_Number = Annotated[
    int, typer.Option("-c", "--MessageNumber", min=1, help="How many messages at most.")
]


@command(app, "consumeMessage")
async def consume(
    run: Run,
    topic: Topic,
    broker: _Broker = None,
    queue_id: _QueueId = None,
    offset: _Offset = None,
    group: _Group = None,
    begin: BeginS = None,
    end: End = None,
    number: _Number = 128,
) -> None:
    """Print the first messages of a topic, of a broker's queues, or of one queue.

    No group's offsets are moved: the messages are only looked at.
    """
    from cometmq.model.queue import MessageQueue

    if queue_id is not None and broker is None:
        raise ConfigError("--queueId needs --brokerName: every broker has a queue of this number")
    if offset is not None and queue_id is None:
        raise ConfigError("--offset needs --queueId and --brokerName: every queue has its offsets")
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"--beginTimestamp {begin} is after --endTimestamp {end}")
    only = None
    if broker is not None and queue_id is not None:
        only = MessageQueue(topic, broker, queue_id)
    parts = await _parts(run, topic, begin, end, only)
    if broker is not None:
        parts = [part for part in parts if part.queue.broker_name == broker]
        if not parts:
            run.failed(f"broker {broker}", f"it has no queue of topic {topic}; see topicRoute")
    columns = view.list_columns(run.out.form, with_body=True)
    left = number
    with run.out.stream(columns) as put:

        def show(message: MessageExt) -> None:
            nonlocal left
            put(view.list_row(message, columns, "utf-8"))
            left -= 1

        for part in parts:
            if offset is not None and not part.begin <= offset < part.end:
                run.failed(
                    f"offset {offset}",
                    f"queue {part.queue.queue_id} of {part.queue.broker_name} has the offsets "
                    f"{part.begin} to {part.end - 1}"
                    if part.begin < part.end
                    else "the queue has no messages" + (" of this time" if begin or end else ""),
                )
                continue
            if left:
                await _read(
                    run,
                    replace(part, begin=max(part.begin, offset or 0)),
                    "*",
                    show,
                    lambda _: None,
                    (begin, end),
                    group=group,
                    enough=lambda: not left,
                )


@command(app, "dumpCompactionLog")
async def dump_compaction_log(
    run: Run,
    file: Annotated[
        Path,
        typer.Option(
            "-f",
            "--file",
            exists=True,
            dir_okay=False,
            readable=True,
            help="The file: of a compacted topic, or of a commit log.",
        ),
    ],
    encoding: CharsetName = "utf-8",
) -> None:
    """Print the messages in a file of this machine: a compaction log's, or a commit log's."""
    from cometmq.admin.messages.reading import message_of

    columns = view.list_columns(run.out.form, with_body=True)
    with run.out.stream(columns) as put:
        try:
            for record in _records(file):
                put(view.list_row(message_of(record, ""), columns, encoding))
        except (CometMQError, OSError) as error:
            run.failed(str(file), str(error))


def _records(file: Path) -> Iterator[StoredRecord]:
    """Yield the records of a file up to its end, or to the unused rest of the file."""
    import mmap

    from cometmq.protocol.messages.record import MAGIC_BLANK, decode_record
    from cometmq.protocol.messages.record_layout import MAGIC_AT

    with file.open("rb") as opened:
        size = file.stat().st_size
        if not size:
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            position = 0
            while position + 8 <= size:
                length = int.from_bytes(content[position : position + 4], "big")
                magic = content[position + MAGIC_AT : position + MAGIC_AT + 4]
                if length == 0 or magic == MAGIC_BLANK.to_bytes(4, "big"):
                    return
                yield decode_record(content[position : position + min(length, size)])
                position += length


async def _parts(
    run: Run, topic: str, begin: int | None, end: int | None, only: MessageQueue | None = None
) -> list[_Part]:
    """Return the parts to read: all readable queues of the topic, or one."""
    from cometmq.admin.messages.reading import check_queue
    from cometmq.protocol.redrive import NO_END_MS

    if only is not None:
        check_queue(await run.admin.topics.route(topic), only)
    parts: list[_Part] = []
    for at in await run.admin.offsets.of_topic(topic):
        if only is not None and at.queue != only:
            continue
        first, last = at.min_offset, at.max_offset
        if begin is not None:
            first = max(first, await run.admin.offsets.at_time(at.queue, begin))
        if end is not None:
            # Brokers of 4.9 return the last offset, not the next one, for a time after all messages.
            # One too many does no harm: messages that were stored later are not printed.
            after = await run.admin.offsets.at_time(at.queue, min(end + 1, NO_END_MS))
            last = min(last, after + 1)
        before = parts[-1].before + parts[-1].size if parts else 0
        parts.append(_Part(at.queue, first, last, before))
    return parts


async def _read(
    run: Run,
    part: _Part,
    tags: str,
    each: Callable[[MessageExt], None],
    done: Callable[[int], None],
    times: tuple[int | None, int | None],
    *,
    group: str | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Pass the messages of a part to `each`; print a failure and go on with the other parts."""
    if part.begin >= part.end:
        return
    from cometmq.admin.messages.reading import TOOLS_GROUP
    from cometmq.protocol.redrive import NO_END_MS

    begin, end = times
    messages = run.admin.messages.stored_in(
        part.queue,
        begin_offset=part.begin,
        begin_ms=begin or 0,
        end_ms=NO_END_MS if end is None else end,
        tags=tags,
        group=TOOLS_GROUP if group is None else group,
    )
    try:
        async for message in messages:
            if message.queue_offset >= part.end:
                break
            each(message)
            done(part.before + message.queue_offset - part.begin + 1)
            if enough():
                break
    except CometMQError as error:
        run.failed(str(part.queue), error)
    done(part.before + part.size)


@contextmanager
def _progress(run: Run, parts: Sequence[_Part]) -> Iterator[Callable[[int], None]]:
    """Show how many messages of all parts are read, unless the messages themselves move on the
    screen.
    """
    if run.out.form is Form.TABLE and sys.stdout.isatty():
        yield lambda _: None
        return
    total = sum(part.size for part in parts)
    shown = 0
    with run.progress("messages") as show:

        def done(count: int) -> None:
            nonlocal shown
            if count - shown >= _SHOWN_EACH or count == total:
                shown = count
                show(count, total)

        yield done

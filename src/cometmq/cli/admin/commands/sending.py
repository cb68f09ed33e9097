"""Define mqadmin's commands that send messages, one or many to measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import TRUTH, Run, command, truth
from cometmq.cli.admin.output import Column, Form
from cometmq.errors import CometMQError, ConfigError, RouteNotFoundError
from cometmq.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from cometmq.client.producing.producer import Producer
    from cometmq.model.message import Message
    from cometmq.model.queue import MessageQueue
    from cometmq.model.results import SendResult

app = typer.Typer()

_GROUP: Final = "cometmq-admin"
_STATUS_GROUP: Final = "PID_SMSC"  # as mqadmin's
_WARM_UP_BYTES: Final = 16
_MAX_BYTES: Final = 4 * 1024 * 1024  # the most that a producer sends

_SENT: Final = (
    Column("brokerName", "Broker Name"),
    Column("queueId", "QID"),
    Column("sendResult", "Send Result"),
    Column("msgId", "MsgId"),
)
_RT: Final = Column("rt", "RT", lambda value: f"{value:.2f}" if isinstance(value, float) else "-")
_MEASURED: Final = (*_SENT[:3], _RT)
_STATUS: Final = (
    Column("rt", "RT (ms)", _RT.form),
    *_SENT[:3],
    Column("queueOffset", "Queue Offset"),
    Column("msgId", "MsgId"),
)
_WOULD: Final = (Column("topic", "Topic"), Column("result", "Result"))

Size = Annotated[
    int,
    typer.Option("-s", "--size", min=0, max=_MAX_BYTES, help="How many bytes each message has."),
]


@command(app, "sendMessage", changes=True)
async def send_message(
    run: Run,
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic; it must exist.")],
    body: Annotated[str, typer.Option("-p", "--body", help="The body, as text.")],
    keys: Annotated[
        str | None,
        typer.Option("-k", "--key", help="The keys, separated by blanks."),
    ] = None,
    tags: Annotated[str | None, typer.Option("-c", "--tags", help="The tag.")] = None,
    broker: Annotated[
        str | None,
        typer.Option("-b", "--broker", help="Send to this broker, by its name."),
    ] = None,
    queue_id: Annotated[
        int | None,
        typer.Option("-i", "--qid", min=0, help="Send to this queue of the broker."),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("-m", "--msgTraceEnable", parser=truth, metavar=TRUTH, help="Write a trace."),
    ] = False,
) -> None:
    """Send a message."""
    from cometmq.model.message import Message

    if queue_id is not None and broker is None:
        raise ConfigError("--qid needs --broker: every broker has a queue of this number")
    queue = await _queue(run, topic, broker, queue_id)
    message = Message(topic, body.encode(), tags=tags, keys=(keys or "").split())
    if run.dry_run:
        would = f"would send {len(message.body)} bytes"
        run.out.table(_WOULD, [(topic, would if queue is None else f"{would} to {queue}")])
        return
    async with run.producer(_GROUP, trace=trace) as producer:
        sent = await producer.send(message, queue=queue)
    run.out.table(_SENT, [_row(sent)])


@command(app, "checkMsgSendRT", changes=True)
async def check_send_rt(
    run: Run,
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic; it must exist.")],
    amount: Annotated[int, typer.Option("-a", "--amount", min=1, help="How many messages.")] = 100,
    size: Size = 128,
) -> None:
    """Measure how long sends take. Sends messages, whose consumers will get them, to all queues."""
    await _queue(run, topic, None, None)
    if run.dry_run:
        _would_send(run, topic, amount, size)
        return
    async with run.producer(_GROUP) as producer:
        queues = await producer.queues(topic)
        times: list[float] = []
        with run.out.stream(_MEASURED, section="sends") as put:
            for index in range(amount):
                queue = queues[index % len(queues)]
                sent, spent_ms = await _timed(run, producer, _message(topic, size), queue)
                put((queue.broker_name, queue.queue_id, sent is not None, spent_ms))
                times.append(spent_ms)
    # The first one also connects.
    counted = times[1:] or times
    average = sum(counted) / len(counted)
    if run.out.form is Form.TABLE:
        run.out.record({"Avg RT": f"{average:.2f}"})
    else:
        run.out.record({"averageRt": average}, section="summary")


@command(app, "sendMsgStatus", changes=True)
async def send_message_status(
    run: Run,
    broker: Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")],
    size: Annotated[
        int,
        typer.Option(
            "-s", "--messageSize", min=0, max=_MAX_BYTES, help="How many bytes each message has."
        ),
    ] = 128,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="How many messages.")] = 50,
) -> None:
    """Send messages to the topic with the broker's own name, and show its answers."""
    await run.admin.brokers.runtime_info(broker=broker)
    if run.dry_run:
        _would_send(run, broker, count + 1, size)
        return
    async with run.producer(_STATUS_GROUP) as producer:
        await producer.send(_message(broker, _WARM_UP_BYTES))
        with run.out.stream(_STATUS) as put:
            for _ in range(count):
                sent, spent_ms = await _timed(run, producer, _message(broker, size), None)
                if sent is not None:
                    name, queue_id, result, msg_id = _row(sent)
                    put((spent_ms, name, queue_id, result, sent.queue_offset, msg_id))


async def _queue(
    run: Run, topic: str, broker: str | None, queue_id: int | None
) -> MessageQueue | None:
    """Return the chosen queue, None if any will do; the topic has to exist."""
    try:
        route = await run.admin.topics.route(topic)
    except RouteNotFoundError as error:
        raise RouteNotFoundError(
            f"topic {topic} does not exist, so nothing is sent; check its name (topicList lists "
            "all), or make it with updateTopic",
            code=error.code,
        ) from error
    if broker is None:
        return None
    queues = [queue for queue in route.publish_queues(topic) if queue.broker_name == broker]
    if not queues:
        names = sorted({queue.broker_name for queue in route.publish_queues(topic)})
        raise RouteNotFoundError(
            f"topic {topic} takes no messages at broker {broker!r:.80}; it does at "
            f"{', '.join(names) or 'none'}"
        )
    if queue_id is None:
        return queues[SYSTEM_CLOCK.now_ms() % len(queues)]
    if queue_id >= len(queues):
        raise RouteNotFoundError(
            f"topic {topic} has no queue {queue_id} to send to at broker {broker}; its queues there "
            f"are 0 to {len(queues) - 1}"
        )
    return queues[queue_id]


async def _timed(
    run: Run, producer: Producer, message: Message, queue: MessageQueue | None
) -> tuple[SendResult | None, float]:
    """Send a message; return the result, None after a failure (which is printed), and the ms it
    took.
    """
    begin_s = SYSTEM_CLOCK.monotonic()
    sent = None
    try:
        sent = await producer.send(message, queue=queue)
    except CometMQError as error:
        run.failed("send" if queue is None else str(queue), error)
    return sent, (SYSTEM_CLOCK.monotonic() - begin_s) * 1000


def _message(topic: str, size: int) -> Message:
    from cometmq.model.message import Message

    return Message(topic, b"a" * size)


def _row(sent: SendResult) -> tuple[str, int, str, str]:
    return sent.queue.broker_name, sent.queue.queue_id, sent.status.value, sent.msg_id


def _would_send(run: Run, topic: str, count: int, size: int) -> None:
    run.out.table(_WOULD, [(topic, f"would send {count} messages of {size} bytes")])

"""Define mqadmin's command that shows the traces of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import Run, command
from cometmq.cli.admin.output import Column, as_time
from cometmq.cli.admin.time_range import Begin, End

if TYPE_CHECKING:
    from cometmq.admin.messages.room import TraceEvent

app = typer.Typer()

_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"


def _cost(value: object) -> str:
    return f"{value}ms"


def _columns(group: Column, time: Column) -> tuple[Column, ...]:
    return (
        Column("type", "Type"),
        group,
        Column("clientHost", "ClientHost"),
        time,
        Column("costTime", "CostTimes", _cost),
        Column("status", "Status"),
        Column("topic", "Topic"),
        Column("msgId", "MsgId"),
    )


_SENT: Final = _columns(
    Column("groupName", "ProducerGroup"), Column("timeStamp", "SendTime", as_time)
)
_CONSUMED: Final = (
    *_columns(Column("groupName", "ConsumerGroup"), Column("timeStamp", "ConsumerTime", as_time)),
    Column("retryTimes", "RetryTimes"),
    Column("contextCode", "Outcome"),
)
_OTHER: Final = _columns(Column("groupName", "Group"), Column("timeStamp", "Time", as_time))


@command(app, "queryMsgTraceById")
async def query_trace(
    run: Run,
    msg_id: Annotated[str, typer.Option("-i", "--msgId", help="The unique id, or a key.")],
    trace_topic: Annotated[
        str, typer.Option("-t", "--traceTopic", help="The topic of the traces.")
    ] = _TRACE_TOPIC,
    begin: Begin = None,
    end: End = None,
    max_num: Annotated[
        int,
        typer.Option(
            "-c", "--maxNum", min=1, max=10_000, help="The most trace messages of each broker."
        ),
    ] = 64,
) -> None:
    """Show which clients sent and consumed a message, by the traces that they wrote."""
    from cometmq.admin.messages.room import joined_events
    from cometmq.client.tracing.codec import TraceType
    from cometmq.protocol.redrive import NO_END_MS

    events = await run.reached(
        run.admin.messages.trace(
            msg_id,
            trace_topic=trace_topic,
            max_messages=max_num,
            begin_ms=begin or 0,
            end_ms=NO_END_MS if end is None else end,
        ),
        joined_events,
    )
    sent = [event for event in events if event.kind is TraceType.PUB]
    begun = {event.request_id: event for event in events if event.kind is TraceType.SUB_BEFORE}
    ended = [event for event in events if event.kind is TraceType.SUB_AFTER]
    known = (TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
    other = [event for event in events if event.kind not in known]
    consumed = [_consumption(event, begun.pop(event.request_id, None)) for event in ended]
    # Consumptions that began and did not end, or have no written end yet.
    consumed += [
        (*_event(event, "Sub", "began"), event.retry_times, None) for event in begun.values()
    ]
    run.out.table(_SENT, [_event(event, "Pub") for event in sent], section="sent")
    run.out.table(_CONSUMED, sorted(consumed, key=lambda row: (row[1], row[3])), section="consumed")
    if other:
        run.out.table(
            _OTHER, [_event(event, event.kind.value) for event in other], section="others"
        )
    if not events:
        run.failed(
            f"message {msg_id}",
            f"no trace of it is in {trace_topic}: its clients wrote none (enable_trace, "
            "enableMsgTrace), or not yet, or to another topic (-t)",
        )


def _event(event: TraceEvent, kind: str, status: str | None = None) -> tuple[object, ...]:
    return (
        kind,
        event.group,
        event.client,
        event.timestamp_ms,
        event.cost_ms,
        status or ("success" if event.success else "failed"),
        event.topic or None,
        event.msg_id,
    )


def _consumption(end: TraceEvent, begin: TraceEvent | None) -> tuple[object, ...]:
    """Return the row of a consumption from its two events: the first has the time and the group."""
    kind, group, client, at, *rest = _event(end, "Sub")
    if begin is not None:
        group, client, at = begin.group or group, begin.client, begin.timestamp_ms
        rest[2] = begin.topic or rest[2]
    retries = end.retry_times if begin is None else begin.retry_times
    return (kind, group, client, at, *rest, retries, end.context and end.context.name)

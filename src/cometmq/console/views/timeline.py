"""Put the events in the traces of a message on a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cometmq.admin.messages.room import TraceEvent
from cometmq.model.message import MessageExt

# The bars are drawn in a box of this width; the shortest one can still be seen.
WIDTH: Final = 1000
_LEAST: Final = 6
_CONTEXTS: Final = {
    "SUCCESS": "consumed",
    "TIME_OUT": "took too long",
    "EXCEPTION": "the listener failed",
    "RETURNNULL": "the listener returned nothing",
    "FAILED": "to be retried",
}


@dataclass(frozen=True, slots=True)
class Step:
    """Is one thing that happened to a message.

    `kind` is sent, stored, consumed, transaction, recalled; it is also the class of the bar. `at_ms` is
    None if no trace has the time; `took_ms` is None if the event takes no time, or has not ended.
    `good` is None while the outcome is not known. A stored message has its `offset` in its queue in
    place of an outcome.
    """

    kind: str
    group: str
    client: str
    at_ms: int | None
    took_ms: int | None
    good: bool | None
    outcome: str
    retries: int = 0
    offset: int | None = None
    # The bar: where it begins and how long it is, of WIDTH.
    x: float = 0.0
    width: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Holds the steps of one message, in the order of time, and when the first begins and the last
    ends.
    """

    msg_id: str
    topic: str
    begin_ms: int
    end_ms: int
    steps: Sequence[Step]


def timelines(
    events: Iterable[TraceEvent], stored: Mapping[str, Sequence[MessageExt]]
) -> list[Timeline]:
    """Return a timeline for each message that the events are of, the first one sent first.

    `stored` has the copies of each message that its topic has.
    """
    by_id: dict[str, list[TraceEvent]] = {}
    for event in events:
        by_id.setdefault(event.msg_id, []).append(event)
    made = [_timeline(msg_id, of_it, stored.get(msg_id, ())) for msg_id, of_it in by_id.items()]
    return sorted(made, key=lambda line: line.begin_ms)


def _timeline(msg_id: str, events: list[TraceEvent], copies: Sequence[MessageExt]) -> Timeline:
    begun = {event.request_id: event for event in events if event.kind.value == "SubBefore"}
    steps = [
        Step(
            "stored",
            "",
            f"{copy.broker_name} {copy.queue_id}",
            copy.store_timestamp_ms,
            None,
            True,
            "",
            offset=copy.queue_offset,
        )
        for copy in copies
    ]
    for event in events:
        if event.kind.value == "SubAfter":
            steps.append(_consumed(event, begun.pop(event.request_id, None)))
        elif event.kind.value != "SubBefore":
            steps.append(_step(event))
    steps += [
        Step(
            "consumed",
            event.group,
            event.client,
            event.timestamp_ms,
            None,
            None,
            "began, and has not ended yet",
            event.retry_times,
        )
        for event in begun.values()
    ]
    steps.sort(key=lambda step: (step.at_ms is None, step.at_ms or 0, step.kind != "sent"))
    times = [step.at_ms for step in steps if step.at_ms is not None]
    ends = [step.at_ms + (step.took_ms or 0) for step in steps if step.at_ms is not None]
    begin, end = min(times, default=0), max(ends, default=0)
    drawn = [_drawn(step, begin, max(end - begin, 1)) for step in steps]
    topic = next((event.topic for event in events if event.topic), "")
    return Timeline(msg_id, topic, begin, end, drawn)


def _step(event: TraceEvent) -> Step:
    kind = {"Pub": "sent", "EndTransaction": "transaction", "Recall": "recalled"}
    takes_time = event.kind.value == "Pub"
    return Step(
        kind.get(event.kind.value, event.kind.value),
        event.group,
        event.client,
        event.timestamp_ms,
        event.cost_ms if takes_time else None,
        event.success,
        "done" if event.success else "failed",
    )


def _consumed(end: TraceEvent, begin: TraceEvent | None) -> Step:
    """Return a consumption from its two events: the first has the time and the group."""
    at_ms: int | None = end.timestamp_ms - end.cost_ms if end.timestamp_ms else None
    group, client, retries = end.group, end.client, end.retry_times
    if begin is not None:
        at_ms, group, client = begin.timestamp_ms, begin.group or group, begin.client
        retries = begin.retry_times
    name = end.context.name if end.context is not None else ""
    outcome = _CONTEXTS.get(name, "consumed") if end.success else _CONTEXTS.get(name, "failed")
    if not end.success and outcome == "consumed":
        outcome = "failed"
    return Step("consumed", group, client, at_ms, end.cost_ms, end.success, outcome, retries)


def _drawn(step: Step, begin_ms: int, span_ms: int) -> Step:
    if step.at_ms is None:
        return step
    width = max(_LEAST, (step.took_ms or 0) / span_ms * WIDTH)
    x = min((step.at_ms - begin_ms) / span_ms * WIDTH, WIDTH - width)
    return replace(step, x=round(max(x, 0.0), 1), width=round(min(width, float(WIDTH)), 1))

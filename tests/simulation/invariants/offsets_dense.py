"""The offsets of a queue are consecutive, each belongs to one message for ever, and none is given twice
(Java: QueueOffsetOperator, ConsumeQueue: "+1 per message").

An acknowledgement, a delivery, a read range and the log each say which message has an offset; all of
them must agree. `QueueSeen` must never go back.

Leniencies, and why: a broker with a flipped bit, see `Evidence`. A record at the end of a log that lost
it (by a loss of power, a wipe, a flipped bit; by a kill with transientStorePoolEnable) gives its offset
free, so messages on both sides of such a fault may have the same one. Whether the fault was allowed to
take it is judged by "acknowledged and not lost".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tests.simulation.evidence import PROMOTE, WIPE, Evidence, Violation
from tests.simulation.history import (
    AnyEvent,
    Delivered,
    FaultInjected,
    Queue,
    QueueSeen,
    RangeRead,
    SendAcknowledged,
)

NAME: Final = "offsets dense and never reused"


class _Seen(NamedTuple):
    number: int
    sent_s: float
    event: AnyEvent


def judge(evidence: Evidence) -> Iterator[Violation]:
    yield from _never_reused(evidence)
    yield from _dense(evidence)
    yield from _never_back(evidence)


def _sightings(evidence: Evidence) -> Iterator[tuple[Queue, int, int, AnyEvent]]:
    """Give queue, offset, message and event of everything that says which message has an offset."""
    for event in evidence.history.events:
        if isinstance(event, SendAcknowledged):
            send = evidence.sends[event.send]
            if send.is_transaction or any(message.is_delayed for message in send.messages):
                continue
            for index, message in enumerate(send.messages):
                yield event.queue, event.offset + index, message.number, event
        elif isinstance(event, (Delivered, RangeRead)) and evidence.may_be_damaged(
            event.queue.broker, event.at_s
        ):
            continue
        elif isinstance(event, Delivered):
            number = evidence.number(event.properties)
            if number is not None:
                yield event.queue, event.offset, number, event
        elif isinstance(event, RangeRead):
            for read in event.messages:
                number = evidence.number(read.properties)
                if number is not None:
                    yield event.queue, read.offset, number, event


def _never_reused(evidence: Evidence) -> Iterator[Violation]:
    owners: dict[tuple[Queue, int], _Seen] = {}
    for queue, offset, number, event in _sightings(evidence):
        sent_s = evidence.outgoing[number][0].at_s
        seen = owners.get((queue, offset))
        if seen is None or seen.number == number:
            owners.setdefault((queue, offset), _Seen(number, sent_s, event))
            continue
        owners[queue, offset] = _Seen(number, sent_s, event)
        forgets = evidence.may_forget(queue.broker)
        # One message was there before the fault, and the other came after it. Which one may not follow
        # from when they were sent: a transaction comes with its commit.
        until_s = max(seen.event.at_s, event.at_s)
        faults = evidence.injected(queue.broker, forgets, min(seen.sent_s, sent_s), until_s)
        if not faults or (_only_switched(faults) and _has(evidence, queue, offset, seen.number)):
            what = f"offset {offset} of {queue} is that of messages {seen.number} and {number}"
            yield Violation(invariant=NAME, what=what, events=(seen.event, event))
    for (queue, offset), seen in owners.items():
        record = evidence.contents.get(queue, {}).get(offset)
        number_now = evidence.number(record.properties) if record is not None else seen.number
        forgets = evidence.may_forget(queue.broker)
        if number_now not in (None, seen.number) and not evidence.injected(
            queue.broker, forgets, seen.sent_s
        ):
            what = f"offset {offset} of {queue} is that of message {number_now} in the log"
            yield Violation(invariant=NAME, what=what, events=(seen.event,))


def _only_switched(faults: list[FaultInjected]) -> bool:
    return all(fault.name in PROMOTE for fault in faults)


def _has(evidence: Evidence, queue: Queue, offset: int, number: int) -> bool:
    """Say whether a message still has its offset: then no switch gave it free."""
    record = evidence.contents.get(queue, {}).get(offset)
    return record is not None and evidence.number(record.properties) == number


def _dense(evidence: Evidence) -> Iterator[Violation]:
    for broker, store in (*evidence.stores.items(), *evidence.slave_stores.items()):
        if store.gaps:
            continue  # "files agree" judges the gap
        ends: dict[tuple[str, int], int] = {}
        for record in store.records:
            if not record.is_in_queue:
                continue
            key = (record.topic, record.queue_id)
            wanted = ends.get(key, record.queue_offset)
            if record.queue_offset != wanted:
                what = (
                    f"in {broker}'s log offset {record.queue_offset} of {record.topic}/{record.queue_id} "
                    f"follows offset {wanted - 1}"
                )
                yield Violation(invariant=NAME, what=what)
            ends[key] = record.queue_offset + 1


def _never_back(evidence: Evidence) -> Iterator[Violation]:
    seen: dict[Queue, list[QueueSeen]] = {}
    for event in evidence.history.of(QueueSeen):
        seen.setdefault(event.queue, []).append(event)
    for queue, all_seen in seen.items():
        for earlier, later in pairwise(all_seen):
            forgets = (*evidence.may_forget(queue.broker), *WIPE)
            faults = evidence.injected(queue.broker, forgets, 0.0, later.at_s)
            kept = [
                each.queue_ends.get(str(queue), 0)
                for each in evidence.promoted
                if each.broker == queue.broker and earlier.at_s <= each.at_s <= later.at_s
            ]
            if faults and not (_only_switched(faults) and later.max_offset < min(kept, default=0)):
                continue
            if later.max_offset < earlier.max_offset or later.min_offset < earlier.min_offset:
                what = f"{queue} went back"
                yield Violation(invariant=NAME, what=what, events=(earlier, later))

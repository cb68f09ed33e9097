"""Messages keep their order in a queue, and orderly consumers that of a queue and of a key (Java:
ConsumeMessageOrderlyService, MessageQueueSelector).

- A message that was acknowledged before the send of another began, in the same queue, lies before it.
- An orderly group is given a message only when it is done with all before it in the queue that its
  filter wants: consumed with success, or out of tries (it then goes to the dead letters).
- First successes of the messages of one order key come in the order of their numbers, as far as they
  lie in one queue.

Messages that a listener is given in one call (at one time) are one step of the queue.

Leniencies, and why: see `judged_from` in evidence.py (queues that lost their end, resets of offsets). Two
members may work on one queue at once when the lock of a paused one ran out, as in Java; so that is not
judged, the order of what they finish is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Stored, Violation
from tests.simulation.history import (
    Consumed,
    Delivered,
    GroupConfigured,
    Queue,
)

NAME: Final = "order"


def judge(evidence: Evidence) -> Iterator[Violation]:
    yield from _sends(evidence)
    orderly = [group for group in evidence.groups.values() if group.is_orderly]
    for group in orderly:
        queues = [
            queue
            for name, queue in evidence.delivered_from
            if name == group.group and queue.topic == group.topic
        ]
        for queue in queues:
            yield from _deliveries(evidence, group, queue)
        yield from _keys(evidence, group)


def _sends(evidence: Evidence) -> Iterator[Violation]:
    queues: dict[Queue, list[Stored]] = defaultdict(list)
    for stored in evidence.stored:
        # What was lost has given its offset free; a flipped bit in a queue may have done that, too.
        is_doubtful = evidence.may_be_damaged(stored.broker, stored.acknowledged.at_s)
        if stored.is_plain and stored.record is not None and not is_doubtful:
            queues[stored.acknowledged.queue].append(stored)
    for queue, all_stored in queues.items():
        first: Stored | None = None
        for stored in sorted(all_stored, key=lambda each: -each.offset):
            if first is not None and first.acknowledged.at_s < stored.started.at_s:
                what = (
                    f"message {stored.outgoing.number} lies before message {first.outgoing.number} in "
                    f"{queue}, though it was sent later"
                )
                events = (first.started, first.acknowledged, stored.started, stored.acknowledged)
                yield Violation(invariant=NAME, what=what, events=events)
            if first is None or stored.acknowledged.at_s < first.acknowledged.at_s:
                first = stored


def _deliveries(evidence: Evidence, group: GroupConfigured, queue: Queue) -> Iterator[Violation]:
    first = evidence.judged_from(group, queue)
    if first is None:
        return
    wanted = [
        (offset, number)
        for offset, record in sorted(evidence.contents.get(queue, {}).items())
        if offset >= first
        and (number := evidence.number(record.properties)) is not None
        and evidence.wants(group.group, group.topic, number)
    ]
    done: set[int] = set()
    reported: set[int] = set()
    next_index = 0
    by_delivery = {each.delivery: each for each in evidence.delivered_from[group.group, queue]}
    call: tuple[str, float] | None = None
    in_hand: set[int] = set()
    for event in evidence.history.events:
        if isinstance(event, Consumed) and event.delivery in by_delivery:
            delivery = by_delivery[event.delivery]
            if _is_done(event, delivery, group):
                done.add(delivery.offset)
            while next_index < len(wanted) and wanted[next_index][0] in done:
                next_index += 1
        elif isinstance(event, Delivered) and event.delivery in by_delivery:
            if call != (event.member, event.at_s):
                call = (event.member, event.at_s)
                in_hand.clear()
            rest = (each for each in wanted[next_index:] if each[0] not in done | in_hand)
            due = next(rest, (math.inf, 0))
            in_hand.add(event.offset)
            if event.offset > due[0] and event.offset not in reported:
                reported.add(event.offset)
                what = (
                    f"orderly group {group.group} is given offset {event.offset} of {queue} before it is "
                    f"done with offset {due[0]} (message {due[1]})"
                )
                yield Violation(invariant=NAME, what=what, events=(event,))


def _is_done(verdict: Consumed, delivery: Delivered, group: GroupConfigured) -> bool:
    return verdict.verdict == "success" or delivery.reconsume_times >= group.max_reconsume_times


def _keys(evidence: Evidence, group: GroupConfigured) -> Iterator[Violation]:
    """Compare the first successes of each order key in each queue."""
    last: dict[tuple[str, Queue], tuple[int, Delivered]] = {}
    succeeded: set[int] = set()
    by_delivery = {each.delivery: each for each in evidence.deliveries}
    acknowledged = {each.outgoing.number for each in evidence.stored if each.record is not None}
    for event in evidence.history.of(Consumed):
        delivery = by_delivery.get(event.delivery)
        if delivery is None or delivery.group != group.group or event.verdict != "success":
            continue
        number = evidence.number(delivery.properties)
        if number is None or number in succeeded or number not in acknowledged:
            continue
        succeeded.add(number)
        sent = evidence.outgoing[number][1]
        judged_from = evidence.judged_from(group, delivery.queue)
        if sent.order_key is None or sent.order_number is None or judged_from is None:
            continue
        if delivery.offset < judged_from or delivery.queue.topic != group.topic:
            continue
        key = (sent.order_key, delivery.queue)
        before = last.get(key)
        if before is not None and before[0] > sent.order_number:
            what = (
                f"orderly group {group.group} consumed number {sent.order_number} of key "
                f"{sent.order_key} after number {before[0]}"
            )
            yield Violation(invariant=NAME, what=what, events=(before[1], delivery, event))
        if before is None or before[0] < sent.order_number:
            last[key] = (sent.order_number, delivery)

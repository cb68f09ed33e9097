"""In a live run every group that has a member has consumed every message that its filter wants, with
success, or has it in its dead letters (RocketMQ's promise to consumers: at least once).

Owed are all messages that lie in the topic's queues in the log, also those whose send failed or was
never answered. Of a delayed message and of a committed transaction that are the records in their own
topic; in addition every acknowledged delayed message that still waits in the log must have come there.

A broadcasting group owes its messages to each member, from the first that the member was given of each
queue (`from_first`: from the first of all). A member that had QUIET_S seconds without a fault before it
stopped, or the run ended, has been given all that was acknowledged before them. A failed listener of such
a group is not called again, so a delivery is enough.

Leniencies, and why: see `judged_from` in evidence.py. Retries are sent back with WAIT=false, and so may be
lost with the end of a log; whoever failed before such a fault is not judged. A recalled message does not
come. Of groups that pop this holds only where a member sent a message back and acknowledged it: their brokers
give up no message before its copy is as safe as what it was copied from.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    Evidence,
    Violation,
    dlq_topic,
)
from tests.simulation.history import (
    Delivered,
    GroupConfigured,
    MemberStarted,
    MemberStopped,
    MessageRecalled,
    Queue,
)

NAME: Final = "delivered at least once"
# Routes are asked for every 30 s, queues shared out every 20 s, a lost pull is noticed after 30 s.
QUIET_S: Final = 120.0


def judge(evidence: Evidence) -> Iterator[Violation]:
    if not evidence.live:
        return
    joined = {(each.group, each.topic) for each in evidence.history.of(MemberStarted)}
    for group in evidence.groups.values():
        if (group.group, group.topic) not in joined:
            continue
        if group.is_broadcasting:
            yield from _to_members(evidence, group)
            continue
        for owed in _owed(evidence, group):
            yield from _to_group(evidence, group, *owed)
    yield from _still_waiting(evidence)


def _owed(evidence: Evidence, group: GroupConfigured) -> Iterator[tuple[Queue, int, int]]:
    """Give queue, message and offset of what a group is owed."""
    for queue, contents in sorted(evidence.contents.items()):
        first = evidence.judged_from(group, queue) if queue.topic == group.topic else None
        if first is None:
            continue
        for offset, record in contents.items():
            number = evidence.number(record.properties)
            if number is None or offset < first:
                continue
            if evidence.wants(group.group, group.topic, number):
                yield queue, number, offset


def _to_group(
    evidence: Evidence, group: GroupConfigured, queue: Queue, number: int, offset: int
) -> Iterator[Violation]:
    deliveries = evidence.delivered.get((group.group, number), [])
    if any(evidence.succeeded(each) for each in deliveries) or _is_dead(evidence, group, number):
        return
    send = evidence.outgoing[number][0]
    if not deliveries:
        what = f"message {number} (offset {offset} of {queue}) was never delivered to {group.group}"
    elif _retry_may_be_lost(evidence, group, deliveries):
        return
    else:
        what = f"message {number} was never consumed by {group.group}, and is no dead letter"
    yield Violation(invariant=NAME, what=what, events=(send, *deliveries))


def _to_members(evidence: Evidence, group: GroupConfigured) -> Iterator[Violation]:
    stopped = {each.member: each for each in evidence.history.of(MemberStopped)}
    known_s = {
        each.outgoing.number: each.acknowledged.at_s for each in evidence.stored if each.is_plain
    }
    seen: dict[str, dict[Queue, set[int]]] = defaultdict(lambda: defaultdict(set))
    for delivery in evidence.deliveries:
        seen[delivery.member][delivery.queue].add(delivery.offset)
    owed = list(_owed(evidence, group))
    for member in evidence.history.of(MemberStarted):
        stop = stopped.get(member.member)
        quiet_s = (evidence.end_s if stop is None else stop.at_s) - QUIET_S
        if (member.group, member.topic) != (group.group, group.topic) or member.at_s > quiet_s:
            continue
        if any(quiet_s <= fault.at_s <= quiet_s + QUIET_S for fault in evidence.faults):
            continue
        for queue, number, offset in owed:
            of_queue = seen[member.member][queue]
            first = 0 if group.from_first else min(of_queue, default=math.inf)
            if known_s.get(number, math.inf) > quiet_s or offset < first or offset in of_queue:
                continue
            send = evidence.outgoing[number][0]
            what = (
                f"message {number} (offset {offset} of {queue}) was not delivered to member "
                f"{member.member} of the broadcasting group {group.group}"
            )
            events = (send, member) if stop is None else (send, member, stop)
            yield Violation(invariant=NAME, what=what, events=events)


def _is_dead(evidence: Evidence, group: GroupConfigured, number: int) -> bool:
    topic = dlq_topic(group.group)
    return any(record.topic == topic for _, record in evidence.records.get(number, ()))


def _retry_may_be_lost(
    evidence: Evidence, group: GroupConfigured, deliveries: list[Delivered]
) -> bool:
    """Say whether a fault took the end of a log after the message was sent back there.

    A popped message comes again from its own queue, unless its member, which had sent it back, has acknowledged it.
    """
    if group.pops and not any(
        used.use == "ack" for used in evidence.handles[deliveries[-1].delivery]
    ):
        return False
    return any(
        evidence.injected(broker, evidence.may_forget(broker), deliveries[-1].at_s)
        for broker in evidence.brokers
    )


def _still_waiting(evidence: Evidence) -> Iterator[Violation]:
    recalled = {each.send for each in evidence.history.of(MessageRecalled)}
    for stored in evidence.stored:
        record, number = stored.record, stored.outgoing.number
        if record is None or record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            continue
        came = any(each.topic == stored.started.topic for _, each in evidence.records[number])
        if not came and stored.started.send not in recalled:
            what = f"message {number} waits in {record.topic} and never came to its topic"
            events = (stored.started, stored.acknowledged)
            yield Violation(invariant=NAME, what=what, events=events)

"""Brokers count each delivery of a popped message once (docs/internals/pop.md).

- A message has at most one copy for its next delivery: the same place of a queue is copied once, with one
  delivery more.
- A place of a queue is handed out once, unless it is popped in order. Then each time counts one more, or
  the same for an attempt that is repeated.
- A message becomes a dead letter in place of the delivery behind the last one: with `max_reconsume_times`
  and one more. That holds as well for one that a push consumer asks for.

Leniencies, and why: a broker that lost the end of its log, or its tables, may have lost the copy, the pop,
or how often the group wants a message to be tried; see `may_have_lost`. Pops are told apart by their
broker's time, so one with a wrong clock is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import (
    PROMOTE,
    WIPE,
    WRONG_CLOCK,
    Evidence,
    Violation,
    dlq_topic,
    is_pop_copy,
    pop_retry_topic,
)
from tests.simulation.history import Delivered, GroupConfigured, Queue
from tests.simulation.store_reader import Record

NAME: Final = "pops counted"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for group in evidence.groups.values():
        if group.pops:
            yield from _copies(evidence, group)
    for (name, queue), deliveries in evidence.delivered_from.items():
        topic = evidence.outgoing_topic(deliveries[0]) if deliveries else ""
        configured = evidence.groups.get((name, topic))
        if configured is not None and configured.pops:
            yield from _handed_out(evidence, configured, queue, deliveries)


def _copies(evidence: Evidence, group: GroupConfigured) -> Iterator[Violation]:
    retry, dead = pop_retry_topic(group.group, group.topic), dlq_topic(group.group)
    for broker, store in evidence.stores.items():
        has_lost_tables = bool(evidence.injected(broker, ("lose_tables", *WIPE, *PROMOTE)))
        first: dict[int, int] = {}
        for record in store.records:
            if record.topic not in (retry, dead):
                continue
            number = evidence.number(record.properties)
            if number is None or evidence.outgoing[number][0].topic != group.topic:
                continue
            if not is_pop_copy(record):
                yield from _asked_for(group, number, record, broker)
                continue
            original = store.by_position.get(record.prepared_offset)
            at = f"at {record.position} of {broker}"
            if original is not None and record.reconsume_times != original.reconsume_times + 1:
                what = (
                    f"the copy of message {number} {at} counts {record.reconsume_times} deliveries, its "
                    f"original {original.reconsume_times}"
                )
                yield Violation(invariant=NAME, what=what)
            before = first.setdefault(record.prepared_offset, record.position)
            if before != record.position:
                what = f"message {number} has a second copy {at}, the first one is at {before}"
                yield Violation(invariant=NAME, what=what)
            is_over = record.reconsume_times > group.max_reconsume_times
            if is_over is not (record.topic == dead) and not has_lost_tables:
                what = (
                    f"the copy of message {number} {at} is in {record.topic} with "
                    f"{record.reconsume_times} deliveries, the last is {group.max_reconsume_times}"
                )
                yield Violation(invariant=NAME, what=what)


def _asked_for(
    group: GroupConfigured, number: int, record: Record, broker: str
) -> Iterator[Violation]:
    """Judge a dead letter that a push consumer asked for: it names its own limit."""
    if (
        record.topic == dlq_topic(group.group)
        and record.reconsume_times <= group.max_reconsume_times
    ):
        what = (
            f"message {number} is a dead letter at {record.position} of {broker} with "
            f"{record.reconsume_times} deliveries, the last is {group.max_reconsume_times}"
        )
        yield Violation(invariant=NAME, what=what)


def _handed_out(
    evidence: Evidence, group: GroupConfigured, queue: Queue, deliveries: list[Delivered]
) -> Iterator[Violation]:
    if evidence.injected(queue.broker, WRONG_CLOCK):
        return
    last: dict[int, Delivered] = {}
    for delivery in evidence.in_order_of_pops(deliveries):
        before = last.get(delivery.offset)
        last[delivery.offset] = delivery
        if before is None or evidence.may_have_lost(queue.broker, before.at_s, waited=False):
            continue
        times, known = delivery.reconsume_times, before.reconsume_times
        # Deliveries whose answer was lost are counted, too.
        if times < known if group.is_orderly else True:
            what = (
                f"offset {delivery.offset} of {queue} is popped by {group.group} with {times} deliveries "
                f"behind it, after {known}"
            )
            yield Violation(invariant=NAME, what=what, events=(before, delivery))

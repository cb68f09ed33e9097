"""A delayed message never comes early, by the broker's clock, and a retry not before its level's time
(Java: ScheduleMessageService, TimerMessageStore, AbstractSendMessageProcessor: level 3 + reconsumeTimes).

- In the log: the record of a delivered message was stored at least its delay after the record that
  waited in SCHEDULE_TOPIC_XXXX. Both times are the broker's own, so a clock that is wrong but steady
  changes nothing.
- In the world's time, where no clock of the broker was touched: a delivery is at least the delay after
  the send began, a retry at least its level's delay after the verdict that asked for it.

Leniency: after a clock of the broker was set back, or drifts, what waits may come at once: Java's
correctDeliverTimestamp does so on purpose, lest it waits for ever. `deliver_at_ms` is a time of the
wall, so only a delivery's stored time is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import (
    SCHEDULE_TOPIC,
    WRONG_CLOCK,
    Evidence,
    Violation,
    retry_topic,
)
from tests.simulation.history import AnyEvent, BrokerConfigured, Delivered, Outgoing
from tests.simulation.store_reader import Record

NAME: Final = "delays never early"
# Times of the log are whole ms, those of the world are not.
_ROUNDING_S: Final = 0.001
_FIRST_RETRY_LEVEL: Final = 3


def judge(evidence: Evidence) -> Iterator[Violation]:
    steady = [each for each in evidence.brokers if not evidence.injected(each, WRONG_CLOCK)]
    for number, records in evidence.records.items():
        for broker in steady:
            of_broker = [record for name, record in records if name == broker]
            yield from _log(evidence, evidence.brokers[broker], number, of_broker)
    for (group, number), deliveries in evidence.delivered.items():
        for index, delivery in enumerate(deliveries):
            # A retry was stored where its message lay, unless the client sent it to another broker.
            if any(evidence.injected(each, WRONG_CLOCK) for each in evidence.brokers):
                break
            if delivery.reconsume_times == 0:
                yield from _first(evidence, number, delivery)
            elif delivery.queue.topic == retry_topic(group):
                yield from _retry(evidence, number, delivery, deliveries[:index])


def _log(
    evidence: Evidence, configured: BrokerConfigured, number: int, records: list[Record]
) -> Iterator[Violation]:
    send, sent = evidence.outgoing[number]
    waiting = [record for record in records if record.topic == SCHEDULE_TOPIC]
    for record in records:
        origin = _origin(record, waiting)
        if origin is None:
            continue
        early_ms = origin.store_ms + _level_ms(configured, origin) - record.store_ms
        if early_ms > 0:
            what = (
                f"message {number} was delivered to {record.topic} {early_ms} ms early by the clock of "
                f"{configured.broker}"
            )
            yield Violation(invariant=NAME, what=what, events=(send,))
    if sent.deliver_at_ms is not None:
        for record in records:
            if record.topic == send.topic and record.store_ms < sent.deliver_at_ms:
                what = f"message {number} was delivered before its time {sent.deliver_at_ms}"
                yield Violation(invariant=NAME, what=what, events=(send,))


def _origin(record: Record, waiting: list[Record]) -> Record | None:
    """Return the last record that waited for the topic of this one, before it."""
    found = None
    for each in waiting:
        if (
            each.position < record.position
            and record.topic != SCHEDULE_TOPIC
            and each.properties.get("REAL_TOPIC") == record.topic
            and each.reconsume_times == record.reconsume_times
        ):
            found = each if found is None else min(found, each, key=lambda one: one.position)
    return found


def _level_ms(configured: BrokerConfigured, record: Record) -> int:
    return configured.delay_levels_ms[record.queue_id]


def _delay_ms(configured: BrokerConfigured, sent: Outgoing) -> int:
    if sent.delay_level:
        levels = configured.delay_levels_ms
        return levels[min(sent.delay_level, len(levels)) - 1]
    return sent.delay_ms or 0


def _first(evidence: Evidence, number: int, delivery: Delivered) -> Iterator[Violation]:
    send, sent = evidence.outgoing[number]
    configured = evidence.brokers.get(delivery.queue.broker)
    if configured is None or not sent.is_delayed:
        return
    yield from _compare(
        number, _delay_ms(configured, sent) / 1000, send.at_s, delivery, (send, delivery)
    )


def _retry(
    evidence: Evidence, number: int, delivery: Delivered, earlier: list[Delivered]
) -> Iterator[Violation]:
    configured = evidence.brokers.get(delivery.queue.broker)
    if any((each.queue, each.offset) == (delivery.queue, delivery.offset) for each in earlier):
        return  # tried again in place, 5 s later, since it could not be sent back
    asked = [
        verdict
        for each in earlier
        if each.reconsume_times == delivery.reconsume_times - 1
        and (verdict := evidence.verdict(each)) is not None
        and verdict.verdict != "success"
        and verdict.at_s <= delivery.at_s
    ]
    # Without a verdict the client's time limit (15 minutes) sent the message back.
    if configured is None or not asked:
        return
    # Two copies of a message, of which the later delivered one may have its verdict first.
    first = min(asked, key=lambda each: each.at_s)
    levels = configured.delay_levels_ms
    level = first.delay_level or _FIRST_RETRY_LEVEL + delivery.reconsume_times - 1
    delay_s = levels[min(level, len(levels)) - 1] / 1000
    yield from _compare(number, delay_s, first.at_s, delivery, (first, delivery))


def _compare(
    number: int,
    delay_s: float,
    since_s: float,
    delivery: Delivered,
    events: tuple[AnyEvent, ...],
) -> Iterator[Violation]:
    early_s = since_s + delay_s - delivery.at_s
    if early_s > _ROUNDING_S:
        what = (
            f"delivery {delivery.reconsume_times} of message {number} to {delivery.group} came "
            f"{early_s:.3f} s early"
        )
        yield Violation(invariant=NAME, what=what, events=events)

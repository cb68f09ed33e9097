"""A message becomes a dead letter after its last try, and only then (Java:
AbstractSendMessageProcessor.consumerSendMsgBack, group.retryMaxTimes).

- A message in `%DLQ%group` was delivered to the group with `max_reconsume_times`, without success, or a
  listener asked for a dead letter (delay level -1).
- In a live run a message whose last try failed, and which never succeeded, is in `%DLQ%group`.

Leniencies, and why: the last try counts without its verdict (see "retries counted"); a broker that was
wiped, or whose log lost its end, may have lost the letter, since it is sent back with WAIT=false: nobody
waits for the disk then. Broadcasting groups have neither retries nor dead letters. Of groups that pop see "pops
counted".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation, dlq_topic
from tests.simulation.history import Delivered, GroupConfigured

NAME: Final = "dead letters after the last try"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for group in evidence.groups.values():
        if group.is_broadcasting or group.pops:
            continue
        letters = _letters(evidence, group)
        for number, brokers in sorted(letters.items()):
            deliveries = evidence.delivered.get((group.group, number), [])
            if not any(_is_last(evidence, group, each) for each in deliveries):
                what = (
                    f"message {number} is a dead letter of {group.group} at {', '.join(brokers)} "
                    "before its last try"
                )
                events = (evidence.outgoing[number][0], *deliveries)
                yield Violation(invariant=NAME, what=what, events=events)
        if evidence.live:
            yield from _missing(evidence, group, letters)


def _letters(evidence: Evidence, group: GroupConfigured) -> dict[int, list[str]]:
    topic = dlq_topic(group.group)
    found: dict[int, list[str]] = {}
    for number, records in evidence.records.items():
        brokers = [broker for broker, record in records if record.topic == topic]
        if brokers and evidence.outgoing[number][0].topic == group.topic:
            found[number] = brokers
    return found


def _is_last(evidence: Evidence, group: GroupConfigured, delivery: Delivered) -> bool:
    verdict = evidence.verdict(delivery)
    if verdict is not None and verdict.delay_level < 0:
        return True
    if delivery.reconsume_times < group.max_reconsume_times:
        return False
    return verdict is None or verdict.verdict != "success"


def _missing(
    evidence: Evidence, group: GroupConfigured, letters: dict[int, list[str]]
) -> Iterator[Violation]:
    for (name, number), deliveries in evidence.delivered.items():
        if name != group.group or number in letters:
            continue
        if evidence.outgoing[number][0].topic != group.topic:
            continue
        last = [each for each in deliveries if _is_last(evidence, group, each)]
        if not last or any(evidence.succeeded(each) for each in deliveries):
            continue
        if any(evidence.verdict(each) is None for each in last[-1:]):
            continue
        if _may_be_lost(evidence, last[-1]):
            continue
        what = f"message {number} had its last try in {group.group} and is no dead letter"
        yield Violation(invariant=NAME, what=what, events=tuple(deliveries))


def _may_be_lost(evidence: Evidence, last: Delivered) -> bool:
    return any(
        evidence.injected(broker, evidence.may_forget(broker), last.at_s)
        for broker in evidence.brokers
    )

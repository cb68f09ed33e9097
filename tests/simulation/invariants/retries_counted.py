"""Each try of a message is counted by one, and none is skipped (Java: MessageExt.reconsumeTimes,
AbstractSendMessageProcessor.consumerSendMsgBack, ConsumeMessageOrderlyService).

- A delivery with n reconsume times comes behind one of the same message to the same group with n - 1,
  whose listener did not succeed. (A listener that works for longer than consumeTimeout, 15 minutes, has
  its message sent back, so an unfinished delivery counts as well, and one that succeeded later than
  that.)
- No delivery has more reconsume times than `max_reconsume_times`.
- Deliveries of retries come from the group's retry topic, or, tried again in place, from where the
  message was delivered before.

Leniencies, and why: dead letters that an operator sent once more (property REDRIVE_ID) begin again. A
consumer that cannot retire a message, or send it back, since a fault keeps it from its brokers, tries it
in place again and counts on (Java: checkReconsumeTimes, msgBackFailed). Of groups that pop see "pops
counted".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation, retry_topic
from tests.simulation.history import Delivered, GroupConfigured

NAME: Final = "retries counted"
CONSUME_TIMEOUT_S: Final = 900.0


def judge(evidence: Evidence) -> Iterator[Violation]:
    for (group, number), deliveries in evidence.delivered.items():
        topic = evidence.outgoing[number][0].topic
        configured = evidence.groups.get((group, topic))
        if configured is None or configured.pops:
            continue
        for index, delivery in enumerate(deliveries):
            if "REDRIVE_ID" in delivery.properties:
                continue
            yield from _judge(evidence, configured, number, delivery, deliveries[:index])


def _judge(
    evidence: Evidence,
    group: GroupConfigured,
    number: int,
    delivery: Delivered,
    earlier: list[Delivered],
) -> Iterator[Violation]:
    times = delivery.reconsume_times
    of_message = f"of message {number} to {group.group}"
    in_place = any(
        (each.queue, each.offset) == (delivery.queue, delivery.offset) for each in earlier
    )
    is_stuck = (group.is_orderly or in_place) and evidence.faults
    if times > group.max_reconsume_times and not is_stuck:
        what = f"delivery {times} {of_message}, where {group.max_reconsume_times} is the last"
        yield Violation(invariant=NAME, what=what, events=(delivery,))
    if times == 0:
        if delivery.queue.topic == retry_topic(group.group):
            what = f"a delivery {of_message} from the retry topic counts no retry"
            yield Violation(invariant=NAME, what=what, events=(delivery,))
        return
    before = [each for each in earlier if each.reconsume_times == times - 1]
    if not before:
        what = f"delivery {times} {of_message} comes without delivery {times - 1}"
        yield Violation(invariant=NAME, what=what, events=(*earlier[-1:], delivery))
    elif all(_is_over(evidence, each, delivery) for each in before):
        what = f"delivery {times} {of_message} comes though delivery {times - 1} succeeded"
        yield Violation(invariant=NAME, what=what, events=(*before, delivery))


def _is_over(evidence: Evidence, before: Delivered, delivery: Delivered) -> bool:
    """Say whether a try had succeeded, in time, before the next one came."""
    verdict = evidence.verdict(before)
    return (
        verdict is not None
        and verdict.verdict == "success"
        and verdict.at_s <= delivery.at_s
        and verdict.at_s - before.at_s < CONSUME_TIMEOUT_S
    )

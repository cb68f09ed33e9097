"""Messages that a group popped are never visible again before their time (docs/internals/pop.md).

- A copy that a broker made of a message for its next delivery, or as a dead letter, was stored no
  earlier than the time until which the message was hidden, by that broker's clock.
- What is popped again from the same queue, in order, was hidden until no later than that pop.

In order, a message that was acknowledged comes again with an earlier one that was not, as in Java, however long it
was hidden; see "acknowledged pops stay done" and "one batch of a queue at a time" for what must not be.

Leniencies, and why: a broker that lost the end of its log may have lost the pop, or the change of its
time, see `may_have_lost`; a change that was asked for and not answered may hold or not. A clock that is
set back, or differs between a master and its slave, makes times of one broker incomparable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import WRONG_CLOCK, Evidence, Violation
from tests.simulation.history import Delivered

NAME: Final = "popped is hidden"


def judge(evidence: Evidence) -> Iterator[Violation]:
    for (group, queue), deliveries in evidence.delivered_from.items():
        if evidence.injected(queue.broker, WRONG_CLOCK):
            continue
        configured = evidence.groups.get((group, queue.topic))
        in_order = configured is not None and configured.pops and configured.is_orderly
        contents = evidence.contents.get(queue, {})
        popped = evidence.in_order_of_pops(deliveries)
        for index, delivery in enumerate(popped):
            until_ms = evidence.hidden_until_ms(delivery)
            if until_ms is None or _is_lost(evidence, delivery):
                continue
            record = contents.get(delivery.offset)
            if record is not None:
                for copy in evidence.copies_of[queue.broker, record.position]:
                    if copy.store_ms < until_ms and _is_of(copy.topic, group):
                        yield _early(delivery, until_ms, copy.store_ms, ())
            if not (in_order and _is_acknowledged(evidence, delivery)):
                yield from _again(evidence, delivery, until_ms, popped[index + 1 :])


def _is_acknowledged(evidence: Evidence, delivery: Delivered) -> bool:
    return any(used.use == "ack" for used in evidence.handles[delivery.delivery])


def _again(
    evidence: Evidence, delivery: Delivered, until_ms: int, later: list[Delivered]
) -> Iterator[Violation]:
    for each in later:
        if each.offset != delivery.offset:
            continue
        popped_ms = evidence.popped[each.delivery].popped_ms
        # A repeated attempt gets its batch at once; it is told by the same member's count.
        is_repeated = each.reconsume_times == delivery.reconsume_times
        if popped_ms < until_ms and not is_repeated:
            yield _early(delivery, until_ms, popped_ms, (each,))
        return


def _early(
    delivery: Delivered, until_ms: int, visible_ms: int, again: tuple[Delivered, ...]
) -> Violation:
    what = (
        f"offset {delivery.offset} of {delivery.queue} was visible to {delivery.group} "
        f"{until_ms - visible_ms} ms before its time"
    )
    return Violation(invariant=NAME, what=what, events=(delivery, *again))


def _is_lost(evidence: Evidence, delivery: Delivered) -> bool:
    """Say whether the broker may have lost what it knew of a delivery, the answers to its changes, too."""
    times = [delivery.at_s]
    times += [used.at_s for used in evidence.handles[delivery.delivery] if used.done]
    return any(evidence.may_have_lost(delivery.queue.broker, at_s, waited=False) for at_s in times)


def _is_of(topic: str, group: str) -> bool:
    return topic == f"%DLQ%{group}" or topic.startswith(f"%RETRY%{group}_")

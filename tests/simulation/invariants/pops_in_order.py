"""A group that pops in order has one batch of a queue at a time (Java: ConsumerOrderInfoManager).

Before a queue is popped again, each message of the batch before was acknowledged, or its time was over; but
an attempt that is repeated gets its batch at once. In which order messages come is judged by "order".

Leniencies, and why: an acknowledgement counts from when it is asked for, and a change of times that was not
answered may hold or not. See `may_have_lost` for what a broker may have lost, and "popped is hidden" for
clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.simulation.evidence import WRONG_CLOCK, Evidence, Violation
from tests.simulation.history import Delivered, GroupConfigured, Queue

NAME: Final = "one batch of a queue at a time"
_EPOCH_MS: Final = 1_700_000_000_000
# A broker's clock (SteadyClock) begins at a whole ms of the wall clock, so it may be behind it by a part of one.
_CLOCK_MS: Final = 1


def judge(evidence: Evidence) -> Iterator[Violation]:
    for (name, queue), deliveries in evidence.delivered_from.items():
        group = evidence.groups.get((name, queue.topic))
        if group is None or not (group.pops and group.is_orderly):
            continue
        if not evidence.injected(queue.broker, WRONG_CLOCK):
            yield from _judge(evidence, group, queue, deliveries)


def _judge(
    evidence: Evidence, group: GroupConfigured, queue: Queue, deliveries: list[Delivered]
) -> Iterator[Violation]:
    batches: dict[int, list[Delivered]] = defaultdict(list)
    for each in deliveries:
        batches[evidence.popped[each.delivery].popped_ms].append(each)
    times = sorted(batches)
    for before_ms, popped_ms in pairwise(times):
        before, batch = batches[before_ms], batches[popped_ms]
        if evidence.may_have_lost(queue.broker, before[0].at_s, waited=False):
            continue
        counts = {each.offset: each.reconsume_times for each in batch}
        for each in before:
            if counts.get(each.offset) == each.reconsume_times:
                break  # the attempt is repeated
            if _blocks(evidence, each, popped_ms):
                what = (
                    f"{queue} is popped by {group.group} while offset {each.offset} of its last batch is "
                    "in flight"
                )
                yield Violation(invariant=NAME, what=what, events=(each, batch[0]))
                break


def _blocks(evidence: Evidence, delivery: Delivered, popped_ms: int) -> bool:
    """Say whether a message was in flight at a time of its broker."""
    until_ms = evidence.hidden_until_ms(delivery)
    if until_ms is None or until_ms <= popped_ms:
        return False
    return not any(
        used.use == "ack" and int(used.at_s * 1000) + _EPOCH_MS <= popped_ms + _CLOCK_MS
        for used in evidence.handles[delivery.delivery]
    )

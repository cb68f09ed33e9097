"""Acknowledged messages are not delivered again (docs/internals/pop.md).

After a broker agreed to the acknowledgement of a popped message it makes no copy of the message, and does
not hand it out from the same queue again: whatever is killed, and with SYNC_FLUSH whatever loses its power.
Without it the acknowledgements of the unflushed window may be lost.

Leniencies, and why: an acknowledgement that comes after the message's time is agreed to and does nothing,
as in Java, so one counts if its broker agreed before the time until which the message was hidden. For what a
broker may have lost see `may_have_lost`. A wrong clock makes the times incomparable, as does a broker that
was paused while it agreed. In order a message that was acknowledged behind one that was not comes again with it,
as in Java: so one is seen only if its batch begins with it. Where a log has lost its end, another message has the
offset. An answer to a pull comes from any offset that the group has committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import WRONG_CLOCK, Evidence, Violation
from tests.simulation.history import Delivered, HandleUsed

NAME: Final = "acknowledged pops stay done"
# The time of a node when that of the world is 0: `at_s` 0 is this time of every clock that is right.
_EPOCH_MS: Final = 1_700_000_000_000


def judge(evidence: Evidence) -> Iterator[Violation]:
    for (group, queue), deliveries in evidence.delivered_from.items():
        if evidence.injected(queue.broker, WRONG_CLOCK):
            continue
        contents = evidence.contents.get(queue, {})
        configured = evidence.groups.get((group, queue.topic))
        in_order = configured is not None and configured.pops and configured.is_orderly
        first_of: dict[int, int] = {}
        for each in deliveries if in_order else ():
            if (popped := evidence.popped.get(each.delivery)) is not None:
                first = first_of.get(popped.popped_ms, each.offset)
                first_of[popped.popped_ms] = min(first, each.offset)
        for index, delivery in enumerate(deliveries):
            done = _acknowledged(evidence, delivery)
            if done is None or evidence.may_have_lost(queue.broker, done.at_s, waited=True):
                continue
            again = next(
                (
                    each
                    for each in deliveries[index + 1 :]
                    if each.offset == delivery.offset
                    and each.body == delivery.body
                    and each.delivery in evidence.popped
                    and (popped_ms := evidence.popped[each.delivery].popped_ms)
                    > done.at_s * 1000 + _EPOCH_MS
                    and first_of.get(popped_ms, each.offset) == each.offset
                ),
                None,
            )
            record = contents.get(delivery.offset)
            if record is not None and record.body != delivery.body:
                record = None
            copies = [] if record is None else evidence.copies_of[queue.broker, record.position]
            is_copied = any(
                copy.topic.startswith((f"%RETRY%{group}_", f"%DLQ%{group}"))
                and copy.store_ms > done.at_s * 1000 + _EPOCH_MS
                for copy in copies
            )
            if again is not None or is_copied:
                what = (
                    f"offset {delivery.offset} of {queue} is delivered to {group} again after its "
                    "acknowledgement"
                )
                events = (delivery, done) if again is None else (delivery, done, again)
                yield Violation(invariant=NAME, what=what, events=events)


def _acknowledged(evidence: Evidence, delivery: Delivered) -> HandleUsed | None:
    """Return the acknowledgement that a broker agreed to in time."""
    if delivery.delivery not in evidence.popped:
        return None
    until_ms = evidence.hidden_until_ms(delivery)
    for used in evidence.handles[delivery.delivery]:
        if used.use == "ack" and used.done:
            in_time = until_ms is not None and used.at_s * 1000 + _EPOCH_MS < until_ms
            return used if in_time else None
    return None

"""A group's committed offset is never ahead of what it consumed (Java: ProcessQueue, OffsetStore:
"the offset below which all is consumed").

Every message below a committed offset, in a queue of the group's topic or of its retry topic, was
delivered to the group and its listener has ended, if the filter wants it. (A message that is to come
later has been sent back before the offset moves on.) In an orderly group it ended with success, or its
tries were over; what was popped in vain has a copy in the group's retry topic or dead letters. No offset lies behind the end of its queue. `OffsetSeen` and the broker's
consumerOffset.json both are judged.

Leniencies, and why: see `judged_from` in evidence.py. A listener that works for longer than consumeTimeout
(15 minutes) has its message sent back, and the offset moves on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation, pop_retry_topic, retry_topic
from tests.simulation.history import Delivered, GroupConfigured, OffsetSeen, Queue
from tests.simulation.invariants.retries_counted import CONSUME_TIMEOUT_S

NAME: Final = "commits behind consumption"


def judge(evidence: Evidence) -> Iterator[Violation]:
    last: dict[tuple[str, Queue], OffsetSeen] = {}
    for seen in (*evidence.history.of(OffsetSeen), *_in_files(evidence)):
        before = last.get((seen.group, seen.queue))
        last[seen.group, seen.queue] = seen
        if before is not None and before.offset == seen.offset:
            continue  # it was judged when less was consumed
        for group in evidence.groups.values():
            topics = (
                group.topic,
                retry_topic(group.group),
                pop_retry_topic(group.group, group.topic),
            )
            if seen.group == group.group and seen.queue.topic in topics:
                yield from _judge(evidence, group, seen)


def _in_files(evidence: Evidence) -> Iterator[OffsetSeen]:
    """Take what the state files say for what was seen at the end."""
    for broker, store in evidence.stores.items():
        for (group, topic, queue_id), offset in sorted(store.committed_offsets().items()):
            queue = Queue(topic, broker, queue_id)
            yield OffsetSeen(
                at_s=evidence.end_s, node=broker, group=group, queue=queue, offset=offset
            )


def _judge(evidence: Evidence, group: GroupConfigured, seen: OffsetSeen) -> Iterator[Violation]:
    first = evidence.judged_from(group, seen.queue)
    if group.is_broadcasting or seen.offset is None or first is None:
        return
    contents = evidence.contents.get(seen.queue, {})
    end = evidence.ends.get(seen.queue, seen.offset)
    forgets = evidence.may_forget(seen.queue.broker)
    if seen.offset > end and not evidence.injected(seen.queue.broker, forgets):
        what = f"{group.group} committed {seen.offset} of {seen.queue}, which ends at {end}"
        yield Violation(invariant=NAME, what=what, events=(seen,))
        return
    ended = {
        each.offset
        for each in evidence.delivered_from[group.group, seen.queue]
        if _has_ended(evidence, group, each, seen.at_s)
    }
    if group.pops:
        # The group's retry topic has what it popped in vain, whether or not the answer came.
        ended |= {
            offset
            for offset, record in contents.items()
            if evidence.copies_of.get((seen.queue.broker, record.position))
        }
    for offset, record in sorted(contents.items()):
        number = evidence.number(record.properties)
        if not first <= offset < seen.offset or number is None or offset in ended:
            continue
        send = evidence.outgoing[number][0]
        if send.topic != group.topic or not evidence.wants(group.group, group.topic, number):
            continue
        what = (
            f"{group.group} committed {seen.offset} of {seen.queue} before it had consumed offset "
            f"{offset} (message {number})"
        )
        yield Violation(invariant=NAME, what=what, events=(send, seen))
        return


def _has_ended(
    evidence: Evidence, group: GroupConfigured, delivery: Delivered, at_s: float
) -> bool:
    if delivery.at_s <= at_s - CONSUME_TIMEOUT_S and not group.is_orderly:
        return True
    verdict = evidence.verdict(delivery)
    if verdict is None or verdict.at_s > at_s:
        return False
    is_over = delivery.reconsume_times >= group.max_reconsume_times
    return not group.is_orderly or verdict.verdict == "success" or is_over

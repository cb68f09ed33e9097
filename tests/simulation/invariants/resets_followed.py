"""A group whose offsets an operator moved back, and was answered so, is given again what lies behind the
new offset (ours: Java forgets a reset whose answer to a pull is lost).

The answer is owed for each queue in which the group had been given messages from the new offset on before
the operator asked: the first of them that still lies in the log is delivered once more, to any member.

Leniencies, and why: a later move of the same group, done or not, replaces this one. A reset is not judged
where the broker lost the end of its log or its disk, or a slave took its place, from then on: offsets go
with it as `judged_from` in evidence.py says; nor within QUIET_S of the end of the run, nor where no member
of the group runs from then on for as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation
from tests.simulation.history import MemberStarted, MemberStopped, OffsetsReset, Queue

NAME: Final = "resets are followed"
# Routes are asked for every 30 s, queues shared out every 20 s, a lost pull is noticed after 30 s.
QUIET_S: Final = 120.0


def judge(evidence: Evidence) -> Iterator[Violation]:
    if not evidence.live:
        return
    for done in evidence.resets:
        group = evidence.groups.get((done.group, done.topic))
        if not done.done or group is None or group.is_broadcasting:
            continue
        asked = _asked(evidence, done)
        if _is_replaced(evidence, done, asked) or not _has_members(evidence, done):
            continue
        for (name, queue), delivered in evidence.delivered_from.items():
            offset = done.offsets.get(str(queue))
            if name != done.group or queue.topic != done.topic or offset is None:
                continue
            if _may_be_lost(evidence, queue, asked.at_s):
                continue
            before = [each for each in delivered if each.at_s < asked.at_s]
            owed = [each for each in before if each.offset >= max(offset, _begin(evidence, queue))]
            if not owed:
                continue
            first = min(owed, key=lambda each: each.offset)
            if not any(
                each.at_s >= asked.at_s and each.offset == first.offset for each in delivered
            ):
                what = (
                    f"{done.group} was moved back to {offset} of {queue}, and offset {first.offset}, "
                    "which it had been given before, was not delivered again"
                )
                yield Violation(invariant=NAME, what=what, events=(asked, done, first))


def _asked(evidence: Evidence, done: OffsetsReset) -> OffsetsReset:
    """Return the question that `done` answers: the last one of the same operator, to the same time."""
    return [
        each
        for each in evidence.resets
        if not each.done
        and (each.node, each.timestamp_ms) == (done.node, done.timestamp_ms)
        and each.at_s <= done.at_s
    ][-1]


def _is_replaced(evidence: Evidence, done: OffsetsReset, asked: OffsetsReset) -> bool:
    return any(
        (each.group, each.topic) == (done.group, done.topic)
        and each not in (done, asked)
        and each.at_s >= asked.at_s
        for each in evidence.resets
    )


def _has_members(evidence: Evidence, done: OffsetsReset) -> bool:
    """Say whether a member runs for long enough behind the reset."""
    stopped = {each.member: each.at_s for each in evidence.history.of(MemberStopped)}
    return any(
        (each.group, each.topic) == (done.group, done.topic)
        and stopped.get(each.member, evidence.end_s) - max(each.at_s, done.at_s) > QUIET_S
        for each in evidence.history.of(MemberStarted)
    )


def _may_be_lost(evidence: Evidence, queue: Queue, since_s: float) -> bool:
    broker = queue.broker
    if any(each.broker == broker and each.at_s >= since_s for each in evidence.promoted):
        return True
    return any(
        each.at_s >= since_s for each in evidence.injected(broker, evidence.may_forget(broker))
    )


def _begin(evidence: Evidence, queue: Queue) -> int:
    """Return the first offset of a queue that lies in the log at the end; retention may have taken some."""
    return min(evidence.contents.get(queue, {}), default=1 << 62)

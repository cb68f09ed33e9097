"""Say how far a group is behind, for all of its causes."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from cometmq.admin.explain.groups.group_facts import GroupFacts
from cometmq.admin.explain.inquiry import Reported, shortened
from cometmq.admin.explain.records import Evidence
from cometmq.admin.explain.texts import Said, Shown
from cometmq.admin.groups.records import QueueProgress
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.inspection import OffsetWrapper

MOST_EVIDENCE: Final = 5


def waits(facts: GroupFacts) -> str:
    """Say how many messages wait, and where."""
    behind = facts.behind()
    topics = Counter[str]()
    for progress, _ in behind:
        topics[progress.queue.topic] += progress.lag or 0
    where = shortened([f"{topic} {count}" for topic, count in topics.most_common()], 3)
    total = sum(topics.values())
    return Said.WAITS(count=total, where=where) if total else Said.NOTHING_WAITS()


def lag_evidence(facts: GroupFacts, queues: set[MessageQueue] | None = None) -> list[Evidence]:
    """Return the progress in the queues that are furthest behind."""
    chosen = (item for item in facts.behind() if queues is None or item[0].queue in queues)
    return [
        reported.shows(
            Shown.LAG(queue=progress.queue),
            Shown.PROGRESS(
                lag=progress.lag,
                consumed=_consumed(progress, reported),
                pulled=progress.pulled_offset,
                end=progress.broker_offset,
            ),
        )
        for progress, reported in islice(chosen, MOST_EVIDENCE)
    ]


def _consumed(
    progress: QueueProgress, reported: Reported[dict[MessageQueue, OffsetWrapper]]
) -> str:
    committed = reported.value[progress.queue].consumer_offset
    if committed == progress.consumer_offset:
        return str(committed)
    return Shown.AS_MEMBER_SAYS(own=progress.consumer_offset, committed=committed)

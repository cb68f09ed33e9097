"""The log says which topics and queues exist, and a table does not replace a fuller one
(docs/internals/replica-tables.md).

- A slave that was promoted, and a master that started without its tables or with older ones, has in its
  table each topic that its log has messages of, and that messages wait for, with all their queues. No run
  deletes a topic.
- What a slave's tables had at one look they have at the next one, whatever its master has lost: no run
  deletes a topic or a group, but retry topics and groups that a slave made by itself while its master was
  away give way to those of the master.

Leniencies: a master that an operator makes a slave has the tables of its new master, as its log loses what that
one lacks. So has a slave whose new master was promoted before a topic had reached it; no message of that topic is in
the new master's log. A wiped disk has no tables. A disk that fails, or is full, may not take what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import BAD_DISK, WIPE, Evidence, Violation
from tests.simulation.history import FaultInjected, MasterChanged, TopicsSeen

NAME: Final = "the log says what exists"
_MADE_BY_USE: Final = ("%RETRY%", "%DLQ%")


def judge(evidence: Evidence) -> Iterator[Violation]:
    before: dict[str, TopicsSeen] = {}
    for seen in evidence.history.of(TopicsSeen):
        yield from _lacking(evidence, seen)
        former = before.get(seen.server)
        if former is not None:
            yield from _vanished(evidence, former, seen)
        before[seen.server] = seen


def _lacking(evidence: Evidence, seen: TopicsSeen) -> Iterator[Violation]:
    if _is_bad(evidence, seen.server, 0.0, seen.at_s):
        return
    for topic, queues in (seen.in_log or {}).items():
        known = seen.readable.get(topic, 0)
        if known < queues:
            text = (
                f"{seen.server} has {known} queues of {topic}, and its log has messages of {queues}"
            )
            yield Violation(invariant=NAME, what=text, events=(seen,))
            return


def _vanished(evidence: Evidence, former: TopicsSeen, seen: TopicsSeen) -> Iterator[Violation]:
    master = evidence.master_at(seen.broker, seen.at_s)
    lost = any(
        fault.name == "lose_tables"
        for fault in evidence.history.of(FaultInjected)
        if fault.node == seen.server and fault.at_s <= seen.at_s
    )
    was_master = seen.server == seen.broker or any(
        change.server == seen.server and change.at_s <= seen.at_s
        for change in evidence.history.of(MasterChanged)
    )
    if (
        seen.server == master
        or was_master
        or lost
        or _is_bad(evidence, seen.server, former.at_s, seen.at_s)
    ):
        return
    gone = [
        topic
        for topic in former.readable.keys() - seen.readable.keys()
        if not topic.startswith(_MADE_BY_USE) and not _began_without(evidence, seen, master, topic)
    ]
    if gone:
        text = f"{seen.server} had {len(gone)} topics that it has not any more: {sorted(gone)[:3]}"
        yield Violation(invariant=NAME, what=text, events=(former, seen))


def _began_without(evidence: Evidence, seen: TopicsSeen, master: str | None, topic: str) -> bool:
    """Say whether the master of a slave was promoted and lacked the topic at its first look after that."""
    since_s = max(
        (
            each.at_s
            for each in evidence.switches
            if each.server == master and each.at_s <= seen.at_s
        ),
        default=None,
    )
    if since_s is None:
        return False
    looks = (each for each in evidence.history.of(TopicsSeen) if each.server == master)
    first = next((each for each in looks if each.at_s >= since_s), None)
    return first is not None and topic not in first.readable


def _is_bad(evidence: Evidence, server: str, since_s: float, until_s: float) -> bool:
    return bool(evidence.injected_at(server, (*WIPE, *BAD_DISK), since_s, until_s))

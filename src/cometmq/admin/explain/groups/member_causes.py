"""Judge by the reports of members why a group is behind: their queues, listeners, retries and filters.

Nothing here asks a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cometmq.admin.explain.groups.group_facts import NOT_ASKED, GroupFacts
from cometmq.admin.explain.groups.group_lag import MOST_EVIDENCE, lag_evidence, waits
from cometmq.admin.explain.inquiry import Reported, number, shortened
from cometmq.admin.explain.records import Cause, Reason
from cometmq.admin.explain.texts import Remedy, Said, Shown
from cometmq.admin.groups.records import QueueProgress, RunningInfo
from cometmq.model.names import is_retry_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.finding import Severity
from cometmq.protocol.bodies.consumers import ConsumeStatus, ProcessQueueInfo

# Java's defaults, for members that do not report their own.
_PULL_THRESHOLD: Final = 1000
_PULL_THRESHOLD_MIB: Final = 100
_MAX_SPAN: Final = 2000
# A member that joined so recently may still wait for queues that others give up.
_SETTLING_MS: Final = 40_000
# Of the messages consumed in the last minute, so many must have failed for a retry storm.
_STORM_SHARE: Final = 0.2
# Of the messages that wait, so many must be held by members for their listeners to be the cause.
_HELD_SHARE: Final = 0.5


def paused(facts: GroupFacts) -> Iterator[Reason]:
    owners = facts.owners()
    queues = {progress.queue for progress, _ in facts.behind()}
    late = {owners.get(queue) for queue in queues}
    paused = [
        fact for client, fact in facts.members.items() if fact.value.paused and client in late
    ]
    if paused:
        names = [fact.value.client_id for fact in paused]
        clients = set(names)
        theirs = {queue for queue in queues if owners.get(queue) in clients}
        yield Reason(
            Cause.MEMBER_PAUSED,
            Severity.ERROR,
            Said.MEMBER_PAUSED(
                count=len(paused), group=facts.group, members=shortened(names), waits=waits(facts)
            ),
            (
                *(fact.shows("paused", "true") for fact in paused[:MOST_EVIDENCE]),
                *lag_evidence(facts, theirs),
            ),
            Remedy.MEMBER_PAUSED(),
        )
    yield from _queues_paused(facts, owners, queues)


def _queues_paused(
    facts: GroupFacts, owners: Mapping[MessageQueue, str], behind: set[MessageQueue]
) -> Iterator[Reason]:
    """Judge members that have paused some of their queues or a topic, and consume the others."""
    resting = sorted(
        queue
        for queue in behind
        if (fact := facts.members.get(owners.get(queue, "")))
        and not fact.value.paused
        and str(queue) in fact.value.paused_queues
    )
    if resting:
        names = sorted({owners[queue] for queue in resting})
        reporters = [facts.members[name] for name in names][:MOST_EVIDENCE]
        yield Reason(
            Cause.MEMBER_PAUSED,
            Severity.ERROR,
            Said.QUEUES_PAUSED(
                count=len(resting),
                group=facts.group,
                members=shortened(names),
                queues=shortened([str(queue) for queue in resting], 3),
                waits=waits(facts),
            ),
            (
                *(
                    each.shows("pausedQueues", shortened(sorted(each.value.paused_queues)))
                    for each in reporters
                ),
                *lag_evidence(facts, set(resting)),
            ),
            Remedy.MEMBER_PAUSED(),
        )


def silent(facts: GroupFacts) -> Iterator[Reason]:
    left_out = [client for client, why in facts.silent.items() if why == NOT_ASKED]
    if left_out:
        yield Reason(
            Cause.NOT_REPORTED,
            Severity.WARNING,
            Said.MEMBERS_NOT_ASKED(
                count=len(left_out),
                all=len(facts.silent) + len(facts.members),
                group=facts.group,
            ),
            (),
            Remedy.MEMBERS_NOT_ASKED(),
        )
    silent = sorted(facts.silent.keys() - left_out)
    if silent:
        yield Reason(
            Cause.MEMBER_SILENT,
            Severity.WARNING,
            Said.MEMBER_SILENT(count=len(silent), group=facts.group, members=shortened(silent)),
            tuple(
                fact.shows(Shown.CONNECTED_MEMBERS(), len(fact.value.connection_set))
                for fact in list(facts.online.values())[:1]
            ),
            Remedy.MEMBER_SILENT(),
        )


# Queues and their owners


def ownerless(facts: GroupFacts) -> Iterator[Reason]:
    """Judge queues in which messages wait and that no member has."""
    if not facts.members or facts.silent or facts.pops:
        return
    owners = facts.owners()
    if not owners and all(_pulls_itself(fact.value) for fact in facts.members.values()):
        return  # Java's DefaultMQPullConsumer reports no queues
    lost = {
        p.queue
        for p, _ in facts.behind()
        if p.queue not in owners and facts.subscribes(p.queue.topic) is not False
    }
    if not lost:
        return
    names = shortened([str(queue) for queue in sorted(lost)], 3)
    found = list(facts.members.values())
    evidence = [
        *(each.shows(Shown.QUEUES_OF_MEMBER(), _queue_names(each.value)) for each in found),
    ][:MOST_EVIDENCE]
    refused = [
        each.shows("queuesNotBegun", text)
        for each in found
        if (text := each.value.properties.get("queuesNotBegun"))
    ]
    locked = any("holds the lock" in each.value for each in refused)
    started = max(number(_started(each.value), 0) for each in found)
    age_ms = facts.at_ms - started
    if locked or (facts.orderly and age_ms > _SETTLING_MS):
        yield Reason(
            Cause.QUEUE_LOCKED,
            Severity.ERROR,
            Said.QUEUE_LOCKED(count=len(lost), group=facts.group, queues=names),
            (*refused, *evidence, *lag_evidence(facts, lost)),
            Remedy.QUEUE_LOCKED(),
        )
    elif age_ms <= _SETTLING_MS:
        yield Reason(
            Cause.REBALANCING,
            Severity.WARNING,
            Said.REBALANCING(count=len(lost), queues=names, ago_s=max(0, age_ms) / 1000),
            (
                *(e.shows("PROP_CONSUMER_START_TIMESTAMP", _started(e.value)) for e in found[:2]),
                *refused,
                *evidence,
            ),
            Remedy.REBALANCING(),
        )
    else:
        yield Reason(
            Cause.QUEUE_WITHOUT_OWNER,
            Severity.ERROR,
            Said.QUEUE_WITHOUT_OWNER(count=len(lost), queues=names, group=facts.group),
            (*refused, *evidence, *lag_evidence(facts, lost)),
            Remedy.QUEUE_WITHOUT_OWNER(),
        )


def unlocked(facts: GroupFacts) -> Iterator[Reason]:
    """Judge queues of an orderly member that lost its lock."""
    lost = [
        (fact, progress.queue)
        for progress, fact, info in _held(facts)
        if fact.value.properties.get("PROP_CONSUMEORDERLY") == "true" and not info.locked
    ]
    if lost:
        names = shortened([str(queue) for _, queue in lost], 3)
        yield Reason(
            Cause.QUEUE_LOCKED,
            Severity.ERROR,
            Said.QUEUE_UNLOCKED(count=len(lost), queues=names),
            tuple(fact.shows(Shown.OF(figure="locked", of=queue), "false") for fact, queue in lost)[
                :MOST_EVIDENCE
            ],
            Remedy.QUEUE_UNLOCKED(),
        )


def _queue_names(info: RunningInfo) -> str:
    names = [str(queue) for queue in sorted(info.queues) if not is_retry_topic(queue.topic)]
    return shortened(names) or Shown.NONE()


def _started(info: RunningInfo) -> str:
    return info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")


def idle_members(facts: GroupFacts) -> Iterator[Reason]:
    behind = {p.queue.topic for p, _ in facts.behind() if not is_retry_topic(p.queue.topic)}
    topics = {topic for topic in behind if facts.subscribes(topic) is not False}
    owners = facts.owners()
    busy = {client for queue, client in owners.items() if queue.topic in topics}
    idle = [client for client in facts.members if client not in busy]
    queues = {p.queue for p, _ in facts.queues() if p.queue.topic in topics}
    if not topics or not idle or facts.silent or len(facts.members) <= len(queues) or facts.pops:
        return
    yield Reason(
        Cause.MORE_MEMBERS_THAN_QUEUES,
        Severity.WARNING,
        Said.MORE_MEMBERS_THAN_QUEUES(
            members=len(facts.members), queues=len(queues), idle=shortened(idle)
        ),
        tuple(
            facts.members[client].shows(
                Shown.QUEUES_OF_MEMBER(), _queue_names(facts.members[client].value)
            )
            for client in idle[:MOST_EVIDENCE]
        ),
        Remedy.MORE_MEMBERS_THAN_QUEUES(topic=sorted(topics)[0], queues=len(facts.members)),
    )


# Work of members


def in_flight(facts: GroupFacts) -> Iterator[Reason]:
    """Judge messages that members have popped and not acknowledged, in topics in which messages wait."""
    behind = {progress.queue.topic for progress, _ in facts.behind()}
    found = [
        (answer, topic)
        for answer in facts.popped.values()
        for topic in answer.value.topics
        if topic.in_flight and facts.topic in (None, topic.topic)
    ]
    if not found or not behind:
        return
    now_ms, oldest_ms = min(
        ((answer.value.now_ms, topic.oldest_popped_ms) for answer, topic in found),
        key=lambda each: each[1] - each[0],
    )
    yield Reason(
        Cause.INVISIBLE,
        Severity.WARNING,
        Said.GROUP_IN_FLIGHT(
            group=facts.group,
            count=sum(topic.in_flight for _, topic in found),
            waits=waits(facts),
            seconds=max(now_ms - oldest_ms, 0) / 1000,
        ),
        tuple(
            evidence
            for answer, topic in found[:MOST_EVIDENCE]
            for evidence in (
                answer.shows(Shown.IN_FLIGHT_OF(topic=topic.topic), topic.in_flight),
                answer.shows(Shown.AGAIN_OF(topic=topic.topic), topic.again_count),
            )
        ),
        Remedy.GROUP_IN_FLIGHT(),
    )


def _held(facts: GroupFacts) -> list[tuple[QueueProgress, Reported[RunningInfo], ProcessQueueInfo]]:
    """Return the queues in which messages wait, with their owners and the messages that these
    hold.
    """
    owners = facts.owners()
    return [
        (progress, facts.members[client], facts.members[client].value.queues[progress.queue])
        for progress, _ in facts.behind()
        if (client := owners.get(progress.queue)) is not None
    ]


def _full(fact: Reported[RunningInfo], info: ProcessQueueInfo) -> str:
    """Say which limit a member's flow control has reached in a queue, empty if none."""
    properties = fact.value.properties
    messages = number(properties.get("pullThresholdForQueue"), _PULL_THRESHOLD)
    if info.cached_msg_count > messages:
        return Shown.MESSAGES_HELD(count=info.cached_msg_count, limit=messages)
    mebibytes = number(properties.get("pullThresholdSizeForQueue"), _PULL_THRESHOLD_MIB)
    if info.cached_msg_size_in_mi_b >= mebibytes:
        return Shown.MEBIBYTES_HELD(count=info.cached_msg_size_in_mi_b, limit=mebibytes)
    span = info.cached_msg_max_offset - info.cached_msg_min_offset
    most = number(properties.get("consumeConcurrentlyMaxSpan"), _MAX_SPAN)
    if properties.get("PROP_CONSUMEORDERLY") != "true" and info.cached_msg_count and span > most:
        return Shown.SPAN_HELD(span=span, limit=most)
    return ""


def _failures(facts: GroupFacts) -> tuple[float, float]:
    """Return how many messages a second were consumed and failed in the last minute."""
    statuses = [s for fact in facts.members.values() for s in fact.value.topics.values()]
    return sum(s.consume_ok_tps for s in statuses), sum(s.consume_failed_tps for s in statuses)


def _is_storm(facts: GroupFacts) -> bool:
    well, failed = _failures(facts)
    return failed > 0 and failed >= _STORM_SHARE * (well + failed)


def slow(facts: GroupFacts) -> Iterator[Reason]:
    by_topic: dict[str, list[tuple[QueueProgress, Reported[RunningInfo], ProcessQueueInfo]]] = {}
    for progress, fact, info in _held(facts):
        if _pulls_itself(fact.value):
            continue
        consumable = fact.value.properties.get("PROP_CONSUMEORDERLY") != "true" or info.locked
        if info.cached_msg_count and consumable and not is_retry_topic(progress.queue.topic):
            by_topic.setdefault(progress.queue.topic, []).append((progress, fact, info))
    for topic, held in by_topic.items():
        count = sum(info.cached_msg_count for _, _, info in held)
        lag = sum(progress.lag or 0 for progress, _, _ in held)
        if count < _HELD_SHARE * lag and not any(_full(fact, info) for _, fact, info in held):
            continue
        members = {fact.value.client_id: fact for _, fact, _ in held}
        statuses = {c: t.value.topics.get(topic, ConsumeStatus()) for c, t in members.items()}
        done = sum(
            status.consume_ok_tps + status.consume_failed_tps for status in statuses.values()
        )
        slowest = max(status.consume_rt for status in statuses.values())
        threads = sum(_threads(fact.value) for fact in members.values())
        if facts.orderly and _is_storm(facts):
            continue
        # Brokers and members answer at different moments.
        lag = max(lag, count)
        held_by = {"members": len(members), "held": count, "lag": lag, "topic": topic}
        yield Reason(
            Cause.SLOW_LISTENER,
            Severity.ERROR,
            Said.HANGING_LISTENER(**held_by)
            if done <= 0
            else Said.SLOW_LISTENER(**held_by, ms=slowest, rate=done, threads=threads),
            (
                *(
                    fact.shows(
                        Shown.OF(figure="consumeRT, consumeOKTPS, consumeFailedTPS", of=topic),
                        f"{s.consume_rt:.0f} ms, {s.consume_ok_tps:.2f}, {s.consume_failed_tps:.2f}",
                    )
                    for client, fact in list(members.items())[:MOST_EVIDENCE]
                    for s in [statuses[client]]
                ),
                *(
                    fact.shows(
                        Shown.OF(figure="cachedMsgCount", of=progress.queue),
                        Shown.LAST_CONSUMED(count=info.cached_msg_count, when=_ago(facts, info)),
                    )
                    for progress, fact, info in held[:MOST_EVIDENCE]
                ),
            ),
            Remedy.SLOW_LISTENER(),
        )


def _pulls_itself(info: RunningInfo) -> bool:
    """Say whether the member's program decides when it takes messages, without a listener."""
    return info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_ACTIVELY"


def _threads(info: RunningInfo) -> int:
    return number(info.properties.get("PROP_THREADPOOL_CORE_SIZE"), 1)


def _ago(facts: GroupFacts, info: ProcessQueueInfo) -> str:
    if info.last_consume_timestamp <= 0:
        return Shown.NEVER()
    return Shown.SECONDS_AGO(seconds=max(0, facts.at_ms - info.last_consume_timestamp) / 1000)


def flow_controlled(facts: GroupFacts) -> Iterator[Reason]:
    full = [
        (progress, fact, text)
        for progress, fact, info in _held(facts)
        if (text := _full(fact, info)) and not _pulls_itself(fact.value)
    ]
    if full:
        yield Reason(
            Cause.FLOW_CONTROLLED,
            Severity.WARNING,
            Said.FLOW_CONTROLLED(count=len(full)),
            tuple(
                fact.shows(Shown.HELD(queue=progress.queue), text)
                for progress, fact, text in full[:MOST_EVIDENCE]
            ),
            Remedy.FLOW_CONTROLLED(),
        )


def pull_failures(facts: GroupFacts) -> Iterator[Reason]:
    reported = [
        (each, text)
        for each in facts.members.values()
        if (text := each.value.properties.get("pullFailures"))
    ]
    if not reported:
        return
    throttled = all("FLOW_CONTROL" in text or "SYSTEM_BUSY" in text for _, text in reported)
    names = shortened([each.value.client_id for each, _ in reported], 3)
    if throttled:
        yield Reason(
            Cause.PULLS_THROTTLED,
            Severity.ERROR,
            Said.PULLS_THROTTLED(members=names, refusal=reported[0][1]),
            tuple(each.shows("pullFailures", text) for each, text in reported[:MOST_EVIDENCE]),
            Remedy.PULLS_THROTTLED(),
        )
    else:
        yield Reason(
            Cause.PULLS_REFUSED,
            Severity.ERROR,
            Said.PULLS_REFUSED(members=names, refusal=reported[0][1]),
            tuple(each.shows("pullFailures", text) for each, text in reported[:MOST_EVIDENCE]),
            Remedy.PULLS_REFUSED(),
        )


def retries(facts: GroupFacts) -> Iterator[Reason]:
    if not _is_storm(facts):
        return
    well, failed = _failures(facts)
    evidence = [
        fact.shows(
            Shown.OF(figure="consumeFailedTPS, consumeOKTPS, consumeFailedMsgs", of=topic),
            f"{s.consume_failed_tps:.2f}, {s.consume_ok_tps:.2f}, {s.consume_failed_msgs}",
        )
        for fact in facts.members.values()
        for topic, s in fact.value.topics.items()
        if s.consume_failed_msgs or s.consume_failed_tps
    ][:MOST_EVIDENCE]
    share = failed / (well + failed)
    if facts.orderly:
        yield Reason(
            Cause.QUEUE_SUSPENDED,
            Severity.ERROR,
            Said.QUEUE_SUSPENDED(group=facts.group, share=share, waits=waits(facts)),
            (*evidence, *lag_evidence(facts)),
            Remedy.QUEUE_SUSPENDED(),
        )
        return
    evidence += [
        fact.shows(
            Shown.OF(figure="SNDBCK_PUT_NUMS", of=topic),
            Shown.IN_LAST_MINUTE(count=fact.value.stats_minute.sum),
        )
        for (_, topic), fact in facts.sent_back.items()
        if fact.value.stats_minute.sum
    ]
    retry = retry_topic(facts.group)
    waiting = sum(p.lag or 0 for p, _ in facts.behind() if p.queue.topic == retry)
    yield Reason(
        Cause.RETRY_STORM,
        Severity.ERROR,
        Said.RETRY_STORM(share=share, waiting=waiting),
        tuple(evidence),
        Remedy.RETRY_STORM(),
    )


def filtered(facts: GroupFacts) -> Iterator[Reason]:
    looked = sum(fact.value.looked_at for fact in facts.samples.values())
    passed = looked - sum(fact.value.selected for fact in facts.samples.values())
    if not looked or passed * 2 < looked:
        return
    topics = sorted({queue.topic for queue in facts.samples})
    expressions = [
        Said.SELECTION(
            topic=topic, kind=data.expression_type or "TAG", expression=repr(data.sub_string)
        )
        for topic in topics
        if (data := facts.subscription(topic)) is not None
    ]
    yield Reason(
        Cause.FILTER,
        Severity.WARNING,
        Said.FILTER(passed=passed, looked=looked, expressions=shortened(expressions, 3)),
        (
            *(
                fact.shows(
                    Shown.SELECTED(queue=queue),
                    Shown.SELECTED_OF(selected=fact.value.selected, looked=fact.value.looked_at),
                )
                for queue, fact in list(facts.samples.items())[:MOST_EVIDENCE]
            ),
            *lag_evidence(facts, set(facts.samples)),
        ),
        Remedy.FILTER(),
    )

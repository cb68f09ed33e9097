"""Judges by what members tell why a group is behind: their queues, listeners, retries and filters.

Nothing here asks a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cometmq.admin.explain.group_facts import NOT_ASKED, GroupFacts
from cometmq.admin.explain.group_lag import MOST_EVIDENCE, lag_evidence, waits
from cometmq.admin.explain.inquiry import Told, number, plural, shortened
from cometmq.admin.explain.records import Cause, Reason
from cometmq.admin.groups.records import QueueProgress, RunningInfo
from cometmq.model.finding import Severity
from cometmq.model.names import is_retry_topic, retry_topic
from cometmq.protocol.bodies.consumers import ConsumeStatus, ProcessQueueInfo

# Java's defaults, for members that do not tell their own.
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
        told
        for client, told in facts.members.items()
        if told.value.properties.get("paused") == "true" and client in late
    ]
    if paused:
        names = [told.value.client_id for told in paused]
        clients = set(names)
        theirs = {queue for queue in queues if owners.get(queue) in clients}
        yield Reason(
            Cause.MEMBER_PAUSED,
            Severity.ERROR,
            f"{plural(len(paused), 'member')} of group {facts.group} paused: {shortened(names)}; "
            f"{waits(facts)}",
            (
                *(told.shows("paused", "true") for told in paused[:MOST_EVIDENCE]),
                *lag_evidence(facts, theirs),
            ),
            "call resume() in the program of the member that paused, or restart it",
        )


def silent(facts: GroupFacts) -> Iterator[Reason]:
    left_out = [client for client, why in facts.silent.items() if why == NOT_ASKED]
    if left_out:
        yield Reason(
            Cause.NOT_TOLD,
            Severity.WARNING,
            f"{len(left_out)} of {plural(len(facts.silent) + len(facts.members), 'member')} of group "
            f"{facts.group} were not asked, so causes that lie there may be missing",
            (),
            "ask members yourself: groups.running_info(GROUP, CLIENT)",
        )
    silent = sorted(facts.silent.keys() - left_out)
    if silent:
        yield Reason(
            Cause.MEMBER_SILENT,
            Severity.WARNING,
            f"{plural(len(silent), 'member')} of group {facts.group} did not tell of themselves "
            f"({shortened(silent)}), so causes that lie there may be missing",
            tuple(
                told.shows("connected members", len(told.value.connection_set))
                for told in list(facts.online.values())[:1]
            ),
            "look at the log of the member: its process may hang, or its client may be too old to "
            "answer request 307",
        )


# Queues and their owners


def ownerless(facts: GroupFacts) -> Iterator[Reason]:
    """Judge queues in which messages wait and that no member has."""
    if not facts.members or facts.silent:
        return
    owners = facts.owners()
    if not owners and all(_pulls_itself(told.value) for told in facts.members.values()):
        return  # Java's DefaultMQPullConsumer tells no queues
    lost = {
        p.queue
        for p, _ in facts.behind()
        if p.queue not in owners and facts.subscribes(p.queue.topic) is not False
    }
    if not lost:
        return
    names = shortened([str(queue) for queue in sorted(lost)], 3)
    told = list(facts.members.values())
    evidence = [
        *(each.shows("queues that it has", _queue_names(each.value)) for each in told),
    ][:MOST_EVIDENCE]
    refused = [
        each.shows("queuesNotBegun", text)
        for each in told
        if (text := each.value.properties.get("queuesNotBegun"))
    ]
    locked = any("holds the lock" in each.value for each in refused)
    started = max(number(_started(each.value), 0) for each in told)
    age_ms = facts.at_ms - started
    if locked or (facts.orderly and age_ms > _SETTLING_MS):
        yield Reason(
            Cause.QUEUE_LOCKED,
            Severity.ERROR,
            f"{plural(len(lost), 'queue')} of the orderly group {facts.group} cannot be begun, because "
            f"another client holds the lock at the broker: {names}",
            (*refused, *evidence, *lag_evidence(facts, lost)),
            "a lock expires 60 s after its holder renewed it last: wait for that if the holder died; "
            "if it lives, its listener still has messages of the queue: let it finish, or stop it",
        )
    elif age_ms <= _SETTLING_MS:
        yield Reason(
            Cause.REBALANCING,
            Severity.WARNING,
            f"the group is being rebalanced: {plural(len(lost), 'queue')} have no owner yet ({names}), "
            f"and a member joined {max(0, age_ms) / 1000:.0f} s ago",
            (
                *(e.shows("PROP_CONSUMER_START_TIMESTAMP", _started(e.value)) for e in told[:2]),
                *refused,
                *evidence,
            ),
            "wait: members share queues every 20 s; look again if it does not end",
        )
    else:
        yield Reason(
            Cause.QUEUE_WITHOUT_OWNER,
            Severity.ERROR,
            f"{plural(len(lost), 'queue')} have no owner: {names}; no member of group {facts.group} "
            "consumes them",
            (*refused, *evidence, *lag_evidence(facts, lost)),
            "see that all members use the same allocation strategy, know the same name servers and "
            "subscribe to the topic; the members' logs say why a queue was not begun",
        )


def unlocked(facts: GroupFacts) -> Iterator[Reason]:
    """Judge queues of an orderly member that lost its lock."""
    lost = [
        (told, progress.queue)
        for progress, told, info in _held(facts)
        if told.value.properties.get("PROP_CONSUMEORDERLY") == "true" and not info.locked
    ]
    if lost:
        names = shortened([str(queue) for _, queue in lost], 3)
        yield Reason(
            Cause.QUEUE_LOCKED,
            Severity.ERROR,
            f"{plural(len(lost), 'queue', 'wait')} for the broker's lock, without which an orderly "
            f"member does not consume: {names}",
            tuple(told.shows(f"locked of {queue}", "false") for told, queue in lost)[
                :MOST_EVIDENCE
            ],
            "a lock that another client holds expires 60 s after it was renewed last: wait, or stop "
            "the client that holds it",
        )


def _queue_names(info: RunningInfo) -> str:
    return shortened([str(q) for q in sorted(info.queues) if not is_retry_topic(q.topic)]) or "none"


def _started(info: RunningInfo) -> str:
    return info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")


def idle_members(facts: GroupFacts) -> Iterator[Reason]:
    behind = {p.queue.topic for p, _ in facts.behind() if not is_retry_topic(p.queue.topic)}
    topics = {topic for topic in behind if facts.subscribes(topic) is not False}
    owners = facts.owners()
    busy = {client for queue, client in owners.items() if queue.topic in topics}
    idle = [client for client in facts.members if client not in busy]
    queues = {p.queue for p, _ in facts.queues() if p.queue.topic in topics}
    if not topics or not idle or facts.silent or len(facts.members) <= len(queues):
        return
    yield Reason(
        Cause.MORE_MEMBERS_THAN_QUEUES,
        Severity.WARNING,
        f"{len(facts.members)} members share {plural(len(queues), 'queue')}: {shortened(idle)} have "
        "none and cannot help",
        tuple(
            facts.members[client].shows(
                "queues that it has", _queue_names(facts.members[client].value)
            )
            for client in idle[:MOST_EVIDENCE]
        ),
        f"give the topic more queues: topics.update({sorted(topics)[0]!r}, "
        f"read_queues={len(facts.members)}, write_queues={len(facts.members)})",
    )


# What members do


def _held(facts: GroupFacts) -> list[tuple[QueueProgress, Told[RunningInfo], ProcessQueueInfo]]:
    """Return the queues in which messages wait, with their owners and what these hold of them."""
    owners = facts.owners()
    return [
        (progress, facts.members[client], facts.members[client].value.queues[progress.queue])
        for progress, _ in facts.behind()
        if (client := owners.get(progress.queue)) is not None
    ]


def _full(told: Told[RunningInfo], info: ProcessQueueInfo) -> str:
    """Say which limit a member's flow control has reached in a queue, empty if none."""
    properties = told.value.properties
    messages = number(properties.get("pullThresholdForQueue"), _PULL_THRESHOLD)
    if info.cached_msg_count > messages:
        return f"{info.cached_msg_count} messages held, pullThresholdForQueue={messages}"
    mebibytes = number(properties.get("pullThresholdSizeForQueue"), _PULL_THRESHOLD_MIB)
    if info.cached_msg_size_in_mi_b >= mebibytes:
        return f"{info.cached_msg_size_in_mi_b} MiB held, pullThresholdSizeForQueue={mebibytes}"
    span = info.cached_msg_max_offset - info.cached_msg_min_offset
    most = number(properties.get("consumeConcurrentlyMaxSpan"), _MAX_SPAN)
    if properties.get("PROP_CONSUMEORDERLY") != "true" and info.cached_msg_count and span > most:
        return f"offsets held span {span}, consumeConcurrentlyMaxSpan={most}"
    return ""


def _failures(facts: GroupFacts) -> tuple[float, float]:
    """Return how many messages a second were consumed and failed in the last minute."""
    statuses = [s for told in facts.members.values() for s in told.value.topics.values()]
    return sum(s.consume_ok_tps for s in statuses), sum(s.consume_failed_tps for s in statuses)


def _is_storm(facts: GroupFacts) -> bool:
    well, failed = _failures(facts)
    return failed > 0 and failed >= _STORM_SHARE * (well + failed)


def slow(facts: GroupFacts) -> Iterator[Reason]:
    by_topic: dict[str, list[tuple[QueueProgress, Told[RunningInfo], ProcessQueueInfo]]] = {}
    for progress, told, info in _held(facts):
        if _pulls_itself(told.value):
            continue
        consumable = told.value.properties.get("PROP_CONSUMEORDERLY") != "true" or info.locked
        if info.cached_msg_count and consumable and not is_retry_topic(progress.queue.topic):
            by_topic.setdefault(progress.queue.topic, []).append((progress, told, info))
    for topic, held in by_topic.items():
        count = sum(info.cached_msg_count for _, _, info in held)
        lag = sum(progress.lag or 0 for progress, _, _ in held)
        if count < _HELD_SHARE * lag and not any(_full(told, info) for _, told, info in held):
            continue
        members = {told.value.client_id: told for _, told, _ in held}
        statuses = {c: t.value.topics.get(topic, ConsumeStatus()) for c, t in members.items()}
        done = sum(
            status.consume_ok_tps + status.consume_failed_tps for status in statuses.values()
        )
        slowest = max(status.consume_rt for status in statuses.values())
        threads = sum(_threads(told.value) for told in members.values())
        if facts.orderly and _is_storm(facts):
            continue
        if done <= 0:
            how = "has finished none in the last minute: it hangs, or takes very long"
        else:
            how = (
                f"takes {slowest:.0f} ms each, and finishes {done:.1f} a second with "
                f"{plural(threads, 'thread')}"
            )
        yield Reason(
            Cause.SLOW_LISTENER,
            Severity.ERROR,
            f"the listener is slow: {plural(len(members), 'member', 'hold')} {plural(count, 'message')} of "
            f"the {lag} of topic {topic} that wait, and the listener {how}",
            (
                *(
                    told.shows(
                        f"consumeRT, consumeOKTPS, consumeFailedTPS of {topic}",
                        f"{s.consume_rt:.0f} ms, {s.consume_ok_tps:.2f}, {s.consume_failed_tps:.2f}",
                    )
                    for client, told in list(members.items())[:MOST_EVIDENCE]
                    for s in [statuses[client]]
                ),
                *(
                    told.shows(
                        f"cachedMsgCount of {progress.queue}",
                        f"{info.cached_msg_count}, last consumed {_ago(facts, info)}",
                    )
                    for progress, told, info in held[:MOST_EVIDENCE]
                ),
            ),
            "find out what the listener waits for (groups.running_info(…, stacks=True) shows its "
            "threads); make it faster, raise its concurrency, or add members while there are queues "
            "for them",
        )


def _pulls_itself(info: RunningInfo) -> bool:
    """Say whether the member's program decides when it takes messages, without a listener."""
    return info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_ACTIVELY"


def _threads(info: RunningInfo) -> int:
    return number(info.properties.get("PROP_THREADPOOL_CORE_SIZE"), 1)


def _ago(facts: GroupFacts, info: ProcessQueueInfo) -> str:
    if info.last_consume_timestamp <= 0:
        return "never"
    return f"{max(0, facts.at_ms - info.last_consume_timestamp) / 1000:.0f} s ago"


def flow_controlled(facts: GroupFacts) -> Iterator[Reason]:
    full = [
        (progress, told, text)
        for progress, told, info in _held(facts)
        if (text := _full(told, info)) and not _pulls_itself(told.value)
    ]
    if full:
        yield Reason(
            Cause.FLOW_CONTROLLED,
            Severity.WARNING,
            f"members do not pull {plural(len(full), 'queue')} at present: they hold as much as their "
            "flow control lets them, until the listener has consumed some",
            tuple(
                told.shows(f"held of {progress.queue}", text)
                for progress, told, text in full[:MOST_EVIDENCE]
            ),
            "the listener is what is slow: a higher pullThresholdForQueue only moves the backlog into "
            "the member's memory",
        )


def pull_failures(facts: GroupFacts) -> Iterator[Reason]:
    told = [
        (each, text)
        for each in facts.members.values()
        if (text := each.value.properties.get("pullFailures"))
    ]
    if not told:
        return
    throttled = all("FLOW_CONTROL" in text or "SYSTEM_BUSY" in text for _, text in told)
    names = shortened([each.value.client_id for each, _ in told], 3)
    if throttled:
        yield Reason(
            Cause.PULLS_THROTTLED,
            Severity.ERROR,
            f"the broker throttles the pulls of {names}: {told[0][1]}",
            tuple(each.shows("pullFailures", text) for each, text in told[:MOST_EVIDENCE]),
            "pull less often or select by cheaper expressions, or raise the limit that it names",
        )
    else:
        yield Reason(
            Cause.PULLS_REFUSED,
            Severity.ERROR,
            f"pulls of {names} fail: {told[0][1]}",
            tuple(each.shows("pullFailures", text) for each, text in told[:MOST_EVIDENCE]),
            "do as the refusal says",
        )


def retries(facts: GroupFacts) -> Iterator[Reason]:
    if not _is_storm(facts):
        return
    well, failed = _failures(facts)
    evidence = [
        told.shows(
            f"consumeFailedTPS, consumeOKTPS, consumeFailedMsgs of {topic}",
            f"{s.consume_failed_tps:.2f}, {s.consume_ok_tps:.2f}, {s.consume_failed_msgs}",
        )
        for told in facts.members.values()
        for topic, s in told.value.topics.items()
        if s.consume_failed_msgs or s.consume_failed_tps
    ][:MOST_EVIDENCE]
    share = f"{failed / (well + failed):.0%} of what the listener gets fails"
    if facts.orderly:
        yield Reason(
            Cause.QUEUE_SUSPENDED,
            Severity.ERROR,
            f"queues of the orderly group {facts.group} are suspended: {share}, and nothing behind a "
            f"message that fails is consumed before it; {waits(facts)}",
            (*evidence, *lag_evidence(facts)),
            "the member's log has the listener's errors: repair it, or set max_reconsume_times, so "
            "that a message that always fails goes to the dead letters",
        )
        return
    evidence += [
        told.shows(
            f"SNDBCK_PUT_NUMS of {topic}", f"{told.value.stats_minute.sum} in the last minute"
        )
        for (_, topic), told in facts.sent_back.items()
        if told.value.stats_minute.sum
    ]
    retry = retry_topic(facts.group)
    waiting = sum(p.lag or 0 for p, _ in facts.behind() if p.queue.topic == retry)
    yield Reason(
        Cause.RETRY_STORM,
        Severity.ERROR,
        f"retries take the place of new messages: {share} and is sent back to come again; "
        f"{plural(waiting, 'retried message')} wait now",
        tuple(evidence),
        "the member's log has the listener's errors: repair what fails, or lower retry_max_times, so "
        "that messages that always fail go to the dead letters sooner",
    )


def filtered(facts: GroupFacts) -> Iterator[Reason]:
    looked = sum(told.value.looked_at for told in facts.samples.values())
    passed = looked - sum(told.value.selected for told in facts.samples.values())
    if not looked or passed * 2 < looked:
        return
    topics = sorted({queue.topic for queue in facts.samples})
    expressions = [
        f"{topic} by {data.expression_type or 'TAG'} {data.sub_string!r}"
        for topic in topics
        if (data := facts.subscription(topic)) is not None
    ]
    yield Reason(
        Cause.FILTER,
        Severity.WARNING,
        f"the group's filter passes over {passed} of {plural(looked, 'message')} looked at: what "
        f"brokers count as lag is mostly not for it ({shortened(expressions, 3)})",
        (
            *(
                told.shows(
                    f"selected of {queue}", f"{told.value.selected} of {told.value.looked_at}"
                )
                for queue, told in list(facts.samples.items())[:MOST_EVIDENCE]
            ),
            *lag_evidence(facts, set(facts.samples)),
        ),
        "nothing is to be done if the messages selected come in time; if scanning is what takes "
        "long, give what this group wants a topic of its own",
    )

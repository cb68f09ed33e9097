"""Judges why a group is behind, by the facts alone. Nothing here asks a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from cometmq.admin.explain.group_facts import GroupFacts
from cometmq.admin.explain.inquiry import Told, plural, shortened
from cometmq.admin.explain.records import Cause, Evidence, Reason
from cometmq.admin.group_records import QueueProgress, RunningInfo
from cometmq.model.finding import Severity
from cometmq.model.names import is_retry_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.sysflag import PERM_READ
from cometmq.protocol.consumer_bodies import ConsumeStatus, ProcessQueueInfo
from cometmq.protocol.inspection_bodies import OffsetWrapper

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
_MOST_EVIDENCE: Final = 5
_SURELY_ERROR: Final = Severity.ERROR

Judge = Callable[[GroupFacts], Iterator[Reason]]


def judge(facts: GroupFacts) -> list[Reason]:
    """Return the causes, the one that explains most first; at least one reason."""
    if any(told.value.message_model == "BROADCASTING" for told in facts.online.values()):
        return [_broadcasting(facts)]
    if not facts.behind():
        found = [reason for judge in _ALWAYS for reason in judge(facts)]
        return [*found, _caught_up(facts)] if found else [_caught_up(facts)]
    found = [reason for judge in _WHEN_BEHIND for reason in judge(facts)]
    if not any(reason.severity for reason in found):
        found.append(_just_behind(facts))
    return found


def _waits(facts: GroupFacts) -> str:
    """Say how many messages wait, and where."""
    behind = facts.behind()
    topics = Counter[str]()
    for progress, _ in behind:
        topics[progress.queue.topic] += progress.lag
    where = shortened([f"{topic} {count}" for topic, count in topics.most_common()], 3)
    total = sum(topics.values())
    return f"{plural(total, 'message', 'wait')} ({where})" if total else "no message waits"


def _lag_evidence(facts: GroupFacts, queues: set[MessageQueue] | None = None) -> list[Evidence]:
    """Return the progress in the queues that are furthest behind."""
    return [
        told.shows(
            f"lag of {progress.queue}",
            f"{progress.lag} (consumed up to {_consumed(progress, told)}, handed out up to "
            f"{progress.pulled_offset}, end {progress.broker_offset})",
        )
        for progress, told in facts.behind()
        if queues is None or progress.queue in queues
    ][:_MOST_EVIDENCE]


def _consumed(progress: QueueProgress, told: Told[dict[MessageQueue, OffsetWrapper]]) -> str:
    committed = told.value[progress.queue].consumer_offset
    if committed == progress.consumer_offset:
        return str(committed)
    return f"{progress.consumer_offset} as its member says, {committed} committed"


def _caught_up(facts: GroupFacts) -> Reason:
    evidence = tuple(
        told.shows("queues looked at", len(told.value)) for told in facts.progress.values()
    )
    return Reason(
        Cause.CAUGHT_UP,
        Severity.OK,
        f"group {facts.group} is not behind: no message waits in "
        f"{plural(len(facts.queues()), 'queue')}",
        evidence[:_MOST_EVIDENCE],
    )


def _broadcasting(facts: GroupFacts) -> Reason:
    told = next(iter(facts.online.values()))
    return Reason(
        Cause.BROADCASTING,
        Severity.OK,
        f"group {facts.group} consumes by broadcasting: each member keeps its own offsets, and the "
        "brokers' figures say nothing",
        (told.shows("messageModel", told.value.message_model),),
    )


def _just_behind(facts: GroupFacts) -> Reason:
    rate = facts.consume_per_s
    pulling = any(told.value.consume_type == "CONSUME_ACTIVELY" for told in facts.online.values())
    said = f"{_waits(facts)}, and the group takes {rate:.1f} a second; no other cause was found"
    remedy = "look again in a minute: if the lag grows, add members or concurrency"
    if pulling:
        said += "; its program pulls by itself, so only the program knows when it does"
        remedy = "look at the program's own log: it decides when it polls and commits"
    return Reason(Cause.BEHIND, Severity.WARNING, said, tuple(_lag_evidence(facts)), remedy)


# Permissions


def _disabled(facts: GroupFacts) -> Iterator[Reason]:
    found = [told for told in facts.configs.values() if not told.value.consume_enable]
    if found:
        names = [facts.places[told.address].name for told in found]
        yield Reason(
            Cause.CONSUMPTION_DISABLED,
            _SURELY_ERROR,
            f"consumption is switched off for group {facts.group} at {shortened(names)}: the broker "
            f"refuses its pulls; {_waits(facts)}",
            tuple(told.shows("consumeEnable", "false") for told in found[:_MOST_EVIDENCE]),
            f"switch it on: groups.update({facts.group!r}, consume_enable=True)",
        )


def _brokers_unreadable(facts: GroupFacts) -> Iterator[Reason]:
    for address, told in facts.settings.items():
        text = told.value.get("brokerPermission", "6")
        if text.isdecimal() and not int(text) & PERM_READ and _lags_at(facts, address):
            yield Reason(
                Cause.BROKER_UNREADABLE,
                _SURELY_ERROR,
                f"broker {facts.places[address].name} may not be read (brokerPermission={text}): it "
                "refuses all pulls",
                (told.shows("brokerPermission", text),),
                "set brokerPermission=6 by brokers.update_config()",
            )


def _topics_unreadable(facts: GroupFacts) -> Iterator[Reason]:
    for (address, topic), told in facts.topic_configs.items():
        if not told.value.readable and _lags_at(facts, address, topic):
            yield Reason(
                Cause.TOPIC_UNREADABLE,
                _SURELY_ERROR,
                f"topic {topic} may not be read at broker {facts.places[address].name} "
                f"(perm={told.value.perm}): pulls are refused, and its queues are in no route for "
                "consumers",
                (told.shows(f"perm of {topic}", told.value.perm),),
                f"give it the permission to read: topics.update({topic!r}, permission=6)",
            )


def _forbidden(facts: GroupFacts) -> Iterator[Reason]:
    for (address, topic), told in facts.forbidden.items():
        if told.value and _lags_at(facts, address, topic):
            yield Reason(
                Cause.GROUP_FORBIDDEN,
                _SURELY_ERROR,
                f"an administrator has forbidden group {facts.group} to read topic {topic} at broker "
                f"{facts.places[address].name}",
                (told.shows("readable", "false"),),
                f"allow it again: groups.set_may_read({facts.group!r}, {topic!r}, True)",
            )


def _lags_at(facts: GroupFacts, address: str, topic: str | None = None) -> bool:
    return any(
        told.address == address and topic in (None, progress.queue.topic)
        for progress, told in facts.behind()
    )


# Members and their subscriptions


def _no_member(facts: GroupFacts) -> Iterator[Reason]:
    if facts.online or facts.members or not facts.progress:
        return
    yield Reason(
        Cause.NO_MEMBER,
        _SURELY_ERROR,
        f"no member of group {facts.group} is connected; {_waits(facts)}",
        (
            *(
                told.shows("members online", 0)
                for told in list(facts.progress.values())[:_MOST_EVIDENCE]
            ),
            *_lag_evidence(facts),
        ),
        "start a member, check that it runs and reaches the brokers, or check the group's name",
    )


def _different_subscriptions(facts: GroupFacts) -> Iterator[Reason]:
    """Compare what the members say that they subscribe to; brokers keep what came last."""
    by_choice: dict[tuple[str, ...], list[Told[RunningInfo]]] = {}
    for told in facts.members.values():
        choice = tuple(
            sorted(
                f"{data.topic} by {data.expression_type or 'TAG'} {_expression(data.sub_string)}"
                for data in told.value.subscriptions
                if not is_retry_topic(data.topic)
            )
        )
        by_choice.setdefault(choice, []).append(told)
    if len(by_choice) < 2:
        return
    said = [
        f"{shortened([told.value.client_id for told in members], 2)} to {shortened(list(choice), 3)}"
        for choice, members in by_choice.items()
    ]
    yield Reason(
        Cause.DIFFERENT_SUBSCRIPTIONS,
        _SURELY_ERROR,
        f"members of group {facts.group} subscribe to different things, so brokers refuse pulls or "
        f"select the wrong messages: {'; '.join(said[:3])}",
        tuple(
            members[0].shows("subscriptions", ", ".join(choice) or "none")
            for choice, members in list(by_choice.items())[:_MOST_EVIDENCE]
        ),
        "give every member of the group the same topics and expressions, or use two groups",
    )


def _expression(text: str) -> str:
    """Write tags in one order, because members may name them in any."""
    return " || ".join(sorted(part.strip() for part in text.split("||")))


def _paused(facts: GroupFacts) -> Iterator[Reason]:
    owners = facts.owners()
    queues = {progress.queue for progress, _ in facts.behind()}
    paused = [
        told
        for client, told in facts.members.items()
        if told.value.properties.get("paused") == "true"
        and any(owners.get(queue) == client for queue in queues)
    ]
    if paused:
        names = [told.value.client_id for told in paused]
        yield Reason(
            Cause.MEMBER_PAUSED,
            _SURELY_ERROR,
            f"{plural(len(paused), 'member')} of group {facts.group} paused: {shortened(names)}; "
            f"{_waits(facts)}",
            (
                *(told.shows("paused", "true") for told in paused[:_MOST_EVIDENCE]),
                *_lag_evidence(facts, {q for q in queues if owners.get(q) in names}),
            ),
            "call resume() in the program of the member that paused, or restart it",
        )


def _silent(facts: GroupFacts) -> Iterator[Reason]:
    if facts.silent:
        yield Reason(
            Cause.MEMBER_SILENT,
            Severity.WARNING,
            f"{plural(len(facts.silent), 'member')} of group {facts.group} did not tell of themselves "
            f"({shortened(sorted(facts.silent))}), so causes that lie there may be missing",
            tuple(
                told.shows("connected members", len(told.value.connection_set))
                for told in list(facts.online.values())[:1]
            ),
            "look at the log of the member: its process may hang, or its client may be too old to "
            "answer request 307",
        )


# Queues and their owners


def _ownerless(facts: GroupFacts) -> Iterator[Reason]:
    """Judge queues in which messages wait and that no member has."""
    if not facts.members or facts.silent:
        return
    owners = facts.owners()
    lost = {p.queue for p, _ in facts.behind() if p.queue not in owners}
    if not lost:
        return
    names = shortened([str(queue) for queue in sorted(lost)], 3)
    told = list(facts.members.values())
    evidence = [
        *(each.shows("queues that it has", _queue_names(each.value)) for each in told),
    ][:_MOST_EVIDENCE]
    refused = [
        each.shows("queuesNotBegun", text)
        for each in told
        if (text := each.value.properties.get("queuesNotBegun"))
    ]
    locked = any("holds the lock" in each.value for each in refused)
    started = max(
        (int(text) for each in told if (text := _started(each.value)).isdecimal()), default=0
    )
    age_ms = facts.at_ms - started
    if locked or (facts.orderly and age_ms > _SETTLING_MS):
        yield Reason(
            Cause.QUEUE_LOCKED,
            _SURELY_ERROR,
            f"{plural(len(lost), 'queue')} of the orderly group {facts.group} cannot be begun, because "
            f"another client holds the lock at the broker: {names}",
            (*refused, *evidence, *_lag_evidence(facts, lost)),
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
            _SURELY_ERROR,
            f"{plural(len(lost), 'queue')} have no owner: {names}; no member of group {facts.group} "
            "consumes them",
            (*refused, *evidence, *_lag_evidence(facts, lost)),
            "see that all members use the same allocation strategy, know the same name servers and "
            "subscribe to the topic; the members' logs say why a queue was not begun",
        )


def _unlocked(facts: GroupFacts) -> Iterator[Reason]:
    """Judge queues of an orderly member that lost its lock."""
    lost = [
        (told, queue)
        for progress, _ in facts.behind()
        for client, told in facts.members.items()
        if told.value.properties.get("PROP_CONSUMEORDERLY") == "true"
        for queue, info in told.value.queues.items()
        if queue == progress.queue and not info.locked and not info.droped
    ]
    if lost:
        names = shortened([str(queue) for _, queue in lost], 3)
        yield Reason(
            Cause.QUEUE_LOCKED,
            _SURELY_ERROR,
            f"{plural(len(lost), 'queue', 'wait')} for the broker's lock, without which an orderly "
            f"member does not consume: {names}",
            tuple(told.shows(f"locked of {queue}", "false") for told, queue in lost)[
                :_MOST_EVIDENCE
            ],
            "a lock that another client holds expires 60 s after it was renewed last: wait, or stop "
            "the client that holds it",
        )


def _queue_names(info: RunningInfo) -> str:
    return shortened([str(q) for q in sorted(info.queues) if not is_retry_topic(q.topic)]) or "none"


def _started(info: RunningInfo) -> str:
    return info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")


def _idle_members(facts: GroupFacts) -> Iterator[Reason]:
    topics = {p.queue.topic for p, _ in facts.behind() if not is_retry_topic(p.queue.topic)}
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
            for client in idle[:_MOST_EVIDENCE]
        ),
        f"give the topic more queues: topics.update({sorted(topics)[0]!r}, "
        f"read_queues={len(facts.members)}, write_queues={len(facts.members)})",
    )


# Offsets


def _offsets_outside(facts: GroupFacts) -> Iterator[Reason]:
    early = [
        (progress, told, facts.beginnings[progress.queue])
        for progress, told in facts.queues()
        if (begin := facts.beginnings.get(progress.queue)) is not None
        and progress.consumer_offset < begin.value
    ]
    if early:
        lost = sum(begin.value - progress.consumer_offset for progress, _, begin in early)
        yield Reason(
            Cause.OFFSET_BEFORE_BEGINNING,
            _SURELY_ERROR,
            f"{plural(lost, 'message')} of the lag are not there any more: the group's offset is below "
            f"the beginning of {plural(len(early), 'queue')}, whose oldest files were deleted",
            tuple(
                evidence
                for progress, told, begin in early[:_MOST_EVIDENCE]
                for evidence in (
                    told.shows(f"consumerOffset of {progress.queue}", progress.consumer_offset),
                    begin.shows(f"minOffset of {progress.queue}", begin.value),
                )
            ),
            "what was deleted cannot be had; members go on at the beginning. Keep messages for longer "
            "(fileReservedTime, more disk), and watch the lag's age",
        )
    late = [(progress, told) for progress, told in facts.queues() if progress.lag < 0]
    if late:
        yield Reason(
            Cause.OFFSET_AFTER_END,
            _SURELY_ERROR,
            f"the group's offset is behind the end of {plural(len(late), 'queue')}: the topic was "
            "deleted and made again, or a broker lost messages; new messages are passed over",
            tuple(
                told.shows(
                    f"consumerOffset of {progress.queue}",
                    f"{progress.consumer_offset} (end {progress.broker_offset})",
                )
                for progress, told in late[:_MOST_EVIDENCE]
            ),
            "reset the group: offsets.reset_to_time(), or offsets.reset_queue() for one queue",
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
    messages = _number(properties.get("pullThresholdForQueue"), _PULL_THRESHOLD)
    if info.cached_msg_count > messages:
        return f"{info.cached_msg_count} messages held, pullThresholdForQueue={messages}"
    mebibytes = _number(properties.get("pullThresholdSizeForQueue"), _PULL_THRESHOLD_MIB)
    if info.cached_msg_size_in_mi_b >= mebibytes:
        return f"{info.cached_msg_size_in_mi_b} MiB held, pullThresholdSizeForQueue={mebibytes}"
    span = info.cached_msg_max_offset - info.cached_msg_min_offset
    most = _number(properties.get("consumeConcurrentlyMaxSpan"), _MAX_SPAN)
    if properties.get("PROP_CONSUMEORDERLY") != "true" and info.cached_msg_count and span > most:
        return f"offsets held span {span}, consumeConcurrentlyMaxSpan={most}"
    return ""


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else default


def _failures(facts: GroupFacts) -> tuple[float, float]:
    """Return how many messages a second were consumed and failed in the last minute."""
    statuses = [s for told in facts.members.values() for s in told.value.topics.values()]
    return sum(s.consume_ok_tps for s in statuses), sum(s.consume_failed_tps for s in statuses)


def _is_storm(facts: GroupFacts) -> bool:
    well, failed = _failures(facts)
    return failed > 0 and failed >= _STORM_SHARE * (well + failed)


def _slow(facts: GroupFacts) -> Iterator[Reason]:
    by_topic: dict[str, list[tuple[QueueProgress, Told[RunningInfo], ProcessQueueInfo]]] = {}
    for progress, told, info in _held(facts):
        if _pulls_itself(told.value):
            continue
        consumable = told.value.properties.get("PROP_CONSUMEORDERLY") != "true" or info.locked
        if info.cached_msg_count and consumable and not is_retry_topic(progress.queue.topic):
            by_topic.setdefault(progress.queue.topic, []).append((progress, told, info))
    for topic, held in by_topic.items():
        count = sum(info.cached_msg_count for _, _, info in held)
        lag = sum(progress.lag for progress, _, _ in held)
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
            _SURELY_ERROR,
            f"the listener is slow: {plural(len(members), 'member', 'hold')} {plural(count, 'message')} of "
            f"the {lag} of topic {topic} that wait, and the listener {how}",
            (
                *(
                    told.shows(
                        f"consumeRT, consumeOKTPS, consumeFailedTPS of {topic}",
                        f"{s.consume_rt:.0f} ms, {s.consume_ok_tps:.2f}, {s.consume_failed_tps:.2f}",
                    )
                    for client, told in list(members.items())[:_MOST_EVIDENCE]
                    for s in [statuses[client]]
                ),
                *(
                    told.shows(
                        f"cachedMsgCount of {progress.queue}",
                        f"{info.cached_msg_count}, last consumed {_ago(facts, info)}",
                    )
                    for progress, told, info in held[:_MOST_EVIDENCE]
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
    return _number(info.properties.get("PROP_THREADPOOL_CORE_SIZE"), 1)


def _ago(facts: GroupFacts, info: ProcessQueueInfo) -> str:
    if info.last_consume_timestamp <= 0:
        return "never"
    return f"{max(0, facts.at_ms - info.last_consume_timestamp) / 1000:.0f} s ago"


def _flow_controlled(facts: GroupFacts) -> Iterator[Reason]:
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
                for progress, told, text in full[:_MOST_EVIDENCE]
            ),
            "the listener is what is slow: a higher pullThresholdForQueue only moves the backlog into "
            "the member's memory",
        )


def _pull_failures(facts: GroupFacts) -> Iterator[Reason]:
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
            _SURELY_ERROR,
            f"the broker throttles the pulls of {names}: {told[0][1]}",
            tuple(each.shows("pullFailures", text) for each, text in told[:_MOST_EVIDENCE]),
            "pull less often or select by cheaper expressions, or raise the limit that it names",
        )
    else:
        yield Reason(
            Cause.PULLS_REFUSED,
            _SURELY_ERROR,
            f"pulls of {names} fail: {told[0][1]}",
            tuple(each.shows("pullFailures", text) for each, text in told[:_MOST_EVIDENCE]),
            "do as the refusal says",
        )


def _retries(facts: GroupFacts) -> Iterator[Reason]:
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
    ][:_MOST_EVIDENCE]
    share = f"{failed / (well + failed):.0%} of what the listener gets fails"
    if facts.orderly:
        yield Reason(
            Cause.QUEUE_SUSPENDED,
            _SURELY_ERROR,
            f"queues of the orderly group {facts.group} are suspended: {share}, and nothing behind a "
            f"message that fails is consumed before it; {_waits(facts)}",
            (*evidence, *_lag_evidence(facts)),
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
    waiting = sum(p.lag for p, _ in facts.behind() if p.queue.topic == retry)
    yield Reason(
        Cause.RETRY_STORM,
        _SURELY_ERROR,
        f"retries take the place of new messages: {share} and is sent back to come again; "
        f"{plural(waiting, 'retried message')} wait now",
        tuple(evidence),
        "the member's log has the listener's errors: repair what fails, or lower retry_max_times, so "
        "that messages that always fail go to the dead letters sooner",
    )


def _filter(facts: GroupFacts) -> Iterator[Reason]:
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
                for queue, told in list(facts.samples.items())[:_MOST_EVIDENCE]
            ),
            *_lag_evidence(facts, set(facts.samples)),
        ),
        "nothing is to be done if the messages selected come in time; if scanning is what takes "
        "long, give what this group wants a topic of its own",
    )


# In the order in which causes explain others.
_WHEN_BEHIND: Final[tuple[Judge, ...]] = (
    _disabled,
    _no_member,
    _brokers_unreadable,
    _topics_unreadable,
    _forbidden,
    _different_subscriptions,
    _offsets_outside,
    _paused,
    _ownerless,
    _unlocked,
    _retries,
    _slow,
    _flow_controlled,
    _pull_failures,
    _filter,
    _idle_members,
    _silent,
)
_ALWAYS: Final[tuple[Judge, ...]] = (_different_subscriptions, _offsets_outside, _retries)

"""Judge what became of a message, by the facts alone. Nothing here asks a server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cometmq.admin.explain.disk import local_time
from cometmq.admin.explain.groups.group_causes import judge as judge_group
from cometmq.admin.explain.groups.group_causes import reported_subscriptions
from cometmq.admin.explain.groups.group_facts import GroupFacts, Progress
from cometmq.admin.explain.inquiry import Reported, number, shortened
from cometmq.admin.explain.messages.message_facts import MessageFacts, newest_copy
from cometmq.admin.explain.messages.pop_causes import judge_popped, popped_evidence
from cometmq.admin.explain.records import Cause, Delivery, Evidence, Reason
from cometmq.admin.explain.selecting import selects
from cometmq.admin.explain.texts import Remedy, Said, Shown
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.finding import Severity
from cometmq.protocol.pop.handle import pop_retry_topic, pop_retry_topic_v2

_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"(\d{1,9})([smhd])")
_MOST_EVIDENCE: Final = 8


def judge(facts: MessageFacts) -> tuple[list[Reason], list[Delivery]]:
    """Return the reasons, those that keep the message from a group first, and its deliveries."""
    if not facts.copies:
        return [_not_stored(facts)], []
    found = [_in_group(facts, facts.groups[group]) for group in facts.groups]
    reasons = sorted((reason for reason, _ in found), key=lambda reason: -reason.severity)
    if not facts.groups:
        reasons.append(
            Reason(
                Cause.NO_GROUP,
                Severity.WARNING,
                Said.NO_GROUP(topic=facts.topic, place=_where(facts)),
                _stored_evidence(facts),
                Remedy.NO_GROUP(),
            )
        )
    if facts.known_groups > len(facts.groups):
        reasons[-1:] = [
            *reasons[-1:],
            Reason(
                Cause.NOT_REPORTED,
                Severity.WARNING,
                Said.GROUPS_ASKED_IN_PART(asked=len(facts.groups), all=facts.known_groups),
                (),
                Remedy.GROUPS_ASKED_IN_PART(),
            ),
        ]
    return reasons, [delivery for _, delivery in found]


# Messages that are not in their topic


def _not_stored(facts: MessageFacts) -> Reason:
    waiting = [t for t in facts.delayed if t.value.properties.get(p.REAL_TOPIC) == facts.topic]
    if waiting:
        return _delayed(facts, waiting[-1])
    if facts.halves:
        return _half(facts, facts.halves[-1])
    deleted = _deleted(facts)
    if deleted is not None:
        return deleted
    lag = [
        fact.shows("indexBehindBytes", fact.value["indexBehindBytes"])
        for fact in facts.infos.values()
        if fact.value.get("indexBehindBytes", "0") != "0"
    ]
    return Reason(
        Cause.MESSAGE_UNKNOWN,
        Severity.ERROR,
        Said.MESSAGE_UNKNOWN(
            message=facts.message_id,
            where=Said.IN_TOPIC(topic=facts.topic) if facts.topic else "",
            late=Said.INDEX_BEHIND() if lag else "",
        ),
        (*lag, *_beginnings(facts)),
        Remedy.MESSAGE_UNKNOWN(),
    )


def _beginnings(facts: MessageFacts) -> list[Evidence]:
    return [
        fact.shows("earliestMessageTimeStamp", _time_text(fact.value["earliestMessageTimeStamp"]))
        for fact in facts.infos.values()
        if "earliestMessageTimeStamp" in fact.value
    ][:_MOST_EVIDENCE]


def _time_text(text: str) -> str:
    at_ms = number(text, -1)
    return local_time(at_ms) if at_ms >= 0 else Shown.NO_MESSAGE()


def _deleted(facts: MessageFacts) -> Reason | None:
    """Judge an offset id below the beginning of its broker's log."""
    fact = facts.infos.get(facts.address)
    if facts.offset is None or fact is None:
        return None
    beginning = number(fact.value.get("commitLogMinOffset"), 0)
    if facts.offset >= beginning:
        return None
    return Reason(
        Cause.MESSAGE_DELETED,
        Severity.ERROR,
        Said.MESSAGE_DELETED(broker=facts.places[facts.address].name),
        (
            fact.shows(
                "commitLogMinOffset", Shown.WAS_AT(beginning=beginning, offset=facts.offset)
            ),
            *_beginnings(facts),
        ),
        Remedy.MESSAGE_DELETED(),
    )


def _delayed(facts: MessageFacts, fact: Reported[MessageExt]) -> Reason:
    message = fact.value
    due_ms = due(facts, message)
    place = {"broker": message.broker_name, "topic": facts.topic}
    overdue = due_ms is not None and due_ms < facts.at_ms - 10_000
    properties = {
        key: message.properties[key]
        for key in (p.DELAY_TIME_LEVEL, p.TIMER_DELIVER_MS, p.TIMER_DELAY_MS, p.TIMER_OUT_MS)
        if key in message.properties
    }
    return Reason(
        Cause.MESSAGE_DELAYED,
        Severity.WARNING if overdue else Severity.OK,
        Said.MESSAGE_DELAYED_UNKNOWN(**place)
        if due_ms is None
        else Said.MESSAGE_DELAYED(**place, time=local_time(due_ms)),
        (
            fact.shows(Shown.STORED(), _place(message)),
            fact.shows(Shown.DELAY(), ", ".join(f"{k}={v}" for k, v in properties.items())),
        ),
        Remedy.OVERDUE() if overdue else "",
    )


def due(facts: MessageFacts, message: MessageExt) -> int | None:
    """Return when a delayed message is delivered, ms since the epoch; None if it is not known."""
    if (out_ms := number(message.properties.get(p.TIMER_OUT_MS), -1)) >= 0:
        return out_ms
    level = number(message.properties.get(p.DELAY_TIME_LEVEL), 0)
    settings = next(
        (t.value for a, t in facts.settings.items() if facts.places[a].name == message.broker_name),
        {},
    )
    delays = _LEVEL.findall(settings.get("messageDelayLevel", _LEVELS))
    if not 0 < level <= len(delays):
        return None
    count, unit = delays[level - 1]
    return message.store_timestamp_ms + int(count) * _UNITS_MS[unit]


def _half(facts: MessageFacts, fact: Reported[MessageExt]) -> Reason:
    message = fact.value
    info = facts.infos.get(fact.address)
    undecided = None if info is None else info.value.get("transactionsUnresolved")
    checks = message.properties.get(p.TRANSACTION_CHECK_TIMES, "0")
    evidence = [
        fact.shows(Shown.STORED_AS_HALF(), _place(message)),
        fact.shows(
            Shown.PRODUCER_GROUP(),
            message.properties.get(p.PRODUCER_GROUP, Shown.NOT_REPORTED()),
        ),
        fact.shows(p.TRANSACTION_CHECK_TIMES, checks),
    ]
    if info is not None and undecided is not None:
        evidence.append(info.shows("transactionsUnresolved", undecided))
    if undecided == "0":
        return Reason(
            Cause.MESSAGE_ROLLED_BACK,
            Severity.WARNING,
            Said.MESSAGE_ROLLED_BACK(),
            tuple(evidence),
            Remedy.MESSAGE_ROLLED_BACK(),
        )
    return Reason(
        Cause.MESSAGE_HALF,
        Severity.WARNING,
        Said.MESSAGE_HALF(),
        tuple(evidence),
        Remedy.MESSAGE_HALF(),
    )


# Messages in their topic


def _where(facts: MessageFacts) -> str:
    message = facts.copies[0].value
    place = _place(message)
    count = len(facts.copies)
    return Shown.COPIES(place=place, count=count) if count > 1 else place


def _place(message: MessageExt) -> str:
    return Shown.PLACE(
        broker=message.broker_name,
        queue=message.queue_id,
        offset=message.queue_offset,
        time=local_time(message.store_timestamp_ms),
    )


def _stored_evidence(facts: MessageFacts) -> tuple[Evidence, ...]:
    return (
        *(fact.shows(Shown.STORED(), _place(fact.value)) for fact in facts.copies[:_MOST_EVIDENCE]),
        (facts.indexed or facts.copies[0]).shows(
            Shown.INDEXED(), Shown.YES() if facts.indexed else Shown.NOT_YET()
        ),
    )


def _in_group(facts: MessageFacts, group: GroupFacts) -> tuple[Reason, Delivery]:
    """Judge the newest copy, which a group gets last."""
    name = group.group
    dead, retried = facts.dead.get(name, []), facts.retried.get(name, [])
    pending = [
        fact
        for fact in facts.delayed
        if fact.value.properties.get(p.REAL_TOPIC) == retry_topic(name)
        and not any(_follows(copy.value, fact.value) for copy in retried + dead)
    ]
    times = max((fact.value.reconsume_times for fact in (*retried, *pending, *dead)), default=0)
    copy = newest_copy(facts, name)
    if dead and _stored_ms(dead[-1]) >= _stored_ms(copy):  # else it was sent again
        return _dead(facts, name, dead[-1], times)
    if pending:
        return _retried(facts, name, pending[-1], times)
    return _consumed_or_not(facts, group, copy, times)


def _stored_ms(fact: Reported[MessageExt]) -> int:
    return fact.value.store_timestamp_ms


def _follows(later: MessageExt, earlier: MessageExt) -> bool:
    """Say whether a copy was made of another one after its delay."""
    return (
        later.store_timestamp_ms >= earlier.store_timestamp_ms
        and later.reconsume_times >= earlier.reconsume_times
    )


def _dead(
    facts: MessageFacts, group: str, fact: Reported[MessageExt], times: int
) -> tuple[Reason, Delivery]:
    reason = Reason(
        Cause.DEAD_LETTERED,
        Severity.ERROR,
        Said.DEAD_LETTERED(group=group, count=times),
        (
            fact.shows(Shown.DEAD_LETTER(topic=fact.value.topic), _place(fact.value)),
            fact.shows("reconsumeTimes", fact.value.reconsume_times),
            *_failure(fact),
            *_stored_evidence(facts),
        ),
        Remedy.DEAD_LETTERED(group=group, message=facts.message_id),
    )
    return reason, Delivery(group, reason.cause, "", times, None)


def _failure(fact: Reported[MessageExt]) -> list[Evidence]:
    """Return what the member that failed has noted of the cause, if it has."""
    failure = fact.value.failure
    if failure is None:
        return []
    cause = f"{failure.type}: {failure.text}" if failure.text else failure.type
    return [fact.shows("failure", f"{cause} ({failure.member})")]


def _retried(
    facts: MessageFacts, group: str, fact: Reported[MessageExt], times: int
) -> tuple[Reason, Delivery]:
    due_ms = due(facts, fact.value)
    failed = {"group": group, "count": times or 1}
    reason = Reason(
        Cause.RETRIED,
        Severity.WARNING,
        Said.RETRIED_LATER(**failed)
        if due_ms is None
        else Said.RETRIED(**failed, time=local_time(due_ms)),
        (
            fact.shows("reconsumeTimes", fact.value.reconsume_times),
            *_failure(fact),
            fact.shows(Shown.WAITS(), _place(fact.value)),
            *_stored_evidence(facts),
        ),
        Remedy.RETRIED(),
    )
    return reason, Delivery(group, reason.cause, "", times, due_ms)


def _evidence_of_delivery(
    facts: MessageFacts,
    group: GroupFacts,
    queue: MessageQueue,
    owner: str,
    at: Progress | None,
) -> list[Evidence]:
    """Return what shows the message's place, the group's subscription and progress, and the queue's owner."""
    evidence = list(_stored_evidence(facts))
    data = group.subscription(facts.topic)
    if data is not None:
        source = next(iter(group.online.values()))
        evidence.append(source.shows(Shown.SUBSCRIPTION(), data.sub_string))
    if at is not None:
        evidence.append(
            at[1].shows(
                Shown.OFFSETS_OF_GROUP(group=group.group, queue=queue),
                Shown.CONSUMED_UP_TO(consumed=at[0].consumer_offset, pulled=at[0].pulled_offset),
            )
        )
    if owner:
        evidence.append(
            group.members[owner].shows(Shown.HAS(queue=queue), Shown.MEMBER(member=owner)),
        )
    return evidence


@dataclass(frozen=True, slots=True)
class _Case:
    """Holds one record, one group, and the facts that decide whether the group has consumed it."""

    facts: MessageFacts
    group: GroupFacts
    record: Reported[MessageExt]
    times: int
    # The member that the queue belongs to, and how far the group is in it.
    owner: str
    at: Progress | None
    evidence: list[Evidence]

    @property
    def consumed_offset(self) -> int:
        return 0 if self.at is None else self.at[0].consumer_offset or 0

    @property
    def is_consumed(self) -> bool:
        return self.consumed_offset > self.record.value.queue_offset

    @property
    def is_pulled(self) -> bool:
        return self.at is not None and self.at[0].pulled_offset > self.record.value.queue_offset

    @property
    def is_unsubscribed(self) -> bool:
        """Whether no member wants the topic. A retry reaches the group through its retry topic,
        whatever its members subscribe to.
        """
        topic = self.facts.topic
        return self.record.value.topic == topic and self.group.subscribes(topic) is False

    def outcome(
        self, cause: Cause, severity: Severity, said: str, remedy: str = ""
    ) -> tuple[Reason, Delivery]:
        return (
            Reason(cause, severity, said, tuple(self.evidence), remedy),
            Delivery(self.group.group, cause, self.owner, self.times, None),
        )


def _consumed_or_not(
    facts: MessageFacts, group: GroupFacts, fact: Reported[MessageExt], times: int
) -> tuple[Reason, Delivery]:
    message, name = fact.value, group.group
    queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
    owner = group.owners().get(queue, "")
    at = next(((p_, t) for p_, t in group.queues() if p_.queue == queue), None)
    evidence = _evidence_of_delivery(facts, group, queue, owner, at)
    case = _Case(facts, group, fact, times, owner, at, evidence)
    if (verdict := _filtered(case)) is not None:
        return verdict
    if (verdict := _popped(facts, group, fact, evidence, owner)) is not None:
        return verdict
    unsubscribed = case.is_unsubscribed
    if group.broadcasting is not None and not unsubscribed:
        return case.outcome(Cause.BROADCASTING, Severity.OK, Said.MESSAGE_BROADCASTING(group=name))
    if group.broadcasting is None and fact.address not in group.progress:
        return case.outcome(
            Cause.NOT_REPORTED,
            Severity.WARNING,
            Said.DELIVERY_UNKNOWN(group=name, broker=message.broker_name),
            Remedy.DELIVERY_UNKNOWN(),
        )
    if case.is_consumed:
        said = (
            Said.CONSUMED_AT_RETRY(group=name, times=times) if times else Said.CONSUMED(group=name)
        )
        return case.outcome(Cause.CONSUMED, Severity.OK, said)
    if unsubscribed:
        evidence += reported_subscriptions(group)
        return case.outcome(
            Cause.NOT_SUBSCRIBED,
            Severity.WARNING,
            Said.MESSAGE_NOT_SUBSCRIBED(group=name, topic=facts.topic),
            Remedy.NOT_SUBSCRIBED(group=name, topic=facts.topic),
        )
    if case.is_pulled and group.online:
        return case.outcome(
            Cause.IN_FLIGHT,
            Severity.WARNING,
            Said.IN_FLIGHT_AT(group=name, member=owner) if owner else Said.IN_FLIGHT(group=name),
            Remedy.IN_FLIGHT(group=name),
        )
    return _not_pulled(case)


def _filtered(case: _Case) -> tuple[Reason, Delivery] | None:
    """Judge a message that the group's subscription leaves out; None for any other."""
    data = case.group.subscription(case.facts.topic)
    message = case.facts.copies[-1].value
    if data is None or selects(data, message) is not False:
        return None
    return case.outcome(
        Cause.FILTERED,
        Severity.WARNING,
        Said.FILTERED(
            group=case.group.group,
            kind=data.expression_type or "TAG",
            expression=data.sub_string,
            tag=message.tags,
        ),
        Remedy.FILTERED(),
    )


def _not_pulled(case: _Case) -> tuple[Reason, Delivery]:
    """Judge a message that the group has not reached, by the causes that keep it from pulling."""
    name = case.group.group
    why = judge_group(case.group)
    causes = shortened([r.cause.value for r in why if r.severity], 3) or Said.NO_CAUSE()
    between = max(0, case.record.value.queue_offset - case.consumed_offset)
    before = "" if case.at is None else Said.SOME_BEFORE(count=between)
    return case.outcome(
        Cause.NOT_PULLED,
        Severity.ERROR,
        Said.NOT_PULLED(group=name, before=before, causes=causes),
        next((r.remedy for r in why if r.remedy), Remedy.NOT_PULLED(group=name)),
    )


def _popped(
    facts: MessageFacts,
    group: GroupFacts,
    copy: Reported[MessageExt],
    evidence: list[Evidence],
    owner: str,
) -> tuple[Reason, Delivery] | None:
    """Judge a message in a group that pops; None if the group pulls it."""
    name, message = group.group, copy.value
    fact = facts.popped.get(name)
    is_retry = message.topic in (
        pop_retry_topic(name, facts.topic),
        pop_retry_topic_v2(name, facts.topic),
    )
    if fact is None:
        return None
    if fact.value is None:
        # Java's brokers do not know the request.
        pops = any(at.value.consume_type == "CONSUME_POP" for at in group.online.values())
        if not pops and not is_retry:
            return None
        reason = Reason(
            Cause.NOT_REPORTED,
            Severity.WARNING,
            Said.POPS_UNKNOWN(group=name, broker=message.broker_name),
            tuple(evidence),
            Remedy.POPS_UNKNOWN(group=name),
        )
        return reason, Delivery(name, reason.cause, "", message.reconsume_times, None)
    found = fact.value.message
    # A member that owns the queue pulls it, and its own figures say more about undelivered messages.
    if found is None or (found.state == "UNPOPPED" and owner):
        return None
    place = Reported(found, fact.request, fact.address, fact.at_ms)
    verdict = judge_popped(name, message, place, facts.at_ms, is_retry=is_retry)
    return (
        Reason(
            verdict.cause,
            verdict.severity,
            verdict.said,
            (*evidence, *popped_evidence(place)),
            verdict.remedy,
        ),
        Delivery(name, verdict.cause, verdict.owner, message.reconsume_times, verdict.next_ms),
    )

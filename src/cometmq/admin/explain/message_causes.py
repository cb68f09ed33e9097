"""Judges what became of a message, by the facts alone. Nothing here asks a server."""

from __future__ import annotations

import re
from typing import Final

from cometmq.admin.explain.disk import local_time
from cometmq.admin.explain.group_causes import judge as judge_group
from cometmq.admin.explain.group_causes import not_subscribed_remedy, subscriptions_told
from cometmq.admin.explain.group_facts import GroupFacts
from cometmq.admin.explain.inquiry import Told, number, plural, shortened
from cometmq.admin.explain.message_facts import MessageFacts
from cometmq.admin.explain.records import Cause, Delivery, Evidence, Reason
from cometmq.admin.explain.selecting import selects
from cometmq.model import properties as p
from cometmq.model.finding import Severity
from cometmq.model.message import MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.queue import MessageQueue

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
                f"the message is stored, but no group consumes topic {facts.topic}: {_where(facts)}",
                _stored_evidence(facts),
                "start a consumer that subscribes to the topic, with "
                "consume_from=ConsumeFromWhere.FIRST_OFFSET to get what is stored already",
            )
        )
    if facts.known_groups > len(facts.groups):
        reasons[-1:] = [
            *reasons[-1:],
            Reason(
                Cause.NOT_TOLD,
                Severity.WARNING,
                f"{len(facts.groups)} of {facts.known_groups} groups of the topic were asked about",
                (),
                "name the group in question",
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
        told.shows("indexBehindBytes", told.value["indexBehindBytes"])
        for told in facts.infos.values()
        if told.value.get("indexBehindBytes", "0") != "0"
    ]
    late = ", and an index is behind the log" if lag else ""
    return Reason(
        Cause.MESSAGE_UNKNOWN,
        Severity.ERROR,
        f"no broker that answered has the message {facts.message_id}"
        f"{f' in topic {facts.topic}' if facts.topic else ''}{late}",
        (*lag, *_beginnings(facts)),
        "check id and topic; see whether the producer's send succeeded; if an index is behind "
        "(indexBehindBytes), ask again in a moment",
    )


def _beginnings(facts: MessageFacts) -> list[Evidence]:
    return [
        told.shows("earliestMessageTimeStamp", _time_text(told.value["earliestMessageTimeStamp"]))
        for told in facts.infos.values()
        if "earliestMessageTimeStamp" in told.value
    ][:_MOST_EVIDENCE]


def _time_text(text: str) -> str:
    at_ms = number(text, -1)
    return local_time(at_ms) if at_ms >= 0 else "no message"


def _deleted(facts: MessageFacts) -> Reason | None:
    """Judge an offset id below the beginning of its broker's log."""
    told = facts.infos.get(facts.address)
    if facts.offset is None or told is None:
        return None
    beginning = number(told.value.get("commitLogMinOffset"), 0)
    if facts.offset >= beginning:
        return None
    return Reason(
        Cause.MESSAGE_DELETED,
        Severity.ERROR,
        f"the message is not there any more: broker {facts.places[facts.address].name} has deleted its "
        "file of the commit log",
        (
            told.shows("commitLogMinOffset", f"{beginning} (the message was at {facts.offset})"),
            *_beginnings(facts),
        ),
        "send it again from its source; keep messages for longer by fileReservedTime and more disk",
    )


def _delayed(facts: MessageFacts, told: Told[MessageExt]) -> Reason:
    message = told.value
    due_ms = due(facts, message)
    when = "at no known time" if due_ms is None else f"at {local_time(due_ms)}"
    overdue = due_ms is not None and due_ms < facts.at_ms - 10_000
    properties = {
        key: message.properties[key]
        for key in (p.DELAY_TIME_LEVEL, p.TIMER_DELIVER_MS, p.TIMER_DELAY_MS, p.TIMER_OUT_MS)
        if key in message.properties
    }
    return Reason(
        Cause.MESSAGE_DELAYED,
        Severity.WARNING if overdue else Severity.OK,
        f"the message waits at broker {message.broker_name} and comes to topic {facts.topic} {when}",
        (
            told.shows("stored", _place(message)),
            told.shows("delay", ", ".join(f"{k}={v}" for k, v in properties.items())),
        ),
        "it is overdue: look at the broker's log and at its runtime info "
        "(scheduleMessageOffset_…, timerReadBehind)"
        if overdue
        else "",
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


def _half(facts: MessageFacts, told: Told[MessageExt]) -> Reason:
    message = told.value
    info = facts.infos.get(told.address)
    undecided = None if info is None else info.value.get("transactionsUnresolved")
    checks = message.properties.get(p.TRANSACTION_CHECK_TIMES, "0")
    evidence = [
        told.shows("stored as half", _place(message)),
        told.shows("producer group", message.properties.get(p.PRODUCER_GROUP, "not told")),
        told.shows(p.TRANSACTION_CHECK_TIMES, checks),
    ]
    if info is not None and undecided is not None:
        evidence.append(info.shows("transactionsUnresolved", undecided))
    if undecided == "0":
        return Reason(
            Cause.MESSAGE_ROLLED_BACK,
            Severity.WARNING,
            "the message is half of a transaction that its producer rolled back, or that the broker "
            "gave up",
            tuple(evidence),
            "if it was not meant to be: see the producer's log; messages.given_up_halves() lists what "
            "brokers gave up, and messages.resume_half() has them ask again",
        )
    return Reason(
        Cause.MESSAGE_HALF,
        Severity.WARNING,
        "the message is half of a transaction that has not been committed, so nobody gets it: it is "
        "undecided, or was rolled back",
        tuple(evidence),
        "the broker asks a member of the producer group after transactionTimeOut: see that one is "
        "online and that its check answers",
    )


# Messages in their topic


def _where(facts: MessageFacts) -> str:
    message = facts.copies[0].value
    more = f" ({len(facts.copies)} copies)" if len(facts.copies) > 1 else ""
    return f"{_place(message)}{more}"


def _place(message: MessageExt) -> str:
    return (
        f"broker {message.broker_name}, queue {message.queue_id}, offset {message.queue_offset}, at "
        f"{local_time(message.store_timestamp_ms)}"
    )


def _stored_evidence(facts: MessageFacts) -> tuple[Evidence, ...]:
    return (
        *(told.shows("stored", _place(told.value)) for told in facts.copies[:_MOST_EVIDENCE]),
        (facts.indexed or facts.copies[0]).shows("indexed", "yes" if facts.indexed else "not yet"),
    )


def _in_group(facts: MessageFacts, group: GroupFacts) -> tuple[Reason, Delivery]:
    """Judge the newest copy, which a group gets last."""
    name = group.group
    dead, retried = facts.dead.get(name, []), facts.retried.get(name, [])
    pending = [
        told
        for told in facts.delayed
        if told.value.properties.get(p.REAL_TOPIC) == retry_topic(name)
        and not any(_follows(copy.value, told.value) for copy in retried + dead)
    ]
    times = max((told.value.reconsume_times for told in (*retried, *pending, *dead)), default=0)
    copy = max((*retried[-1:], facts.copies[-1]), key=_stored_ms)
    if dead and _stored_ms(dead[-1]) >= _stored_ms(copy):  # else it was sent again
        return _dead(facts, name, dead[-1], times)
    if pending:
        return _retried(facts, name, pending[-1], times)
    return _consumed_or_not(facts, group, copy, times)


def _stored_ms(told: Told[MessageExt]) -> int:
    return told.value.store_timestamp_ms


def _follows(later: MessageExt, earlier: MessageExt) -> bool:
    """Say whether a copy was made of another one after its delay."""
    return (
        later.store_timestamp_ms >= earlier.store_timestamp_ms
        and later.reconsume_times >= earlier.reconsume_times
    )


def _dead(
    facts: MessageFacts, group: str, told: Told[MessageExt], times: int
) -> tuple[Reason, Delivery]:
    reason = Reason(
        Cause.DEAD_LETTERED,
        Severity.ERROR,
        f"group {group} gave the message up after {plural(times, 'failure')}: it lies among the dead "
        "letters",
        (
            told.shows(f"dead letter in {told.value.topic}", _place(told.value)),
            told.shows("reconsumeTimes", told.value.reconsume_times),
            *_stored_evidence(facts),
        ),
        f"repair the listener, then send it again: messages.redrive(ID, {group!r}, "
        f"ids=[{facts.message_id!r}])",
    )
    return reason, Delivery(group, reason.cause, "", times, None)


def _retried(
    facts: MessageFacts, group: str, told: Told[MessageExt], times: int
) -> tuple[Reason, Delivery]:
    due_ms = due(facts, told.value)
    when = "at a later time" if due_ms is None else f"at {local_time(due_ms)}"
    reason = Reason(
        Cause.RETRIED,
        Severity.WARNING,
        f"group {group} got the message, its listener failed {plural(times or 1, 'time')}, and it comes again "
        f"{when}",
        (
            told.shows("reconsumeTimes", told.value.reconsume_times),
            told.shows("waits", _place(told.value)),
            *_stored_evidence(facts),
        ),
        "the member's log has the listener's error",
    )
    return reason, Delivery(group, reason.cause, "", times, due_ms)


def _consumed_or_not(
    facts: MessageFacts, group: GroupFacts, told: Told[MessageExt], times: int
) -> tuple[Reason, Delivery]:
    message, name = told.value, group.group
    queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
    owner = group.owners().get(queue, "")
    at = next(((p_, t) for p_, t in group.queues() if p_.queue == queue), None)
    data = group.subscription(facts.topic)
    chosen = None if data is None else selects(data, facts.copies[-1].value)
    evidence = list(_stored_evidence(facts))
    if data is not None:
        source = next(iter(group.online.values()))
        evidence.append(source.shows("subscription", data.sub_string))
    if at is not None:
        evidence.append(
            at[1].shows(
                f"offsets of group {name} in {queue}",
                f"consumed up to {at[0].consumer_offset}, handed out up to {at[0].pulled_offset}",
            )
        )
    if owner:
        evidence.append(
            group.members[owner].shows(f"has {queue}", f"member {owner}"),
        )

    def outcome(
        cause: Cause, severity: Severity, said: str, remedy: str
    ) -> tuple[Reason, Delivery]:
        return (
            Reason(cause, severity, said, tuple(evidence), remedy),
            Delivery(name, cause, owner, times, None),
        )

    if chosen is False:
        assert data is not None, "decided by it"
        return outcome(
            Cause.FILTERED,
            Severity.WARNING,
            f"group {name} does not select the message: it subscribes to "
            f"{data.expression_type or 'TAG'} {data.sub_string!r}, and the message has the tag "
            f"{facts.copies[-1].value.tags!r}",
            "subscribe to what the message has, or send it with the tag or properties that the group "
            "selects",
        )
    # A retry reaches the group through its retry topic, whatever its members subscribe to.
    unsubscribed = message.topic == facts.topic and group.subscribes(facts.topic) is False
    if group.broadcasting is not None and not unsubscribed:
        return outcome(
            Cause.BROADCASTING,
            Severity.OK,
            f"group {name} consumes by broadcasting: each member keeps its own offsets, and brokers do "
            "not know which of them got the message",
            "",
        )
    if group.broadcasting is None and told.address not in group.progress:
        return outcome(
            Cause.NOT_TOLD,
            Severity.WARNING,
            f"whether group {name} got the message is not known: broker {message.broker_name} did not "
            "tell the group's progress",
            "see what could not be asked, and why",
        )
    by = f" by {owner}" if owner else ""
    if at is not None and (at[0].consumer_offset or 0) > message.queue_offset:
        return outcome(
            Cause.CONSUMED,
            Severity.OK,
            f"group {name} has consumed the message{f' at retry {times}' if times else ''}: its offset "
            "is past it",
            "",
        )
    if unsubscribed:
        evidence += subscriptions_told(group)
        return outcome(
            Cause.NOT_SUBSCRIBED,
            Severity.WARNING,
            f"group {name} does not subscribe to topic {facts.topic}, so its members do not get the message",
            not_subscribed_remedy(name, facts.topic),
        )
    if at is not None and at[0].pulled_offset > message.queue_offset and group.online:
        return outcome(
            Cause.IN_FLIGHT,
            Severity.WARNING,
            f"the message was handed to group {name}{by} and is not consumed yet",
            "see why its listener takes long: cometmq explain group " + name,
        )
    why = judge_group(group)
    causes = shortened([r.cause.value for r in why if r.severity], 3) or "no cause was found"
    waits = (
        ""
        if at is None
        else f", {max(0, message.queue_offset - (at[0].consumer_offset or 0))} before it"
    )
    return outcome(
        Cause.NOT_PULLED,
        Severity.ERROR,
        f"group {name} has not got the message yet{waits}; why the group is behind: {causes}",
        next((r.remedy for r in why if r.remedy), f"see cometmq explain group {name}"),
    )

"""Judge why a group is behind, by the facts alone. Nothing here asks a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Final

from cometmq.admin.explain.disk import nothing_registered
from cometmq.admin.explain.groups import member_causes
from cometmq.admin.explain.groups.group_facts import GroupFacts
from cometmq.admin.explain.groups.group_lag import MOST_EVIDENCE, lag_evidence, waits
from cometmq.admin.explain.inquiry import Reported, number, shortened
from cometmq.admin.explain.records import Cause, Evidence, Reason
from cometmq.admin.explain.texts import Remedy, Said, Shown
from cometmq.admin.groups.records import RunningInfo
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.finding import Severity
from cometmq.model.sysflag import PERM_READ
from cometmq.protocol.bodies.inspection import ConsumerConnection

Judge = Callable[[GroupFacts], Iterator[Reason]]


def judge(facts: GroupFacts) -> list[Reason]:
    """Return the causes, the one that explains most first; at least one reason."""
    facts.settle()
    if not facts.places:
        return [nothing_registered()]
    if facts.broadcasting is not None:
        return [_broadcasting(facts, facts.broadcasting)]
    if not facts.progress:
        return [_nothing_reported(facts)]
    if not facts.behind() and facts.topic and facts.subscribes(facts.topic) is False:
        # Brokers leave such a topic out of the progress, so it looks as if no message waited.
        return [_no_subscription(facts, facts.topic)]
    if not facts.behind():
        found = [reason for judge in _ALWAYS for reason in judge(facts)]
        return [*found, _caught_up(facts)] if found else [_caught_up(facts)]
    found = [reason for judge in _WHEN_BEHIND for reason in judge(facts)]
    left = [reason for reason in found if reason.cause is not Cause.NOT_SUBSCRIBED]
    waits_for_it = any(facts.subscribes(at.queue.topic) is not False for at, _ in facts.behind())
    if waits_for_it and not any(reason.severity for reason in left):
        found.append(_just_behind(facts))
    return found


def _caught_up(facts: GroupFacts) -> Reason:
    evidence = tuple(
        reported.shows(Shown.QUEUES_LOOKED_AT(), len(reported.value))
        for reported in facts.progress.values()
    )
    queues, silent = len(facts.queues()), facts.silent_brokers()
    return Reason(
        Cause.CAUGHT_UP,
        Severity.OK,
        Said.CAUGHT_UP_IN_PART(group=facts.group, queues=queues, silent=shortened(silent))
        if silent
        else Said.CAUGHT_UP(group=facts.group, queues=queues),
        evidence[:MOST_EVIDENCE],
    )


def _nothing_reported(facts: GroupFacts) -> Reason:
    return Reason(
        Cause.NOT_REPORTED,
        Severity.WARNING,
        Said.PROGRESS_UNKNOWN(group=facts.group, brokers=shortened(facts.silent_brokers())),
        (),
        Remedy.PROGRESS_UNKNOWN(),
    )


def _broadcasting(facts: GroupFacts, reported: Reported[ConsumerConnection]) -> Reason:
    return Reason(
        Cause.BROADCASTING,
        Severity.OK,
        Said.GROUP_BROADCASTING(group=facts.group),
        (reported.shows("messageModel", reported.value.message_model),),
    )


def _just_behind(facts: GroupFacts) -> Reason:
    rate = facts.consume_per_s
    pulling = any(
        reported.value.consume_type == "CONSUME_ACTIVELY" for reported in facts.online.values()
    )
    said, remedy = (
        (Said.BEHIND_PULLING, Remedy.BEHIND_PULLING) if pulling else (Said.BEHIND, Remedy.BEHIND)
    )
    return Reason(
        Cause.BEHIND,
        Severity.WARNING,
        said(waits=waits(facts), rate=rate),
        tuple(lag_evidence(facts)),
        remedy(),
    )


# Permissions


def _disabled(facts: GroupFacts) -> Iterator[Reason]:
    found = [reported for reported in facts.configs.values() if not reported.value.consume_enable]
    if found:
        names = [facts.places[reported.address].name for reported in found]
        yield Reason(
            Cause.CONSUMPTION_DISABLED,
            Severity.ERROR,
            Said.CONSUMPTION_DISABLED(
                group=facts.group, brokers=shortened(names), waits=waits(facts)
            ),
            tuple(reported.shows("consumeEnable", "false") for reported in found[:MOST_EVIDENCE]),
            Remedy.CONSUMPTION_DISABLED(group=facts.group),
        )


def _brokers_unreadable(facts: GroupFacts) -> Iterator[Reason]:
    for address, reported in facts.settings.items():
        text = reported.value.get("brokerPermission", "6")
        if not number(text, PERM_READ) & PERM_READ and _lags_at(facts, address):
            yield Reason(
                Cause.BROKER_UNREADABLE,
                Severity.ERROR,
                Said.BROKER_UNREADABLE(broker=facts.places[address].name, permission=text),
                (reported.shows("brokerPermission", text),),
                Remedy.SET_BROKER_PERMISSION(),
            )


def _topics_unreadable(facts: GroupFacts) -> Iterator[Reason]:
    for (address, topic), reported in facts.topic_configs.items():
        if not reported.value.readable and _lags_at(facts, address, topic):
            yield Reason(
                Cause.TOPIC_UNREADABLE,
                Severity.ERROR,
                Said.TOPIC_UNREADABLE(
                    topic=topic, broker=facts.places[address].name, perm=reported.value.perm
                ),
                (reported.shows(Shown.OF(figure="perm", of=topic), reported.value.perm),),
                Remedy.TOPIC_UNREADABLE(topic=topic),
            )


def _forbidden(facts: GroupFacts) -> Iterator[Reason]:
    for (address, topic), reported in facts.forbidden.items():
        if reported.value and _lags_at(facts, address, topic):
            yield Reason(
                Cause.GROUP_FORBIDDEN,
                Severity.ERROR,
                Said.GROUP_FORBIDDEN(
                    group=facts.group, topic=topic, broker=facts.places[address].name
                ),
                (reported.shows("readable", "false"),),
                Remedy.GROUP_FORBIDDEN(group=facts.group, topic=topic),
            )


def _lags_at(facts: GroupFacts, address: str, topic: str | None = None) -> bool:
    return any(
        reported.address == address and topic in (None, progress.queue.topic)
        for progress, reported in facts.behind()
    )


# Members and their subscriptions


def _no_member(facts: GroupFacts) -> Iterator[Reason]:
    if facts.online or any(reported.address not in facts.offline for _, reported in facts.behind()):
        return
    yield Reason(
        Cause.NO_MEMBER,
        Severity.ERROR,
        Said.NO_MEMBER(group=facts.group, waits=waits(facts)),
        (
            *(
                reported.shows(Shown.MEMBERS_ONLINE(), 0)
                for reported in list(facts.offline.values())[:MOST_EVIDENCE]
            ),
            *lag_evidence(facts),
        ),
        Remedy.NO_MEMBER(),
    )


def _not_subscribed(facts: GroupFacts) -> Iterator[Reason]:
    """Judge topics in which the group has an offset although its members do not consume them now."""
    waiting: dict[str, set[MessageQueue]] = {}
    for progress, _ in facts.behind():
        if facts.subscribes(topic := progress.queue.topic) is False:
            waiting.setdefault(topic, set()).add(progress.queue)
    for topic, queues in waiting.items():
        count = sum(at.lag or 0 for at, _ in facts.behind() if at.queue in queues)
        yield Reason(
            Cause.NOT_SUBSCRIBED,
            Severity.WARNING,
            Said.LAG_NOT_SUBSCRIBED(group=facts.group, topic=topic, count=count),
            (*reported_subscriptions(facts), *lag_evidence(facts, queues)),
            Remedy.NOT_SUBSCRIBED(group=facts.group, topic=topic),
        )


def _no_subscription(facts: GroupFacts, topic: str) -> Reason:
    return Reason(
        Cause.NOT_SUBSCRIBED,
        Severity.WARNING,
        Said.GROUP_NOT_SUBSCRIBED(group=facts.group, topic=topic),
        tuple(reported_subscriptions(facts)),
        Remedy.NOT_SUBSCRIBED(group=facts.group, topic=topic),
    )


def reported_subscriptions(facts: GroupFacts) -> list[Evidence]:
    """Return the subscriptions that brokers report for the group; the topic is not among them."""
    return [
        reported.shows(
            Shown.SUBSCRIBED_TOPICS(),
            shortened(sorted(reported.value.subscription_table)) or Shown.NONE(),
        )
        for reported in list(facts.online.values())[:MOST_EVIDENCE]
    ]


def _different_subscriptions(facts: GroupFacts) -> Iterator[Reason]:
    """Compare the subscriptions that members report; brokers keep the one that came last."""
    by_choice: dict[tuple[str, ...], list[Reported[RunningInfo]]] = {}
    for reported in facts.members.values():
        choice = tuple(
            sorted(
                Said.SELECTION(
                    topic=data.topic,
                    kind=data.expression_type or "TAG",
                    expression=_expression(data.sub_string),
                )
                for data in reported.value.subscriptions
                if not is_retry_topic(data.topic)
            )
        )
        by_choice.setdefault(choice, []).append(reported)
    if len(by_choice) < 2:
        return
    choices: Sequence[str] = [
        Said.CHOICE(
            members=shortened([reported.value.client_id for reported in members], 2),
            selections=shortened(choice, 3),
        )
        for choice, members in by_choice.items()
    ][:3]
    yield Reason(
        Cause.DIFFERENT_SUBSCRIPTIONS,
        Severity.ERROR,
        Said.DIFFERENT_SUBSCRIPTIONS(
            group=facts.group,
            choices=reduce(lambda one, other: Said.ONE_AND_NEXT(one=one, next=other), choices),
        ),
        tuple(
            members[0].shows(Shown.SUBSCRIPTIONS(), Said.ITEMS(items=choice) or Shown.NONE())
            for choice, members in list(by_choice.items())[:MOST_EVIDENCE]
        ),
        Remedy.DIFFERENT_SUBSCRIPTIONS(),
    )


def _expression(text: str) -> str:
    """Write tags in one order, because members may name them in any."""
    return " || ".join(sorted(part.strip() for part in text.split("||")))


# Offsets


def _offsets_outside(facts: GroupFacts) -> Iterator[Reason]:
    early = [
        (progress, reported, facts.beginnings[progress.queue])
        for progress, reported in facts.queues()
        if (begin := facts.beginnings.get(progress.queue)) is not None
        and (progress.consumer_offset or 0) < begin.value
    ]
    if early:
        lost = sum(begin.value - (progress.consumer_offset or 0) for progress, _, begin in early)
        yield Reason(
            Cause.OFFSET_BEFORE_BEGINNING,
            Severity.ERROR,
            Said.OFFSET_BEFORE_BEGINNING(lost=lost, queues=len(early)),
            tuple(
                evidence
                for progress, reported, begin in early[:MOST_EVIDENCE]
                for evidence in (
                    reported.shows(
                        Shown.OF(figure="consumerOffset", of=progress.queue),
                        progress.consumer_offset,
                    ),
                    begin.shows(Shown.OF(figure="minOffset", of=progress.queue), begin.value),
                )
            ),
            Remedy.OFFSET_BEFORE_BEGINNING(),
        )
    late = [
        (progress, reported) for progress, reported in facts.queues() if (progress.lag or 0) < 0
    ]
    if late:
        yield Reason(
            Cause.OFFSET_AFTER_END,
            Severity.ERROR,
            Said.OFFSET_AFTER_END(queues=len(late)),
            tuple(
                reported.shows(
                    Shown.OF(figure="consumerOffset", of=progress.queue),
                    Shown.OFFSET_AND_END(
                        offset=progress.consumer_offset, end=progress.broker_offset
                    ),
                )
                for progress, reported in late[:MOST_EVIDENCE]
            ),
            Remedy.OFFSET_AFTER_END(),
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
    member_causes.paused,
    member_causes.ownerless,
    member_causes.unlocked,
    member_causes.retries,
    member_causes.in_flight,
    member_causes.slow,
    member_causes.flow_controlled,
    member_causes.pull_failures,
    _not_subscribed,
    member_causes.filtered,
    member_causes.idle_members,
    member_causes.silent,
)
_ALWAYS: Final[tuple[Judge, ...]] = (
    _different_subscriptions,
    _offsets_outside,
    member_causes.retries,
)

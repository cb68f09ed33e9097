"""Judges why a group is behind, by the facts alone. Nothing here asks a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cometmq.admin.explain import member_causes
from cometmq.admin.explain.disk import nothing_registered
from cometmq.admin.explain.group_facts import GroupFacts
from cometmq.admin.explain.group_lag import MOST_EVIDENCE, lag_evidence, waits
from cometmq.admin.explain.inquiry import Told, number, plural, shortened
from cometmq.admin.explain.records import Cause, Evidence, Reason
from cometmq.admin.groups.records import RunningInfo
from cometmq.model.finding import Severity
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
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
        return [_nothing_told(facts)]
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
        told.shows("queues looked at", len(told.value)) for told in facts.progress.values()
    )
    where = ""
    if untold := facts.untold():
        where = f" of the brokers that told its progress; {shortened(untold)} did not"
    return Reason(
        Cause.CAUGHT_UP,
        Severity.OK,
        f"group {facts.group} is not behind: no message waits in "
        f"{plural(len(facts.queues()), 'queue')}{where}",
        evidence[:MOST_EVIDENCE],
    )


def _nothing_told(facts: GroupFacts) -> Reason:
    return Reason(
        Cause.NOT_TOLD,
        Severity.WARNING,
        f"whether group {facts.group} is behind is not known: {shortened(facts.untold())} did not tell "
        "its progress",
        (),
        "see what could not be asked, and why; start brokers that are away",
    )


def _broadcasting(facts: GroupFacts, told: Told[ConsumerConnection]) -> Reason:
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
    said = f"{waits(facts)}, and the group takes {rate:.1f} a second; no other cause was found"
    remedy = "look again in a minute: if the lag grows, add members or concurrency"
    if pulling:
        said += "; its program pulls by itself, so only the program knows when it does"
        remedy = "look at the program's own log: it decides when it polls and commits"
    return Reason(Cause.BEHIND, Severity.WARNING, said, tuple(lag_evidence(facts)), remedy)


# Permissions


def _disabled(facts: GroupFacts) -> Iterator[Reason]:
    found = [told for told in facts.configs.values() if not told.value.consume_enable]
    if found:
        names = [facts.places[told.address].name for told in found]
        yield Reason(
            Cause.CONSUMPTION_DISABLED,
            Severity.ERROR,
            f"consumption is switched off for group {facts.group} at {shortened(names)}: the broker "
            f"refuses its pulls; {waits(facts)}",
            tuple(told.shows("consumeEnable", "false") for told in found[:MOST_EVIDENCE]),
            f"switch it on: groups.update({facts.group!r}, consume_enable=True)",
        )


def _brokers_unreadable(facts: GroupFacts) -> Iterator[Reason]:
    for address, told in facts.settings.items():
        text = told.value.get("brokerPermission", "6")
        if not number(text, PERM_READ) & PERM_READ and _lags_at(facts, address):
            yield Reason(
                Cause.BROKER_UNREADABLE,
                Severity.ERROR,
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
                Severity.ERROR,
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
                Severity.ERROR,
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
    if facts.online or any(told.address not in facts.offline for _, told in facts.behind()):
        return
    yield Reason(
        Cause.NO_MEMBER,
        Severity.ERROR,
        f"no member of group {facts.group} is connected; {waits(facts)}",
        (
            *(
                told.shows("members online", 0)
                for told in list(facts.offline.values())[:MOST_EVIDENCE]
            ),
            *lag_evidence(facts),
        ),
        "start a member, check that it runs and reaches the brokers, or check the group's name",
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
            f"group {facts.group} does not subscribe to topic {topic}, so no member takes the "
            f"{plural(count, 'message')} that count as its lag there",
            (*subscriptions_told(facts), *lag_evidence(facts, queues)),
            not_subscribed_remedy(facts.group, topic),
        )


def _no_subscription(facts: GroupFacts, topic: str) -> Reason:
    return Reason(
        Cause.NOT_SUBSCRIBED,
        Severity.WARNING,
        f"group {facts.group} does not subscribe to topic {topic}, so no member takes its messages",
        tuple(subscriptions_told(facts)),
        not_subscribed_remedy(facts.group, topic),
    )


def subscriptions_told(facts: GroupFacts) -> list[Evidence]:
    """Return the subscriptions that brokers report for the group; the topic is not among them."""
    return [
        told.shows(
            "subscribed topics",
            shortened(sorted(name for name in told.value.subscription_table)) or "none",
        )
        for told in list(facts.online.values())[:MOST_EVIDENCE]
    ]


def not_subscribed_remedy(group: str, topic: str) -> str:
    return (
        f"have the members subscribe to {topic} if the group should get its messages; otherwise "
        f"only an earlier offset is left: offsets.skip({group!r}, {topic!r}) skips the messages "
        "that wait"
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
        Severity.ERROR,
        f"members of group {facts.group} subscribe to different things, so brokers refuse pulls or "
        f"select the wrong messages: {'; '.join(said[:3])}",
        tuple(
            members[0].shows("subscriptions", ", ".join(choice) or "none")
            for choice, members in list(by_choice.items())[:MOST_EVIDENCE]
        ),
        "give every member of the group the same topics and expressions, or use two groups",
    )


def _expression(text: str) -> str:
    """Write tags in one order, because members may name them in any."""
    return " || ".join(sorted(part.strip() for part in text.split("||")))


# Offsets


def _offsets_outside(facts: GroupFacts) -> Iterator[Reason]:
    early = [
        (progress, told, facts.beginnings[progress.queue])
        for progress, told in facts.queues()
        if (begin := facts.beginnings.get(progress.queue)) is not None
        and (progress.consumer_offset or 0) < begin.value
    ]
    if early:
        lost = sum(begin.value - (progress.consumer_offset or 0) for progress, _, begin in early)
        yield Reason(
            Cause.OFFSET_BEFORE_BEGINNING,
            Severity.ERROR,
            f"{plural(lost, 'message')} left the log before the group got them: its offset is below "
            f"the beginning of {plural(len(early), 'queue')}, whose oldest files were deleted",
            tuple(
                evidence
                for progress, told, begin in early[:MOST_EVIDENCE]
                for evidence in (
                    told.shows(f"consumerOffset of {progress.queue}", progress.consumer_offset),
                    begin.shows(f"minOffset of {progress.queue}", begin.value),
                )
            ),
            "what was deleted cannot be had; members go on at the beginning. Keep messages for longer "
            "(fileReservedTime, more disk), and watch the lag's age",
        )
    late = [(progress, told) for progress, told in facts.queues() if (progress.lag or 0) < 0]
    if late:
        yield Reason(
            Cause.OFFSET_AFTER_END,
            Severity.ERROR,
            f"the group's offset is behind the end of {plural(len(late), 'queue')}: the topic was "
            "deleted and made again, or a broker lost messages; new messages are passed over",
            tuple(
                told.shows(
                    f"consumerOffset of {progress.queue}",
                    f"{progress.consumer_offset} (end {progress.broker_offset})",
                )
                for progress, told in late[:MOST_EVIDENCE]
            ),
            "reset the group: offsets.reset_to_time(), or offsets.reset_queue() for one queue",
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

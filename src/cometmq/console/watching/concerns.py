"""Say what needs attention first, from what the watch has seen.

Errors come before warnings, and in each the most costly for the owner of a group first: messages
that are refused or not delivered, then late messages, then anything else that is not as it should
be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cometmq.admin.checkup_texts import Checked
from cometmq.console.views.rendering import Span, moment, url
from cometmq.console.watching.troubles import Troubles
from cometmq.console.watching.watch import BrokerState, GroupLag, LagChange, Watch
from cometmq.model.reports.finding import Finding, Severity, alike

# A group is of concern if this many messages wait for it and their number did not fall within the span.
_LAG: Final = 1_000
GROWTH_SPAN_MS: Final = 10 * 60 * 1000
# Within a shorter time any group may stand still between two pulls.
_SHORTEST_SPAN_MS: Final = 60 * 1000
_MOST_GROUPS: Final = 5
# How many servers with the same finding of a check-up are named.
_MOST_ALSO: Final = 2
_LATE_S: Final = 10
_BEHIND_BYTES: Final = 64 * 1024 * 1024


class Loss(IntEnum):
    """Ranks what the owner of a group loses, the worst first."""

    SERVICE = 0
    MESSAGES = 1
    TIME = 2
    NOTHING_YET = 3


@dataclass(frozen=True, slots=True)
class Concern:
    """Is a thing that needs attention: where, what, what to do, and the page that shows more.

    `what` may have places such as `%(count)s`, which `values` fill after the translation.
    """

    severity: Severity
    where: str
    what: str
    remedy: str
    url: str
    values: Mapping[str, object]
    loss: Loss = Loss.NOTHING_YET
    # Further servers with the same concern: some names, and the number of the others.
    also: tuple[str, ...] = ()
    more: int = 0

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


def concerns_of(watch: Watch) -> list[Concern]:
    """Return what needs attention, the worst first."""
    found = [
        *_of_name_servers(watch),
        *(concern for state in watch.brokers for concern in _of_broker(watch, state)),
        *_of_check_up(watch),
        *_of_troubles(watch.troubles),
        *_of_groups(watch),
    ]
    return sorted(found, key=lambda concern: (-concern.severity, concern.loss))


def label(state: BrokerState) -> str:
    """Return how a check-up names a broker."""
    if state.is_master:
        return Checked.BROKER(name=state.at.broker_name)
    return Checked.SLAVE(id=state.at.broker_id, name=state.at.broker_name)


def behind_bytes(watch: Watch, state: BrokerState) -> int | None:
    """Return how many bytes of its master's log a slave has not got yet; None if nobody knows."""
    if state.is_master:
        return None
    has = state.whole("commitLogMaxOffset")
    wanted = next(
        (
            other.whole("commitLogMaxOffset")
            for other in watch.brokers
            if other.is_master
            and (other.at.cluster, other.at.broker_name) == (state.at.cluster, state.at.broker_name)
        ),
        None,
    )
    return None if has is None or wanted is None else max(wanted - has, 0)


def broker_url(address: str, **query: object) -> str:
    """Return the address of a broker's page."""
    return url("/broker", address=address, **query)


def _of_name_servers(watch: Watch) -> Iterator[Concern]:
    if watch.error is not None:
        yield Concern(
            Severity.ERROR,
            "name servers",
            "The name servers do not say which brokers there are: %(error)s",
            "Start them. Until then this page shows the brokers that were known before.",
            "/brokers",
            {"error": watch.error},
            Loss.SERVICE,
        )
    elif watch.samples and not watch.brokers:
        yield Concern(
            Severity.ERROR,
            Checked.BROKERS(),
            "No broker is registered.",
            "Start one with these name servers in namesrvAddr.",
            "/brokers",
            {},
            Loss.SERVICE,
        )


def _of_broker(watch: Watch, state: BrokerState) -> Iterator[Concern]:
    where, page = label(state), broker_url(state.at.address)
    if state.gone_ms:
        yield Concern(
            Severity.ERROR,
            where,
            "It is no longer registered: it has stopped, or cannot reach the name servers.",
            "Start it, or look at its log. If it was removed for good, this disappears within an hour.",
            page,
            {},
            Loss.SERVICE,
        )
    elif state.is_silent:
        yield Concern(
            Severity.ERROR,
            where,
            "It does not answer, since %(moment)s: %(error)s",
            "Start it, or look at its log. Clients use other brokers meanwhile.",
            page,
            {"moment": moment(state.silent_ms), "error": state.error},
            Loss.SERVICE,
        )
    elif state.error is not None:
        yield Concern(
            Severity.WARNING,
            where,
            "It answers, but does not report its state: %(error)s",
            "It may be of another version, or refuse the console's account.",
            page,
            {"error": state.error},
        )
    if state.refusing:
        yield Concern(
            Severity.ERROR,
            where,
            "It refuses messages: %(reason)s",
            "Do as the reason says, or free disk.",
            page,
            {"reason": state.refusing},
            Loss.SERVICE,
        )
    late_s = state.whole("timerReadBehind") or 0
    if late_s >= _LATE_S:
        yield Concern(
            Severity.WARNING,
            where,
            "It delivers timed messages %(seconds)s s late.",
            "Look whether its disk or processor is busy.",
            "/delayed",
            {"seconds": late_s},
            Loss.TIME,
        )
    behind = behind_bytes(watch, state) or 0
    if behind >= _BEHIND_BYTES:
        yield Concern(
            Severity.WARNING,
            where,
            "It lacks %(mib)s MiB of its master's log.",
            "If the number does not fall, look at the network between them.",
            broker_url(state.at.address, part="replication"),
            {"mib": behind // 1024**2},
        )


def _of_check_up(watch: Watch) -> Iterator[Concern]:
    labels = {label(state): state for state in watch.brokers}
    if watch.findings is None or watch.findings.value is None:
        return
    found = [
        finding
        for finding in watch.findings.value
        if finding.severity is not Severity.OK and not _is_shown_already(finding, labels)
    ]
    for group in alike(found):
        finding, others = group[0], [each.check for each in group[1:]]
        name = finding.check.rpartition(": ")[0] or finding.check
        state = labels.get(name) if len(group) == 1 else None
        page = "/brokers" if state is None else broker_url(state.at.address)
        said = {"found": finding.value}
        yield Concern(
            finding.severity,
            finding.check,
            "%(found)s",
            finding.remedy,
            page,
            said,
            also=tuple(others[:_MOST_ALSO]),
            more=max(len(others) - _MOST_ALSO, 0),
        )


def _is_shown_already(finding: Finding, labels: dict[str, BrokerState]) -> bool:
    """Say whether the newest look at the brokers found the same: the check-up is older."""
    where, _, what = finding.check.rpartition(": ")
    return finding.check in labels or (where in labels and what == "messages")


def _of_troubles(troubles: Troubles) -> Iterator[Concern]:
    for group in sorted(troubles.conflicts)[:_MOST_GROUPS]:
        yield Concern(
            Severity.ERROR,
            group,
            "Its members select topic %(topic)s differently, so it loses messages.",
            "Give all members the same subscriptions.",
            url("/group", name=group, view="members"),
            {"topic": ", ".join(troubles.conflicts[group])},
            Loss.MESSAGES,
        )
    if (more := len(troubles.conflicts) - _MOST_GROUPS) > 0:
        yield Concern(
            Severity.ERROR,
            "consumer groups",
            "%(count)s more groups have members with different subscriptions.",
            "Give all members of a group the same subscriptions.",
            url("/groups", kind="conflict"),
            {"count": f"{more:,}"},
            Loss.MESSAGES,
        )
    newest = sorted(troubles.letters.items(), key=lambda pair: (-pair[1].newest_ms, pair[0]))
    for group, letters in newest[:_MOST_GROUPS]:
        yield Concern(
            Severity.WARNING,
            group,
            "New dead letters within 24 hours: %(count)s, the last one %(moment)s.",
            "Find out why the group fails, then send them again.",
            url("/letters", group=group, begin="24h"),
            {"count": f"{letters.count:,}", "moment": moment(letters.newest_ms)},
            Loss.MESSAGES,
        )
    if (more := len(newest) - _MOST_GROUPS) > 0:
        yield Concern(
            Severity.WARNING,
            "dead letters",
            "%(count)s more groups have new dead letters.",
            "The page Dead letters has all groups.",
            "/letters",
            {"count": f"{more:,}"},
            Loss.MESSAGES,
        )
    given_up = troubles.given_up.value if troubles.given_up is not None else None
    if given_up is not None and given_up.count:
        yield Concern(
            Severity.WARNING,
            "half messages",
            "Given up within 24 hours: %(count)s, the last one %(moment)s. No producer decided, so their "
            "messages are not delivered.",
            "Start the producers, then resume the transactions.",
            url("/transactions", kind="given-up"),
            {"count": f"{given_up.count:,}", "moment": moment(given_up.newest_ms)},
            Loss.MESSAGES,
        )


def _of_groups(watch: Watch) -> Iterator[Concern]:
    if watch.lags is None:
        return
    behind = [each for each in watch.lags.of_users if each.least >= _LAG]
    changes = [(watch.lag_change(each.group, GROWTH_SPAN_MS), each) for each in behind]
    stuck = sorted(
        (
            (change, each)
            for change, each in changes
            if change is not None and change.grown >= 0 and change.span_ms >= _SHORTEST_SPAN_MS
        ),
        key=lambda pair: -pair[1].least,
    )
    for change, each in stuck[:_MOST_GROUPS]:
        yield _of_group(each, change)


def _of_group(each: GroupLag, change: LagChange) -> Concern:
    return Concern(
        Severity.WARNING,
        each.group,
        "%(lag)s messages wait for this group, %(change)s more than %(time)s ago."
        if change.grown
        else "%(lag)s messages wait for this group, as many as %(time)s ago.",
        "Ask why it is behind.",
        url("/why/group", name=each.group),
        {
            "lag": f"{each.least:,}",
            "change": f"{change.grown:,}",
            "time": Span(change.span_ms),
        },
        Loss.TIME,
    )

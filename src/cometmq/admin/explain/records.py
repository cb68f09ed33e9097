"""Define the answers of `AdminClient.explain`: causes, their evidence and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cometmq.admin.brokers.room import NextDeletion
from cometmq.admin.groups.records import QueueProgress
from cometmq.model.message import MessageExt
from cometmq.model.reports.finding import Severity


class Cause(Enum):
    """Names what explains an answer. The values are those that `cometmq explain -o json` prints."""

    # Why is this group behind?
    CAUGHT_UP = "caught-up"
    BEHIND = "behind"
    BROADCASTING = "broadcasting"
    NO_MEMBER = "no-member"
    CONSUMPTION_DISABLED = "consumption-disabled"
    TOPIC_UNREADABLE = "topic-unreadable"
    BROKER_UNREADABLE = "broker-unreadable"
    GROUP_FORBIDDEN = "group-forbidden"
    DIFFERENT_SUBSCRIPTIONS = "different-subscriptions"
    OFFSET_BEFORE_BEGINNING = "offset-before-beginning"
    OFFSET_AFTER_END = "offset-after-end"
    MEMBER_PAUSED = "member-paused"
    QUEUE_LOCKED = "queue-locked"
    REBALANCING = "rebalancing"
    QUEUE_WITHOUT_OWNER = "queue-without-owner"
    PULLS_REFUSED = "pulls-refused"
    PULLS_THROTTLED = "pulls-throttled"
    QUEUE_SUSPENDED = "queue-suspended"
    RETRY_STORM = "retry-storm"
    SLOW_LISTENER = "slow-listener"
    FLOW_CONTROLLED = "flow-controlled"
    FILTER = "filter"
    NOT_SUBSCRIBED = "not-subscribed"
    MORE_MEMBERS_THAN_QUEUES = "more-members-than-queues"
    MEMBER_SILENT = "member-silent"
    # Why was this message not delivered?
    MESSAGE_UNKNOWN = "message-unknown"
    MESSAGE_DELETED = "message-deleted"
    MESSAGE_DELAYED = "message-delayed"
    MESSAGE_HALF = "message-half"
    MESSAGE_ROLLED_BACK = "message-rolled-back"
    NO_GROUP = "no-group"
    CONSUMED = "consumed"
    FILTERED = "filtered"
    IN_FLIGHT = "in-flight"
    NOT_PULLED = "not-pulled"
    INVISIBLE = "invisible"
    ACKNOWLEDGED = "acknowledged"
    NOT_POPPED = "not-popped"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    # Why is this write refused?
    ACCEPTED = "accepted"
    TOPIC_UNKNOWN = "topic-unknown"
    TOPIC_CREATED_BY_FIRST_SEND = "topic-created-by-first-send"
    TOPIC_RESERVED = "topic-reserved"
    TOPIC_UNWRITABLE = "topic-unwritable"
    BROKER_UNWRITABLE = "broker-unwritable"
    WRITE_PERMISSION_WIPED = "write-permission-wiped"
    NO_WRITE_QUEUES = "no-write-queues"
    NOT_IN_ROUTE = "not-in-route"
    DISK_FULL = "disk-full"
    PAGE_CACHE_BUSY = "page-cache-busy"
    STORE_REFUSES = "store-refuses"
    MESSAGE_TOO_LARGE = "message-too-large"
    # Which file is deleted next, and what would a restart cost?
    NEXT_DELETION = "next-deletion"
    NO_DELETION = "no-deletion"
    RESTART_COST = "restart-cost"
    NO_OTHER_BROKER = "no-other-broker"
    NOT_REPORTED = "not-reported"
    BROKER_AWAY = "broker-away"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Holds a figure and its source: the answer to `request` from the server at `address`.

    `at_ms` is when the answer came, in ms since the epoch.
    """

    figure: str
    value: str
    request: str
    address: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reason:
    """States one cause in a sentence, with its evidence and what to do.

    A reason that is not OK always has a remedy. `said`, `remedy` and the figures of the evidence
    remember their keys (`cometmq.model.reports.keyed_text`).
    """

    cause: Cause
    severity: Severity
    said: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.severity is Severity.OK or self.remedy, f"{self.cause}: no remedy"


@dataclass(frozen=True, slots=True)
class Unasked:
    """Names a question that a server did not answer, and the reason. The explanation may therefore
    lack a cause.
    """

    request: str
    address: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Answers a question by one or more reasons, the one that explains most first.

    `unasked` lists what could not be found out. Times are in ms since the epoch.
    """

    question: str
    reasons: tuple[Reason, ...]
    unasked: tuple[Unasked, ...]
    at_ms: int

    @property
    def answer(self) -> str:
        """Return the sentence of the first reason."""
        return self.reasons[0].said

    @property
    def causes(self) -> tuple[Cause, ...]:
        return tuple(dict.fromkeys(reason.cause for reason in self.reasons))

    @property
    def severity(self) -> Severity:
        """Return how bad the worst reason is; what could not be asked counts as a warning."""
        worst = max((reason.severity for reason in self.reasons), default=Severity.OK)
        return max(worst, Severity.WARNING) if self.unasked else worst


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplanation(Explanation):
    """Says why a group is behind. `queues` has its progress in every queue that was looked at."""

    group: str
    queues: tuple[QueueProgress, ...]
    consume_per_s: float

    @property
    def lag(self) -> int | None:
        """Return the number of messages that wait; a queue that is ahead of its end counts 0. It is None
        where the group has committed no offset and no member says where it begins.
        """
        lags = [queue.lag for queue in self.queues]
        return None if None in lags else sum(max(0, lag) for lag in lags if lag is not None)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Says what became of a message in one group.

    `owner` is the member that has the message's queue, empty if that is not known. `retries` counts
    how often the message was sent back, and `next_ms` says when it is delivered again, None if it
    is not.
    """

    group: str
    cause: Cause
    owner: str
    retries: int
    next_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageExplanation(Explanation):
    """Says where a message is stored, and its state in each group.

    `copies` are those in its topic, oldest first; there are several if a send was repeated. Their
    bodies are as they are stored: compressed if the producer compressed them.
    """

    copies: tuple[MessageExt, ...]
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteExplanation(Explanation):
    """Says for each broker, by address, the causes why it refuses messages of a topic."""

    refusals: Mapping[str, tuple[Cause, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskExplanation(Explanation):
    """Says for each broker, by address, which file it deletes next; None if it does not report that."""

    deletions: Mapping[str, NextDeletion | None]


@dataclass(frozen=True, slots=True)
class RestartCost:
    """Says what a broker's restart costs; None stands for figures that the broker does not report.

    After a clean stop the broker reads `clean_bytes` of its log before it serves, after a crash
    `crash_bytes`. The times are computed from the duration of its last start, or from an assumed
    rate.
    """

    broker_name: str
    clean_bytes: int | None
    crash_bytes: int | None
    clean_s: float | None
    crash_s: float | None
    queue_count: int | None
    groups: tuple[str, ...]
    consumer_count: int
    producer_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartExplanation(Explanation):
    """Says by address what the restart of each broker costs."""

    costs: Mapping[str, RestartCost]

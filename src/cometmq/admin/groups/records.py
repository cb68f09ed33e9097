"""Define the records of consumer groups and their members, and which fields a group has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.consumers import ConsumeStatus, PopProcessQueueInfo, ProcessQueueInfo
from cometmq.protocol.bodies.inspection import ClientConnection, OffsetWrapper
from cometmq.protocol.codes import version_text


class GroupFields(TypedDict, total=False):
    """The fields of SubscriptionGroupConfig that a call may set, except the group's name.

    A key of `attributes` has `+` in front to be set, `-` to be removed.
    """

    attributes: dict[str, str]
    broker_id: int
    consume_broadcast_enable: bool
    consume_enable: bool
    consume_from_min_enable: bool
    consume_message_orderly: bool
    consume_timeout_minute: int
    group_retry_policy: dict[str, Any]
    group_sys_flag: int
    notify_consumer_ids_changed_enable: bool
    retry_max_times: int
    retry_queue_nums: int
    which_broker_when_consume_slowly: int


@dataclass(frozen=True, slots=True)
class Connection:
    """A client that is connected to a broker; `version` is the release that it announces."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The members of a consumer group, and what the group subscribes to.

    The three texts are Java's names: CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull),
    CLUSTERING or BROADCASTING, and CONSUME_FROM_….
    """

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    clients: tuple[Connection, ...]
    subscriptions: tuple[SubscriptionData, ...]

    def subscribes(self, topic: str) -> bool | None:
        """Say whether the group subscribes to a topic; None if its members do not say."""
        return subscribes(self.consume_type, [at.topic for at in self.subscriptions], topic)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Shows how far a group is in one queue, in offsets.

    The group has consumed up to `consumer_offset`, None if it has committed nothing, and was handed
    messages up to `pulled_offset`; the queue ends at `broker_offset`. `last_consumed_ms` is the
    store time of the last message that was consumed, in ms since the epoch, None if there is none.
    The first message that waits has `waiting_offset`; this is the queue's first message if earlier
    ones that the group has not consumed have left the log. It is None where nobody knows where the
    group begins.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int | None
    pulled_offset: int
    last_consumed_ms: int | None
    waiting_offset: int | None

    @property
    def lag(self) -> int | None:
        """Return the number of messages that the group has not consumed yet, None if it is unknown."""
        return None if self.waiting_offset is None else self.broker_offset - self.waiting_offset

    @property
    def in_flight(self) -> int | None:
        """Return the number of messages that were handed out and are not consumed yet, None if it is
        unknown.
        """
        if self.waiting_offset is None:
            return None
        return max(0, self.pulled_offset - self.waiting_offset)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Shows how far a group is in all its queues, and how many messages it consumes per second.

    A sum is None if it is unknown: the group has committed no offset in some queue or at all, or
    some broker did not answer, so the progress is not `complete`.
    """

    group: str
    consume_per_s: float
    queues: tuple[QueueProgress, ...]
    complete: bool = True

    @property
    def lag(self) -> int | None:
        return self._sum(max(0, at.lag) if at.lag is not None else None for at in self.queues)

    @property
    def in_flight(self) -> int | None:
        return self._sum(at.in_flight for at in self.queues)

    def lag_in(self, topic: str) -> int | None:
        """Return the lag in one of the group's topics."""
        found = [at.lag for at in self.queues if at.queue.topic == topic]
        return self._sum(max(0, lag) if lag is not None else None for lag in found)

    def in_flight_in(self, topic: str) -> int | None:
        """Return how many messages of one of the group's topics are handed out."""
        return self._sum(at.in_flight for at in self.queues if at.queue.topic == topic)

    def _sum(self, counts: Iterable[int | None]) -> int | None:
        listed = list(counts)
        known = [count for count in listed if count is not None]
        return sum(known) if self.complete and known and len(known) == len(listed) else None


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """Holds what a member of a group reports of itself.

    `topics` has its rates by topic, `stacks` the stacks of its threads if they were asked for,
    `popped` the queues that it pops; the queue id -1 stands for all queues of a broker.
    """

    client_id: str
    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[MessageQueue, ProcessQueueInfo]
    topics: Mapping[str, ConsumeStatus]
    stacks: str | None
    popped: Mapping[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)

    @property
    def paused(self) -> bool:
        """True if the whole member is paused. Only members of CometMQ report this."""
        return self.properties.get("paused") == "true"

    @property
    def paused_queues(self) -> frozenset[str]:
        """The names of the member's paused queues, up to a hundred. A paused member names all its queues."""
        return frozenset(self.properties.get("pausedQueues", "").split("; ")) - {""}


def connection_of(body: ClientConnection) -> Connection:
    return Connection(body.client_id, body.client_addr, body.language, version_text(body.version))


def queue_progress(queues: Mapping[MessageQueue, OffsetWrapper]) -> tuple[QueueProgress, ...]:
    """Return what brokers report by queue as records, sorted.

    A Java broker does not say which messages have left the log, nor does it distinguish an offset
    of 0 from none.
    """
    return tuple(
        QueueProgress(
            queue,
            at.broker_offset,
            at.consumer_offset if at.has_offset is not False else None,
            max(at.pull_offset, at.consumer_offset),
            at.last_timestamp or None,
            waiting_offset(at),
        )
        for queue, at in sorted(queues.items(), key=lambda item: item[0])
    )


def waiting_offset(at: OffsetWrapper) -> int | None:
    """Return the offset of the first waiting message as a broker reports it, None if it is unknown."""
    if at.waiting_offset is None:
        return at.consumer_offset
    return at.waiting_offset if at.waiting_offset >= 0 else None


def merged(group: str, parts: Iterable[GroupProgress], *, complete: bool = True) -> GroupProgress:
    """Merge what several brokers report into the progress of a group; say if it is `complete`."""
    reported = list(parts)
    queues = {at.queue: at for part in reported for at in part.queues}
    return GroupProgress(
        group,
        sum(part.consume_per_s for part in reported),
        tuple(at for _, at in sorted(queues.items(), key=lambda item: item[0])),
        complete and all(part.complete for part in reported),
    )


def joined(group: str, parts: Iterable[GroupConnections | None]) -> GroupConnections | None:
    """Return the members that several brokers know, None if none of them knows any."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    clients = {client.client_id: client for members in known for client in members.clients}
    subscriptions = {data.topic: data for members in known for data in members.subscriptions}
    return GroupConnections(
        group,
        known[0].consume_type,
        known[0].message_model,
        known[0].consume_from_where,
        tuple(clients[client_id] for client_id in sorted(clients)),
        tuple(subscriptions[topic] for topic in sorted(subscriptions)),
    )


def subscribes(consume_type: str, subscribed: Collection[str], topic: str) -> bool | None:
    """Say whether a group subscribes to a topic, as far as brokers know.

    None if they cannot know: a program may take its queues without a subscription (`assign`), and a
    retry topic is not always named.
    """
    if topic in subscribed:
        return True
    own = [name for name in subscribed if not is_retry_topic(name)]
    takes_queues = consume_type == "CONSUME_ACTIVELY" and not own
    return None if not subscribed or takes_queues or is_retry_topic(topic) else False

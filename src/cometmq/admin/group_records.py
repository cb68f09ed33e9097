"""Defines what is told of consumer groups and their members, and which fields a group has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.codes import version_text
from cometmq.protocol.consumer_bodies import ConsumeStatus, ProcessQueueInfo
from cometmq.protocol.inspection_bodies import ClientConnection, OffsetWrapper


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
    """Tells how far a group is in one queue, in offsets.

    The group has consumed up to `consumer_offset` and was handed messages up to `pulled_offset`; the
    queue ends at `broker_offset`. `last_consumed_ms` is the store time of the last message that was
    consumed, in ms since the epoch, 0 if there is none.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pulled_offset: int
    last_consumed_ms: int

    @property
    def lag(self) -> int:
        """Return the number of messages that the group has not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Return the number of messages that were handed out and are not consumed yet."""
        return self.pulled_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Tells how far a group is in all its queues, and how many messages it consumes per second."""

    group: str
    consume_per_s: float
    queues: tuple[QueueProgress, ...]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int:
        return sum(queue.in_flight for queue in self.queues)


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """What a member of a group tells about itself.

    `topics` has its rates by topic, `stacks` the stacks of its threads if they were asked for.
    """

    client_id: str
    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[MessageQueue, ProcessQueueInfo]
    topics: Mapping[str, ConsumeStatus]
    stacks: str | None


def connection_of(body: ClientConnection) -> Connection:
    return Connection(body.client_id, body.client_addr, body.language, version_text(body.version))


def queue_progress(queues: Mapping[MessageQueue, OffsetWrapper]) -> tuple[QueueProgress, ...]:
    """Return the records of what brokers tell by queue, sorted."""
    return tuple(
        QueueProgress(
            queue,
            at.broker_offset,
            at.consumer_offset,
            max(at.pull_offset, at.consumer_offset),
            at.last_timestamp,
        )
        for queue, at in sorted(queues.items(), key=lambda item: item[0])
    )


def merged(group: str, parts: Iterable[GroupProgress]) -> GroupProgress:
    """Return the progress of a group as a whole, of what several brokers told."""
    told = list(parts)
    queues = {at.queue: at for part in told for at in part.queues}
    return GroupProgress(
        group,
        sum(part.consume_per_s for part in told),
        tuple(at for _, at in sorted(queues.items(), key=lambda item: item[0])),
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
    """Say whether a group subscribes to a topic, by what brokers have of it.

    None if they have nothing to tell by: a program may take its queues without a subscription
    (`assign`), and a retry topic is not always named.
    """
    if topic in subscribed:
        return True
    own = [name for name in subscribed if not is_retry_topic(name)]
    takes_queues = consume_type == "CONSUME_ACTIVELY" and not own
    return None if not subscribed or takes_queues or is_retry_topic(topic) else False

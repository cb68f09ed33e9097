"""Show what a consumer group has still to consume, with the retries that wait for their delay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cometmq.admin.client import AdminClient
from cometmq.admin.groups.records import QueueProgress
from cometmq.errors import CometMQError, RemoteError, RouteNotFoundError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import SCHEDULE_TOPIC, is_system_group, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode


@dataclass(frozen=True)
class GroupState:
    """Holds how much a group has consumed, and the rest.

    `fault` says why the figures mean nothing: nobody knows the group, or it does not consume the
    topic. `retries` are messages that wait for their next delivery.
    """

    group: str
    members: tuple[str, ...]
    queues: tuple[QueueProgress, ...] = ()
    retries: tuple[MessageExt, ...] = ()
    fault: str = ""

    @property
    def lag(self) -> int:
        return sum(queue.lag or 0 for queue in self.queues) + len(self.retries)

    def lines(self) -> Iterator[str]:
        """List the rest, line by line, and the members that are online to consume it."""
        for at in self.queues:
            if at.lag:
                yield f"{at.queue}: {at.consumer_offset or 0} of {at.broker_offset} consumed"
        for message in self.retries:
            yield (
                f"retry {message.reconsume_times} of {message.properties.get(p.RETRY_TOPIC)} waits: "
                f"msg_id={message.msg_id} keys={','.join(message.keys)}"
            )
        yield f"members: {', '.join(self.members) or 'nobody is online'}"


async def group_state(admin: AdminClient, group: str, topic: str | None) -> GroupState:
    """Return what a group has consumed of one topic, or of all that it consumes.

    A message that fails moves from its queue to the delayed ones, and from there to the retry topic.
    So if nothing is found among the delayed ones and nothing in the queues, the delayed ones are
    looked at again: in the meantime a message may have gone there from a queue.
    """
    members, subscribed = await _members(admin, group)
    try:
        if not members:
            await admin.groups.need(group)
        topics = {topic} if topic is not None else subscribed | await _topics(admin, group)
        if not topics - {retry_topic(group)}:
            return GroupState(group, members, fault=f"group {group} consumes no topic")
        retries = await _waiting_retries(admin, group)
        queues, fault = await _queues(admin, group, topics, is_online=bool(members))
        if not retries and not any(at.lag for at in queues):
            retries = await _waiting_retries(admin, group)
    except RemoteError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        names = [name for name in await admin.groups.names() if not is_system_group(name)]
        known = ", ".join(names) or "none"
        return GroupState(group, members, fault=f"no broker knows group {group}, but {known}")
    return GroupState(group, members, queues, retries, fault)


async def _members(admin: AdminClient, group: str) -> tuple[tuple[str, ...], set[str]]:
    """Return the clients of a group that are online, and the topics that they subscribe to."""
    try:
        found = await admin.groups.connections(group)
    except RemoteError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return (), set()
    return (
        tuple(sorted(client.client_id for client in found.clients)),
        {subscription.topic for subscription in found.subscriptions},
    )


async def _topics(admin: AdminClient, group: str) -> set[str]:
    """Return the topics in which the group has an offset."""
    return set(await admin.groups.topics(group))


async def _queues(
    admin: AdminClient, group: str, topics: set[str], *, is_online: bool
) -> tuple[tuple[QueueProgress, ...], str]:
    """Return how far the group is in each queue, and what is wrong if a topic is none of its own."""
    queues: list[QueueProgress] = []
    for topic in sorted(topics | {retry_topic(group)}):
        try:
            found = await _progress(admin, group, topic, is_online=is_online)
        except RouteNotFoundError:
            continue  # nothing was ever sent there
        if not found and topic != retry_topic(group):
            return (), f"group {group} does not consume topic {topic}"
        if not is_online and any(at.lag is None for at in found):
            return (), (
                f"group {group} has committed no offset in topic {topic}, so it is not known what "
                "it has to consume"
            )
        queues += found
    return tuple(queues), ""


async def _progress(
    admin: AdminClient, group: str, topic: str, *, is_online: bool
) -> list[QueueProgress]:
    """Return how far the group is in each queue of a topic.

    Consumers commit only every few seconds, so this also asks the members, which know at once.
    """
    committed = (await admin.groups.progress(group, topic)).queues
    if not is_online or all(at.lag == 0 for at in committed):
        return list(committed)
    try:
        known = await admin.groups.member_offsets(group, topic)
    except CometMQError:  # a member does not answer: what is committed counts
        known = {}
    found = []
    for at in committed:
        reported = [offsets[at.queue] for offsets in known.values() if at.queue in offsets]
        consumed = max(at.consumer_offset or 0, 0, *reported)
        # Until its members have said where they begin, all messages there wait for the group.
        waiting = max(at.waiting_offset or 0, consumed)
        found.append(replace(at, consumer_offset=consumed, waiting_offset=waiting))
    return found


async def _waiting_retries(admin: AdminClient, group: str) -> tuple[MessageExt, ...]:
    """Return the messages of the group that the brokers hold back until their next delivery."""
    try:
        route = await admin.topics.route(SCHEDULE_TOPIC)
        ends = (await admin.topics.stats(SCHEDULE_TOPIC)).queues
    except RouteNotFoundError:
        return ()
    names = {
        address: broker.broker_name
        for broker in route.broker_datas
        for address in broker.broker_addrs.values()
    }
    offsets_at: dict[str, dict[int, int]] = {}
    for broker in route.broker_datas:
        address = broker.any_address()
        if address is not None:  # a slave delivers nothing, and copies what was delivered
            offsets_at |= await admin.brokers.delay_offsets(broker=address)
    # The queue of a delay level has the number before the level's.
    delivered = {
        MessageQueue(SCHEDULE_TOPIC, names.get(address, ""), level - 1): offset
        for address, offsets in offsets_at.items()
        for level, offset in offsets.items()
    }
    return tuple(
        [
            message
            for at in ends
            if delivered.get(at.queue, 0) < at.max_offset
            async for message in admin.messages.stored_in(
                at.queue, begin_offset=delivered.get(at.queue, 0)
            )
            if message.properties.get(p.REAL_TOPIC) == retry_topic(group)
        ]
    )

"""Find the members of groups: those that brokers know, and the clients of this proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from cometmq.admin.groups.records import Connection, GroupConnections, RunningInfo, joined
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import EXPRESSION_SQL92, SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.proxy.administration.asking import (
    Inquiry,
    Parts,
    refuse_lite,
    topic_named,
)
from cometmq.proxy.administration.limits import check_items
from cometmq.proxy.calls import Caller
from cometmq.proxy.clients.clients import Client
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok
from cometmq.runtime.sockets.addresses import bare_host

# How long a member has to report its subscriptions.
MEMBER_ANSWER_S: Final = 8.0
_PROXIED: Final = "CLUSTERING"
_MODELS: Final = {_PROXIED: admin.CLUSTERING, "BROADCASTING": admin.BROADCASTING}


@dataclass(frozen=True, slots=True)
class Member:
    """Is a member with its subscriptions by topic; None if they were not asked for, or not reported."""

    info: admin.ClientInfo
    subscriptions: Mapping[str, SubscriptionData] | None


@dataclass(frozen=True, slots=True)
class Members:
    """Holds the members of a group, and the subscriptions that brokers have of the group as a whole."""

    group: str
    model: str
    members: tuple[Member, ...]
    subscriptions: Mapping[str, SubscriptionData]

    @property
    def agree(self) -> bool | None:
        """Whether all members have the same subscriptions; None if a member did not report its own."""
        if len(self.members) < 2:
            return True
        views = [each.subscriptions for each in self.members]
        known = [_selections(view) for view in views if view is not None]
        if any(each != known[0] for each in known):
            return False
        return True if len(known) == len(views) else None


async def members_of(
    parts: Parts, group: str, inquiry: Inquiry, *, subscriptions: bool
) -> Members | None:
    """Return the members of a group, None if there is none. With `subscriptions`, ask each member for its own.

    Notes name brokers and members that did not answer. Raises their error if no broker answers.
    """
    found = await _connections(parts, group, inquiry)
    own = parts.clients.members_of(group)
    if found is None and not own:
        return None
    model = _PROXIED if found is None else found.message_model
    # Brokers know the clients of this proxy as one member, which is left out here.
    own_id = parts.instance.client_id
    others = [] if found is None else [each for each in found.clients if each.client_id != own_id]
    check_items(len(others) + len(own), f"members of group {group}")
    views: list[Mapping[str, SubscriptionData] | None] = [None] * len(others)
    if subscriptions and (len(others) + len(own) > 1):
        views = await inquiry.each(
            others,
            f"members of group {group}",
            lambda each: _reported(parts, group, each, inquiry),
        )
    elif found is not None and len(others) == 1 and not own:
        views = [_by_topic(found.subscriptions, inquiry)]
    known = [
        *(Member(_connected(each, model), view) for each, view in zip(others, views, strict=True)),
        *(Member(_own_info(each, model), _without_retries(each.subscriptions)) for each in own),
    ]
    whole = {} if found is None else _by_topic(found.subscriptions, inquiry)
    for client in own:
        whole |= client.subscriptions
    return Members(group, model, tuple(known), whole)


async def list_consumer_connection(
    parts: Parts, _caller: Caller, request: admin.ListConsumerConnectionRequest
) -> admin.ListConsumerConnectionResponse:
    refuse_lite(request.liteTopic)
    group, inquiry = group_of(request.group), Inquiry()
    topic = topic_of(request.topic) if request.HasField("topic") else None
    found = await members_of(parts, group, inquiry, subscriptions=topic is not None)
    if found is None:
        raise offline(group, inquiry)
    members = found.members
    if topic is not None:
        members = tuple(each for each in members if topic in (each.subscriptions or ()))
    return admin.ListConsumerConnectionResponse(
        status=inquiry.status(), client_info=[each.info for each in members]
    )


async def get_consumer_running_info(
    parts: Parts, _caller: Caller, request: admin.GetConsumerRunningInfoRequest
) -> admin.GetConsumerRunningInfoResponse:
    group, client_id = group_of(request.group), client_id_of(request.client_id)
    own = parts.clients.member(group, client_id)
    if own is not None:
        info = admin.ConsumerRunningInfo(properties=_properties(group, own))
        _add_subscriptions(info, own.subscriptions)
    else:
        info = _to_wire(await parts.groups.running_info(group, client_id))
    return admin.GetConsumerRunningInfoResponse(status=ok(), consumer_running_info=info)


async def print_thread_stack_trace(
    parts: Parts, _caller: Caller, request: admin.PrintThreadStackTraceRequest
) -> admin.PrintThreadStackTraceResponse:
    group, client_id = group_of(request.group), client_id_of(request.client_id)
    own = parts.clients.member(group, client_id)
    if own is not None:
        text = await parts.clients.questions.known_stacks(own)
    else:
        found = (await parts.groups.running_info(group, client_id, stacks=True)).stacks
        if found is None:
            raise RefusedError(wire.UNSUPPORTED, f"member {client_id:.200} reports no stacks")
        text = found
    return admin.PrintThreadStackTraceResponse(status=ok(), thread_stack_trace=text)


def client_id_of(text: str) -> str:
    if not text.strip():
        raise RefusedError(
            wire.CLIENT_ID_REQUIRED,
            "client_id is empty; ListConsumerConnection lists the members of a group",
        )
    return text


def offline(group: str, inquiry: Inquiry) -> RefusedError:
    """Return why no member is listed: none is online, or the brokers that answered know none."""
    if inquiry.notes:
        return RefusedError(
            wire.PROXY_TIMEOUT,
            f"whether group {group} has a member is unknown: {'; '.join(inquiry.notes)}",
        )
    return RefusedError(
        wire.NOT_FOUND,
        f"no member of group {group} is online; start one, or check the group's name",
    )


def expression_of(data: SubscriptionData) -> wire.FilterExpression:
    kind = wire.SQL if data.expression_type == EXPRESSION_SQL92 else wire.TAG
    return wire.FilterExpression(type=kind, expression=data.sub_string)


def model_of(name: str) -> admin.MessageModel:
    return _MODELS.get(name, admin.MESSAGE_MODEL_UNSPECIFIED)


# Inside


async def _connections(parts: Parts, group: str, inquiry: Inquiry) -> GroupConnections | None:
    try:
        return await inquiry.partly(
            parts.groups.connections(group), lambda found: joined(group, found.values())
        )
    except RemoteError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


async def _reported(
    parts: Parts, group: str, member: Connection, inquiry: Inquiry
) -> Mapping[str, SubscriptionData] | None:
    try:
        async with asyncio.timeout(MEMBER_ANSWER_S):
            info = await parts.groups.running_info(group, member.client_id)
    except (CometMQError, TimeoutError) as error:
        why = str(error) or f"it did not answer within {MEMBER_ANSWER_S:g} s"
        inquiry.notes.append(
            f"the subscriptions of member {member.client_id:.100} are unknown: {why}"
        )
        return None
    return _by_topic(info.subscriptions, inquiry)


def _by_topic(found: tuple[SubscriptionData, ...], inquiry: Inquiry) -> dict[str, SubscriptionData]:
    """Return subscriptions without the lists of tags, of which nothing is answered."""
    inquiry.hold(found)
    lean = {data.topic: replace(data, tags_set=[], code_set=[]) for data in found}
    return _without_retries(lean)


def _without_retries(found: Mapping[str, SubscriptionData]) -> dict[str, SubscriptionData]:
    """Leave out the retry topics, which members add themselves."""
    return {topic: data for topic, data in found.items() if not is_retry_topic(topic)}


def _selections(found: Mapping[str, SubscriptionData]) -> dict[str, tuple[str, str]]:
    return {topic: (data.expression_type, data.sub_string) for topic, data in found.items()}


def _connected(member: Connection, model: str) -> admin.ClientInfo:
    return admin.ClientInfo(
        client_id=member.client_id,
        version=member.version,
        language=member.language,
        egress_ip=bare_host(member.address.rpartition(":")[0]),
        message_model=model_of(model),
    )


def _own_info(client: Client, model: str) -> admin.ClientInfo:
    agent = client.agent
    return admin.ClientInfo(
        client_id=client.client_id,
        version=agent.version,
        language=agent.language,
        hostname=agent.host_name,
        egress_ip=agent.ip,
        message_model=model_of(model),
    )


def _properties(group: str, client: Client) -> dict[str, str]:
    return {
        "PROP_CONSUME_TYPE": "CONSUME_POP",
        "consumerGroup": group,
        "clientType": wire.ClientType.Name(client.kind),
        "language": client.agent.language,
        "version": client.agent.version,
    }


def _to_wire(info: RunningInfo) -> admin.ConsumerRunningInfo:
    found = admin.ConsumerRunningInfo(properties=info.properties)
    _add_subscriptions(found, {data.topic: data for data in info.subscriptions})
    for queue, at in info.queues.items():
        item = found.message_queue_table.add(message_queue=queue_to_wire(queue))
        state = item.process_queue_info
        state.commit_offset = at.commit_offset
        state.cached_msg_min_offset = at.cached_msg_min_offset
        state.cached_msg_max_offset = at.cached_msg_max_offset
        state.cached_msg_count = at.cached_msg_count
        state.cached_msg_size_in_mib = at.cached_msg_size_in_mi_b
        state.transaction_msg_min_offset = at.transaction_msg_min_offset
        state.transaction_msg_max_offset = at.transaction_msg_max_offset
        state.transaction_msg_count = at.transaction_msg_count
        state.locked = at.locked
        state.try_unlock_times = at.try_unlock_times
        state.last_lock_timestamp = at.last_lock_timestamp
        state.dropped = at.droped
        state.last_pull_timestamp = at.last_pull_timestamp
        state.last_consume_timestamp = at.last_consume_timestamp
    for topic, rates in info.topics.items():
        status = found.consume_status_table[topic]
        status.receive_rt, status.receive_tps = rates.pull_rt, rates.pull_tps
        status.consume_rt = rates.consume_rt
        status.consume_ok_tps = rates.consume_ok_tps
        status.consume_failed_tps = rates.consume_failed_tps
        status.consume_failed_msgs = rates.consume_failed_msgs
    return found


def _add_subscriptions(
    info: admin.ConsumerRunningInfo, found: Mapping[str, SubscriptionData]
) -> None:
    for topic, data in found.items():
        info.subscriptions[topic].CopyFrom(expression_of(data))


def queue_to_wire(queue: MessageQueue) -> wire.MessageQueue:
    return wire.MessageQueue(
        topic=topic_named(queue.topic),
        id=queue.queue_id,
        broker=wire.Broker(name=queue.broker_name),
    )

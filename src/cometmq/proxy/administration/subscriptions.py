"""Serve the calls about the subscriptions of groups and of their members."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Never

from cometmq.model.subscription import SubscriptionData
from cometmq.proxy.administration.asking import Inquiry, Parts, topic_named
from cometmq.proxy.administration.limits import check_items, check_questions
from cometmq.proxy.administration.members import (
    Members,
    expression_of,
    members_of,
    model_of,
    offline,
)
from cometmq.proxy.calls import Caller
from cometmq.proxy.configuration import config
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError


async def list_subscription(
    parts: Parts, caller: Caller, request: admin.ListSubscriptionRequest
) -> admin.ListSubscriptionResponse:
    """Return the subscriptions of groups; of a group without a member those that brokers remember."""
    topic, groups = await _asked(parts, caller, request)
    inquiry = Inquiry()
    listed = await inquiry.each(
        groups, f"groups of topic {topic}", functools.partial(_of_group, parts, topic, inquiry)
    )
    found = [each for entries in listed for each in entries]
    check_items(len(found), "subscriptions")
    return admin.ListSubscriptionResponse(status=inquiry.status(), subscription_info=found)


async def describe_subscription(
    parts: Parts, caller: Caller, request: admin.DescribeSubscriptionRequest
) -> admin.DescribeSubscriptionResponse:
    """Return the subscriptions of each member of the groups that are online."""
    topic, groups = await _asked(parts, caller, request)
    inquiry = Inquiry()

    async def of_group(group: str) -> list[_Entry]:
        members = await members_of(parts, group, inquiry, subscriptions=True)
        if members is None:
            if request.HasField("group"):
                raise offline(group, inquiry)
            return []
        # One more than the limit is enough to refuse them.
        most = config.MAX_ADMIN_ITEMS + 1
        return list(itertools.islice(_of_members(members, topic), most))

    listed = await inquiry.each(groups, f"groups of topic {topic}", of_group)
    found = [each for entries in listed for each in entries]
    check_items(len(found), "subscriptions")
    return admin.DescribeSubscriptionResponse(
        status=inquiry.status(), client_subscription_info=found
    )


async def delete_subscription(
    _parts: Parts, _caller: Caller, request: admin.DeleteSubscriptionRequest
) -> Never:
    group = group_of(request.group)
    raise RefusedError(
        wire.NOT_IMPLEMENTED,
        "this proxy does not serve DeleteSubscription, because brokers cannot delete one subscription of a group. Stop "
        f"the members of group {group} that subscribe to the topic, or delete the group with cometmq admin deleteSubGroup",
    )


_Entry = admin.DescribeSubscriptionResponse.ClientSubscriptionInfo


async def _asked(
    parts: Parts,
    caller: Caller,
    request: admin.ListSubscriptionRequest | admin.DescribeSubscriptionRequest,
) -> tuple[str | None, list[str]]:
    """Return the topic, None for all, and the groups: the named one, or all groups of the topic.

    Raises RefusedError unless the caller has the right to each of these groups.
    """
    topic = topic_of(request.topic) if request.HasField("topic") else None
    if request.HasField("group"):
        return topic, [group_of(request.group)]
    if topic is None:
        raise RefusedError(
            wire.BAD_REQUEST,
            "the call names neither a topic nor a group; name one of them, or both",
        )
    groups = await parts.groups.of_topic(topic)
    check_questions(len(groups), f"groups of topic {topic}")
    for group in groups:
        named = admin.ListConsumerConnectionRequest(group=wire.Resource(name=group))
        await parts.calls.authorise(caller, "ListConsumerConnection", named)
    return topic, groups


async def _of_group(
    parts: Parts, topic: str | None, inquiry: Inquiry, group: str
) -> list[admin.SubscriptionInfo]:
    members = await members_of(parts, group, inquiry, subscriptions=True)
    if members is None:
        topics = [topic] if topic is not None else await parts.groups.topics(group)
        if not topics:
            await parts.groups.need(group)
        return await inquiry.each(
            topics, f"topics of group {group}", functools.partial(_offline_info, parts, group)
        )
    agree = members.agree
    if agree is None:
        inquiry.notes.append(
            f"whether the members of group {group} agree is unknown, so subscription_consistency is false"
        )
    return [
        _info(members, data, agree=agree is True)
        for data in members.subscriptions.values()
        if topic in (None, data.topic)
    ]


async def _offline_info(parts: Parts, group: str, topic: str) -> admin.SubscriptionInfo:
    """Return the subscription of a group without members, with its expression if a broker remembers it."""
    found = admin.SubscriptionInfo(group=topic_named(group), topic=topic_named(topic))
    data = await parts.groups.subscription(group, topic)
    if data is not None:
        found.expression.CopyFrom(expression_of(data))
    # There is no member that could disagree.
    found.subscription_consistency = True
    return found


def _of_members(members: Members, topic: str | None) -> Iterator[_Entry]:
    """Yield an entry for each member and topic; for a member that did not report, one without a topic."""
    agree = members.agree is True
    for member in members.members:
        if member.subscriptions is None:
            yield _Entry(client_info=member.info)
            continue
        for data in member.subscriptions.values():
            if topic in (None, data.topic):
                info = _info(members, data, agree=agree)
                yield _Entry(client_info=member.info, subscription_info=info)


def _info(members: Members, data: SubscriptionData, *, agree: bool) -> admin.SubscriptionInfo:
    found = admin.SubscriptionInfo(
        group=topic_named(members.group),
        topic=topic_named(data.topic),
        expression=expression_of(data),
        online=True,
        message_model=model_of(members.model),
        subscription_consistency=agree,
    )
    # A client's clock gives a subscription its version; subscriptions of gRPC clients have none.
    if data.sub_version > 0:
        found.last_update_timestamp.FromMilliseconds(min(data.sub_version, _LATEST_MS))
    return found


# The last time that a Timestamp can hold: the end of the year 9999.
_LATEST_MS = 253_402_300_799_999

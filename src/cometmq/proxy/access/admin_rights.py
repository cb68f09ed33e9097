"""List the rights that calls of the service Admin need: the same as the requests by which tools ask brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cometmq.protocol import requests
from cometmq.protocol.request_type import AnyRequestType, ResourceKind, Right
from cometmq.proxy.access.needs import Need, group_need, topic_need
from cometmq.proxy.administration.limits import check_questions

_ADMINISTRATION: Final = (Right.ADMIN, Right.INSPECT)


def _as(row: AnyRequestType) -> Callable[[Any], Iterator[Need]]:
    """Return the rights that a call needs for the topics and groups that it names, as `row` has them.

    If the call leaves out an optional topic or group, the handler checks the rights to those that it finds.
    """
    kinds = dict.fromkeys(resource.kind for resource in row.resources)
    is_administration = row.right in _ADMINISTRATION

    def needs(request: Any) -> Iterator[Need]:
        for kind in kinds:
            if kind is ResourceKind.CLUSTER:
                yield Need(kind, "", row.actions, is_administration)
            elif kind is ResourceKind.GROUP:
                if request.HasField("group"):
                    yield group_need(request.group, row.actions)
            elif "topics" in request.DESCRIPTOR.fields_by_name:
                # Before the loop is held for each of them.
                check_questions(len(request.topics), "topics")
                for topic in request.topics:
                    yield topic_need(topic, row.actions)
            elif request.HasField("topic"):
                yield topic_need(request.topic, row.actions)

    return needs


# Brokers demand the same right for the list of a group's members and for the report of one member.
_SUBSCRIPTION: Final = _as(requests.QUERY_SUBSCRIPTION_BY_CONSUMER)

ADMIN_RIGHTS: Final[Mapping[str, Callable[[Any], Iterator[Need]]]] = {
    "ChangeLogLevel": _as(requests.UPDATE_BROKER_CONFIG),
    "DescribeTopicStatus": _as(requests.GET_TOPIC_CONFIG),
    "ListSubscription": _SUBSCRIPTION,
    "DescribeSubscription": _SUBSCRIPTION,
    "DeleteSubscription": _as(requests.DELETE_SUBSCRIPTIONGROUP),
    "DescribeGroupAccumulation": _as(requests.GET_CONSUME_STATS),
    "ListConsumerConnection": _SUBSCRIPTION,
    "ResetGroupOffset": _as(requests.INVOKE_BROKER_TO_RESET_OFFSET),
    "QueryMessage": _as(requests.QUERY_MESSAGE),
    "PrintThreadStackTrace": _as(requests.GET_CONSUMER_RUNNING_INFO),
    "VerifyMessage": _as(requests.CONSUME_MESSAGE_DIRECTLY),
    "AdminSendMessage": _as(requests.SEND_MESSAGE_V2),
    "GetConsumerRunningInfo": _as(requests.GET_CONSUMER_RUNNING_INFO),
    "GetTopicRoute": _as(requests.GET_ROUTEINFO_BY_TOPIC),
    "QueryTimeSpan": _as(requests.QUERY_CONSUME_TIME_SPAN),
    "GetProxyRuntimeStats": _as(requests.GET_BROKER_RUNTIME_INFO),
}

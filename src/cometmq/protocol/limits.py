"""Limit what one request may bring: bytes of its body, and entries of every list in it.

A server has one loop, so the cost of a request is bounded before the request is served. Limits of
length keep decoding short; limits of entries keep the work for all entries short. docs/internals/limits.md
says what real clients and brokers send at most. Java has none of these limits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from cometmq.errors import ProtocolError
from cometmq.model.route import TopicRouteData, order_conf
from cometmq.model.subscription import (
    EXPRESSION_SQL92,
    MAX_TAGS,
    SubscriptionData,
)
from cometmq.protocol.bodies.cluster import (
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionGroupList,
    TopicConfigList,
)
from cometmq.protocol.bodies.overview import SetMessageRequestModeRequestBody
from cometmq.protocol.pop.bodies import BatchAckMessageRequestBody

_MIB: Final = 1024 * 1024

# Limits in bytes for a request's body, and for an answer that a broker requests from its clients.
MAX_HEARTBEAT_LENGTH: Final = _MIB
MAX_CHECK_LENGTH: Final = _MIB
MAX_LOCK_LENGTH: Final = _MIB // 2
MAX_ASSIGNMENT_LENGTH: Final = 64 * 1024
MAX_BATCH_ACK_LENGTH: Final = 256 * 1024
MAX_REGISTRATION_LENGTH: Final = 16 * _MIB
MAX_DATA_VERSION_LENGTH: Final = 64 * 1024
MAX_TOPIC_ROUTE_LENGTH: Final = _MIB
MAX_CONFIG_LENGTH: Final = 32 * 1024
MAX_SELECTION_LENGTH: Final = _MIB
MAX_STATUS_LENGTH: Final = _MIB // 2
MAX_GROUP_CONFIG_LENGTH: Final = 64 * 1024
MAX_CONFIG_LIST_LENGTH: Final = 512 * 1024
MAX_USER_LENGTH: Final = 16 * 1024
MAX_ACL_LENGTH: Final = _MIB

# Limits for the entries of one request.
MAX_OBJECTS: Final = 8_192
MAX_GROUPS: Final = 1_024
MAX_SUBSCRIPTIONS: Final = 4_096
MAX_SQL_SUBSCRIPTIONS: Final = 256
# Tags of all subscriptions, or their codes.
MAX_TAGS_OF_HEARTBEAT: Final = 65_536
MAX_CLIENT_ID_LENGTH: Final = 1_024
# RocketMQ's own limits for topics and groups are lower, but it has none for the names of brokers,
# nor for names in a body: a name that is kept of a request could be as long as the request.
MAX_NAME_LENGTH: Final = 255
MAX_LOCKS_AT_ONCE: Final = 2_048
# Messages that one request acknowledges, and queues or pops that they came from.
MAX_ACKS_AT_ONCE: Final = 4_096
# A registration is taken in in one piece. It costs more than others may, because a broker with 50,000
# topics has to register, and registers seldom.
MAX_REGISTERED_TOPICS: Final = 60_000
MAX_FILTER_SERVERS: Final = 1_024
# JSON values by their commas, and objects by their braces: a topic of Java's brokers has 8 and 2, and
# three attributes 2 more. They keep a body without real topics from taking much longer than a real one.
MAX_REGISTERED_VALUES: Final = 600_000
MAX_REGISTERED_OBJECTS: Final = 130_000
MAX_ROUTE_QUEUES: Final = 1_024
MAX_QUEUES_OF_TOPIC: Final = 262_144
MAX_KV_LENGTH: Final = 64 * 1024
MAX_CONFIGS: Final = 2_048
MAX_ATTRIBUTES_LENGTH: Final = 4_096
MAX_LISTED_NAMES: Final = 2_048
_DIVIDE: Final = "divide them among several clients"
_IN_PARTS: Final = "create them in several requests"


def check_limit(what: str, count: int, name: str, limit: int, remedy: str) -> None:
    """Raise ProtocolError naming limit, value and remedy if `count` exceeds `limit`."""
    if count > limit:
        raise ProtocolError(f"{count} {what}, the limit {name} is {limit}; {remedy}", limit=name)


def listed_names(text: str, separator: str) -> list[str]:
    """Return the names that a header lists, each once. Raises ProtocolError for too many.

    Access control checks each, and a header has room for a hundred thousand.
    """
    names = list(dict.fromkeys(filter(None, text.split(separator))))
    remedy = "ask in several requests"
    check_limit("names in a list", len(names), "MAX_LISTED_NAMES", MAX_LISTED_NAMES, remedy)
    return names


def check_objects(count: int) -> None:
    """Raise ProtocolError for a body with too many objects, before any is decoded: an empty one may take
    2 µs. Braces in texts count, too: to distinguish them would take as long as the work that is refused.
    """
    check_limit(
        "objects (braces) in a body",
        count,
        "MAX_OBJECTS",
        MAX_OBJECTS,
        "send fewer entries in a request",
    )


def check_name(what: str, name: str) -> None:
    """Raise ProtocolError for a name that is too long to be kept."""
    if len(name) > MAX_NAME_LENGTH:
        check_limit(
            f"characters in {what} {name[:40]!r}…",
            len(name),
            "MAX_NAME_LENGTH",
            MAX_NAME_LENGTH,
            "use a shorter one",
        )


def check_namespace(ext: Mapping[str, str]) -> None:
    """Raise ProtocolError for a client with a namespace of the second kind (Java: setNamespaceV2).

    CometMQ does not separate such namespaces, so the messages of two of them would be mixed. Every
    client asks for routes and sends heartbeats, so only these requests are checked.
    """
    if ext.get("nsd") == "true" or ext.get("ns"):
        raise ProtocolError(
            f"the client has the namespace {ext.get('ns', '')!r:.200} in the fields ns and nsd "
            "(setNamespaceV2), which CometMQ does not separate from others; use setNamespace, "
            "which puts it before the names of topics and groups, or none"
        )


def nothing_named(what: str, *lists: str) -> ProtocolError:
    """Return the error for a request that would do nothing because all its `lists` are empty."""
    return ProtocolError(
        f"the request names no {what}: {' and '.join(lists)} of its body has no entry, is null or "
        "is misspelt; name what the request applies to, or do not send it"
    )


def check_heartbeat(data: HeartbeatData) -> None:
    """Raise ProtocolError for a heartbeat with too many groups, subscriptions, expressions or tags.

    Everything is counted before the first name is looked at.
    """
    _check_client_id(data.client_id)
    groups = data.consumer_data_set
    count = len(groups) + len(data.producer_data_set)
    check_limit("groups in a heartbeat", count, "MAX_GROUPS", MAX_GROUPS, _DIVIDE)
    count = sum(len(group.subscription_data_set) for group in groups)
    check_limit(
        "subscriptions in a heartbeat", count, "MAX_SUBSCRIPTIONS", MAX_SUBSCRIPTIONS, _DIVIDE
    )
    _check_selections(
        [subscription for group in groups for subscription in group.subscription_data_set]
    )
    for group in groups:
        check_name("the group name", group.group_name)
        check_name("consumeType", group.consume_type)
        check_name("messageModel", group.message_model)
        check_name("consumeFromWhere", group.consume_from_where)
        for subscription in group.subscription_data_set:
            check_name("the topic name", subscription.topic)
            check_name("expressionType", subscription.expression_type)
    for producers in data.producer_data_set:
        check_name("the group name", producers.group_name)


def _check_selections(subscriptions: list[SubscriptionData]) -> None:
    """Raise ProtocolError for a heartbeat with too many expressions or tags."""
    expressions = tags = 0
    for subscription in subscriptions:
        count = max(len(subscription.tags_set), len(subscription.code_set))
        if count > MAX_TAGS:
            check_subscription(subscription)
        tags += count
        expressions += subscription.expression_type == EXPRESSION_SQL92
    check_limit(
        "SQL92 subscriptions in a heartbeat",
        expressions,
        "MAX_SQL_SUBSCRIPTIONS",
        MAX_SQL_SUBSCRIPTIONS,
        _DIVIDE,
    )
    check_limit(
        "tags in a heartbeat",
        tags,
        "MAX_TAGS_OF_HEARTBEAT",
        MAX_TAGS_OF_HEARTBEAT,
        "subscribe to * and select in the listener, or divide them among several clients",
    )


def check_subscription(subscription: SubscriptionData) -> None:
    """Raise ProtocolError for a subscription to too many tags."""
    count = max(len(subscription.code_set), len(subscription.tags_set))
    check_limit(
        "tags in a subscription",
        count,
        "MAX_TAGS",
        MAX_TAGS,
        "subscribe to * and select in the listener, or use fewer tags",
    )


def check_acks(body: BatchAckMessageRequestBody) -> None:
    """Raise ProtocolError for too many messages to acknowledge, and for bits that are none."""
    remedy = "acknowledge them by several requests"
    name, most = "MAX_ACKS_AT_ONCE", MAX_ACKS_AT_ONCE
    check_limit("entries in a batch of acknowledgements", len(body.acks), name, most, remedy)
    count = 0
    for each in body.acks:
        count += each.count()
        check_limit("messages in a batch of acknowledgements", count, name, most, remedy)
        check_name("the group name", each.consumer_group)
        check_name("the topic name", each.topic)


def check_request_mode(body: SetMessageRequestModeRequestBody) -> None:
    """Raise ProtocolError for names that are too long."""
    check_name("the topic name", body.topic)
    check_name("the group name", body.consumer_group)


def check_locks(body: LockBatchRequestBody) -> None:
    """Raise ProtocolError for too many queues to lock or to unlock, and for names that are too long."""
    _check_client_id(body.client_id)
    check_limit(
        "queues in a request for locks",
        len(body.mq_set),
        "MAX_LOCKS_AT_ONCE",
        MAX_LOCKS_AT_ONCE,
        "have fewer queues on one broker, or more consumers in the group",
    )
    check_name("the group name", body.consumer_group)
    for queue in body.mq_set:
        check_name("the topic name", queue.topic)
        check_name("the broker name", queue.broker_name)


def check_names(what: str, names: Collection[str]) -> None:
    """Raise ProtocolError if one of many names is too long to be kept."""
    if names and max(map(len, names)) > MAX_NAME_LENGTH:
        check_name(what, max(names, key=len))


def check_registered(topics: int, mappings: int, filter_servers: int) -> None:
    """Raise ProtocolError if a registration has more than so many may have."""
    remedy = (
        "divide the topics among several brokers, or have the broker register them in parts "
        "(enableSplitRegistration=true)"
    )
    for what, count in (
        ("topics in a registration", topics),
        ("static-topic mappings in a registration", mappings),
    ):
        check_limit(what, count, "MAX_REGISTERED_TOPICS", MAX_REGISTERED_TOPICS, remedy)
    check_limit(
        "filter servers in a registration",
        filter_servers,
        "MAX_FILTER_SERVERS",
        MAX_FILTER_SERVERS,
        "register fewer of them",
    )


def check_registered_values(data: bytes) -> None:
    """Raise ProtocolError for JSON with more values or objects than a registration may have.

    They are counted by commas and braces, before anything is decoded. Commas and braces within texts
    count, too.
    """
    for what, sign, limit, most in (
        ("values", b",", "MAX_REGISTERED_VALUES", MAX_REGISTERED_VALUES),
        ("objects", b"{", "MAX_REGISTERED_OBJECTS", MAX_REGISTERED_OBJECTS),
    ):
        check_limit(
            f"JSON {what} in a registration",
            data.count(sign),
            limit,
            most,
            "give its topics fewer attributes, register fewer filter servers, or have the broker register "
            "in parts (enableSplitRegistration=true)",
        )


def check_route_queues(route: TopicRouteData) -> None:
    """Raise ProtocolError for a topic on too many brokers."""
    check_limit(
        "brokers of a topic",
        len(route.queue_datas),
        "MAX_ROUTE_QUEUES",
        MAX_ROUTE_QUEUES,
        "set them in several requests",
    )


def check_route(route: TopicRouteData) -> TopicRouteData:
    """Return the route. Raise ProtocolError if it has more queues than a client may list."""
    count = sum(max(data.read_queue_nums, data.write_queue_nums, 0) for data in route.queue_datas)
    count += sum(number for _, number in order_conf(route.order_topic_conf or ""))
    check_limit(
        "queues in a route",
        count,
        "MAX_QUEUES_OF_TOPIC",
        MAX_QUEUES_OF_TOPIC,
        "lower the topic's queue numbers at its brokers",
    )
    return route


def check_topic_list(body: TopicConfigList) -> None:
    """Raise ProtocolError for a list of too many topics to make."""
    count = len(body.topic_config_list)
    check_limit("topics in a list", count, "MAX_CONFIGS", MAX_CONFIGS, _IN_PARTS)


def check_group_list(body: SubscriptionGroupList) -> None:
    """Raise ProtocolError for a list of too many groups to make."""
    check_limit(
        "groups in a list", len(body.group_config_list), "MAX_GROUPS", MAX_GROUPS, _IN_PARTS
    )


def check_kv(namespace: str, key: str, value: str) -> None:
    """Raise ProtocolError for a key-value entry that is too long."""
    check_limit(
        "characters in a key-value entry",
        len(namespace) + len(key) + len(value),
        "MAX_KV_LENGTH",
        MAX_KV_LENGTH,
        "divide it among several keys",
    )


def _check_client_id(client_id: str) -> None:
    check_limit(
        "characters in a client id",
        len(client_id),
        "MAX_CLIENT_ID_LENGTH",
        MAX_CLIENT_ID_LENGTH,
        "give the client a shorter instance name",
    )

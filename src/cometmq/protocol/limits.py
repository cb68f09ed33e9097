"""Limit what one request may bring: bytes of its body, and entries of every list in it.

A server has one loop, so the cost of a request is bounded before the request is served. Limits of
length keep decoding short; limits of entries keep the work for all entries short. Decision 63 says
what real clients and brokers send at most. Java has none of these limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cometmq.errors import ProtocolError
from cometmq.model.route import TopicRouteData, order_conf
from cometmq.model.subscription import (
    EXPRESSION_SQL92,
    MAX_TAGS,
    ConsumerData,
    ProducerData,
    SubscriptionData,
)
from cometmq.protocol.bodies import HeartbeatData, LockBatchRequestBody, RegisterBrokerBody

_MIB: Final = 1024 * 1024

# Limits in bytes for a request's body, and for an answer that a broker requests from its clients.
MAX_HEARTBEAT_LENGTH: Final = 4 * _MIB
MAX_CHECK_LENGTH: Final = _MIB
MAX_LOCK_LENGTH: Final = 4 * _MIB
MAX_ASSIGNMENT_LENGTH: Final = 64 * 1024
MAX_REGISTRATION_LENGTH: Final = 16 * _MIB
MAX_DATA_VERSION_LENGTH: Final = 64 * 1024
MAX_TOPIC_ROUTE_LENGTH: Final = _MIB
MAX_CONFIG_LENGTH: Final = 32 * 1024
MAX_SELECTION_LENGTH: Final = _MIB
MAX_STATUS_LENGTH: Final = _MIB // 2
MAX_GROUP_CONFIG_LENGTH: Final = 64 * 1024
MAX_CONFIG_LIST_LENGTH: Final = 4 * _MIB
MAX_USER_LENGTH: Final = 16 * 1024
MAX_ACL_LENGTH: Final = _MIB

# Limits for the entries of one request.
MAX_GROUPS: Final = 2_048
MAX_SUBSCRIPTIONS: Final = 16_384
MAX_SUBSCRIPTIONS_OF_GROUP: Final = 8_192
MAX_SQL_SUBSCRIPTIONS: Final = 256
# Tags of all subscriptions, or their codes. So many take 26 MB; 70 groups with 4,000 each took the loop
# 90 ms before they were refused.
MAX_TAGS_OF_HEARTBEAT: Final = 131_072
# What a heartbeat of some length has besides its lists of groups, and its groups besides their lists of
# subscriptions: it is decoded in one piece.
MAX_HEARTBEAT_HEAD_LENGTH: Final = 64 * 1024
MAX_CLIENT_ID_LENGTH: Final = 1_024
# RocketMQ's own limits for topics and groups are lower, but it has none for the names of brokers, nor
# for names in a body: what is kept of a request would be as long as the request.
MAX_NAME_LENGTH: Final = 255
MAX_LOCKS_AT_ONCE: Final = 16_384
MAX_REGISTERED_TOPICS: Final = 100_000
MAX_FILTER_SERVERS: Final = 1_024
# One topic or mapping of a registration, and all that it has besides them: each is decoded in one piece,
# and a topic with 900,000 attributes held the loop for 0.4 s.
MAX_REGISTERED_ENTRY_LENGTH: Final = 256 * 1024
MAX_ROUTE_QUEUES: Final = 1_024
MAX_QUEUES_OF_TOPIC: Final = 262_144
MAX_KV_LENGTH: Final = 64 * 1024
MAX_CONFIGS: Final = 10_000
# One topic or group in such a list, and all that the body has besides the list: each is decoded in one
# piece.
MAX_CONFIG_ENTRY_LENGTH: Final = 128 * 1024
MAX_ATTRIBUTES_LENGTH: Final = 4_096
MAX_LISTED_NAMES: Final = 2_048
# So many names are looked at in a step.
_NAMES_AT_ONCE: Final = 512
_DIVIDE: Final = "divide them among several clients"


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


class HeartbeatTotals:
    """Adds up what the groups of one heartbeat bring, and refuses what is too much at once.

    Raises ProtocolError for too many groups, subscriptions, expressions or tags.
    """

    def __init__(self, client_id: str) -> None:
        _check_client_id(client_id)
        self._groups = 0
        self._group_name = ""
        self._subscriptions_of_group = 0
        self._subscriptions = 0
        self._expressions = 0
        self._tags = 0

    def add(self, group: ConsumerData) -> None:
        """Count one group. Texts of refusals are made only if there is one: groups are many."""
        self._add_group()
        check_name("the group name", group.group_name)
        check_name("consumeType", group.consume_type)
        check_name("messageModel", group.message_model)
        check_name("consumeFromWhere", group.consume_from_where)
        self._group_name = group.group_name
        self._subscriptions_of_group = 0
        self.add_subscriptions(group.subscription_data_set)

    def _add_group(self) -> None:
        self._groups += 1
        check_limit("groups in a heartbeat", self._groups, "MAX_GROUPS", MAX_GROUPS, _DIVIDE)

    def add_subscriptions(self, subscriptions: list[SubscriptionData]) -> None:
        """Count subscriptions of the group that was counted last."""
        count = len(subscriptions)
        self._subscriptions_of_group += count
        if self._subscriptions_of_group > MAX_SUBSCRIPTIONS_OF_GROUP:
            check_limit(
                f"subscriptions of the group {self._group_name:.120}",
                self._subscriptions_of_group,
                "MAX_SUBSCRIPTIONS_OF_GROUP",
                MAX_SUBSCRIPTIONS_OF_GROUP,
                "divide them among several groups",
            )
        self._subscriptions += count
        check_limit(
            "subscriptions in a heartbeat",
            self._subscriptions,
            "MAX_SUBSCRIPTIONS",
            MAX_SUBSCRIPTIONS,
            _DIVIDE,
        )
        for subscription in subscriptions:
            check_name("the topic name", subscription.topic)
            check_name("expressionType", subscription.expression_type)
            if len(subscription.tags_set) > MAX_TAGS or len(subscription.code_set) > MAX_TAGS:
                check_subscription(subscription)
            self._expressions += subscription.expression_type == EXPRESSION_SQL92
            self._tags += max(len(subscription.tags_set), len(subscription.code_set))
        check_limit(
            "SQL92 subscriptions in a heartbeat",
            self._expressions,
            "MAX_SQL_SUBSCRIPTIONS",
            MAX_SQL_SUBSCRIPTIONS,
            _DIVIDE,
        )
        check_limit(
            "tags in a heartbeat",
            self._tags,
            "MAX_TAGS_OF_HEARTBEAT",
            MAX_TAGS_OF_HEARTBEAT,
            "subscribe to * and select in the listener, or divide them among several clients",
        )

    def add_producer(self, group: ProducerData) -> None:
        """Count one group of producers."""
        self._add_group()
        check_name("the group name", group.group_name)


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
    """Raise ProtocolError for a heartbeat with too many groups, subscriptions, expressions or tags."""
    totals = HeartbeatTotals(data.client_id)
    for group in data.consumer_data_set:
        totals.add(group)
    for producers in data.producer_data_set:
        totals.add_producer(producers)


def check_has_groups(data: HeartbeatData) -> None:
    """Raise ProtocolError for a heartbeat without any group: no client of Java sends one."""
    if not data.consumer_data_set and not data.producer_data_set:
        raise nothing_named("groups", "consumerDataSet", "producerDataSet")


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


def check_locks(body: LockBatchRequestBody) -> None:
    """Raise ProtocolError for too many queues to lock or to unlock."""
    _check_client_id(body.client_id)
    check_limit(
        "queues in a request for locks",
        len(body.mq_set),
        "MAX_LOCKS_AT_ONCE",
        MAX_LOCKS_AT_ONCE,
        "ask for them in several requests",
    )
    check_name("the group name", body.consumer_group)


def check_lock_names(body: LockBatchRequestBody) -> Iterator[None]:
    """Raise ProtocolError for a queue with a name that is too long, looking in steps."""
    for number, queue in enumerate(body.mq_set):
        if number % _NAMES_AT_ONCE == 0:
            yield
        check_name("the topic name", queue.topic)
        check_name("the broker name", queue.broker_name)


def check_registration(body: RegisterBrokerBody) -> None:
    """Raise ProtocolError for a registration of too many topics, mappings or filter servers."""
    wrapper = body.topic_config_serialize_wrapper
    mappings = wrapper.topic_queue_mapping_info_map or {}
    check_registered(len(wrapper.topic_config_table), len(mappings), len(body.filter_server_list))


def check_registered_names(body: RegisterBrokerBody) -> Iterator[None]:
    """Raise ProtocolError for a registration with a name that is too long, looking in steps."""
    table = body.topic_config_serialize_wrapper.topic_config_table
    for number, (key, config) in enumerate(table.items()):
        if number % _NAMES_AT_ONCE == 0:
            yield
        check_name("the topic name", config.topic_name or key)
    for server in body.filter_server_list:
        check_name("the filter server", server)
    mappings = body.topic_config_serialize_wrapper.topic_queue_mapping_info_map or {}
    for number, (topic, mapping) in enumerate(mappings.items()):
        if number % _NAMES_AT_ONCE == 0:
            yield
        check_mapping(topic, mapping)


def check_mapping(topic: str, mapping: dict[str, Any]) -> None:
    """Raise ProtocolError for a static-topic mapping with which no client could read the route."""
    if not all(map(_may_be_mapped, mapping.values())):
        raise ProtocolError(
            f"the static-topic mapping of {topic[:40]!r} has more than texts, whole numbers and one "
            "table of them"
        )


def _may_be_mapped(value: Any) -> bool:
    plain = str | int | None
    if isinstance(value, dict):
        return all(isinstance(each, plain) for each in value.values())
    return isinstance(value, plain)


def check_registered(topics: int, mappings: int, filter_servers: int) -> None:
    """Raise ProtocolError if a registration has more than so many may have."""
    remedy = "divide the topics among several brokers"
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


def check_registered_length(length: int) -> None:
    """Raise ProtocolError for a piece of a registration that takes too long to be decoded."""
    check_limit(
        "bytes in a part of a registration",
        length,
        "MAX_REGISTERED_ENTRY_LENGTH",
        MAX_REGISTERED_ENTRY_LENGTH,
        "give its topics fewer attributes, and register fewer filter servers",
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


def check_configs(what: str, count: int) -> None:
    """Raise ProtocolError for a list of too many topics or groups to make."""
    check_limit(
        f"{what} in a list", count, "MAX_CONFIGS", MAX_CONFIGS, "make them in several requests"
    )


def check_config_length(length: int) -> None:
    """Raise ProtocolError for a piece of such a list that takes too long to be decoded."""
    check_limit(
        "bytes in a topic or group of a list",
        length,
        "MAX_CONFIG_ENTRY_LENGTH",
        MAX_CONFIG_ENTRY_LENGTH,
        "give it fewer attributes or subscriptions",
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

"""Define the JSON bodies of requests and responses, one struct each (Java:
`remoting.protocol.body`).

The names on the wire are the fields' names in camel case, except where a field says otherwise.
Nouns that exist beyond the wire (routes, topic configuration, subscriptions) live in `model`; this
module has the wrappers in which they travel. `decode_body` and `encode_body` turn bodies from and
into bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.java.enums import MESSAGE_MODELS, EnumName, enum_name
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import ConsumerData, ProducerData, SubscriptionData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.header import Int32, Int64


class Body(msgspec.Struct, rename="camel"):
    """Base of all bodies."""


class MessageQueueBean(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A message queue as an object in JSON; a `MessageQueue` would become a list."""

    broker_name: str
    queue_id: Int32
    topic: str

    @classmethod
    def of(cls, queue: MessageQueue) -> MessageQueueBean:
        return cls(queue.broker_name, queue.queue_id, queue.topic)

    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


# Clients and brokers


class HeartbeatData(Body):
    """Code 34: every group that the client `client_id` is a member of.

    With a `heartbeat_fingerprint` other than 0, the sender may leave the subscriptions out
    (`without_sub`) once the broker has said that it knows them.
    """

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: Int32 = 0
    producer_data_set: list[ProducerData] = []
    without_sub: bool = False


class CheckClientRequestBody(Body):
    """Code 46: would the broker accept this subscription?"""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class GetConsumerListByGroupResponseBody(Body):
    """The answer of code 38: the client ids of a group."""

    consumer_id_list: list[str] = []


class LockBatchRequestBody(Body):
    """Code 41: the queues that an orderly consumer asks for."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBean] = []
    only_this_broker: bool = False


class LockBatchResponseBody(Body):
    """The answer of code 41: the queues that the client holds now."""

    lock_ok_mq_set: list[MessageQueueBean] = msgspec.field(name="lockOKMQSet", default_factory=list)


class UnlockBatchRequestBody(LockBatchRequestBody):
    """Code 42: the queues given up; the same fields as the request for them."""


class QueryAssignmentRequestBody(Body):
    """Code 400: which queues of a topic is this member of a group to consume?"""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: EnumName = "CLUSTERING"

    def __post_init__(self) -> None:
        self.message_model = enum_name("messageModel", self.message_model, MESSAGE_MODELS)


class MessageQueueAssignment(Body):
    """A queue in the answer of code 400, and how it is to be consumed: PULL or POP."""

    message_queue: MessageQueueBean
    mode: EnumName = "PULL"


class QueryAssignmentResponseBody(Body):
    """The answer of code 400; without a list the client keeps its queues."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


# Brokers and name servers


class TopicConfigSerializeWrapper(Body):
    """The topics of one broker. The three mapping fields (5.x) concern static topics only."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_detail_map: dict[str, dict[str, Any]] | None = None
    topic_queue_mapping_info_map: dict[str, dict[str, Any]] | None = None


class RegisterBrokerBody(Body):
    """The body of code 103; see `register_body` for its compressed form."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = msgspec.field(
        default_factory=TopicConfigSerializeWrapper
    )


class TopicList(Body):
    """The answer of codes 206, 224, 304, 305 and similar ones."""

    broker_addr: str | None = None
    topic_list: list[str] = []


class KVTable(Body):
    """One namespace of the key-value configuration; also a broker's run-time information."""

    table: dict[str, str] = {}


class KVConfigSerializeWrapper(Body):
    """The name server's file kvConfig.json: key and value by namespace."""

    config_table: dict[str, dict[str, str]] = {}


class BrokerMemberGroup(Body):
    """The live addresses of one broker name by broker id."""

    broker_name: str
    cluster: str
    broker_addrs: dict[Int64, str] = {}


class GetBrokerMemberGroupResponseBody(Body):
    """The answer of code 901."""

    broker_member_group: BrokerMemberGroup


# Tables of a broker: bodies between brokers, and the broker's own files


class SubscriptionGroupWrapper(Body):
    """Code 201 and the file subscriptionGroup.json."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, Int32]] = {}
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class TablesState(Body):
    """Code 30004: what a slave has to know about its master's tables besides their contents.

    `state` names all of it; `users` counts changes of users and policies, and `deleted` has the
    commit-log offset at which the log ended when a topic was deleted.
    """

    state: str = ""
    id: str = ""
    users: Int64 = 0
    deleted: dict[str, Int64] = {}


class ConsumerOffsetSerializeWrapper(Body):
    """Code 43 and the file consumerOffset.json: offset by queue id by `topic@group`.

    `reset_offset_table` has the resets that members have not followed yet, in the same form. Java
    keeps them in memory only, and ignores the field.
    """

    data_version: DataVersion | None = None
    offset_table: dict[str, dict[Int32, Int64]] = {}
    reset_offset_table: dict[str, dict[Int32, Int64]] | None = None


class DelayOffsetSerializeWrapper(Body):
    """Code 45 and the file delayOffset.json: next queue offset by delay level."""

    data_version: DataVersion | None = None
    offset_table: dict[Int32, Int64] = {}


class TimerMetric(Body):
    """The timed messages of a topic that wait, and when the last one was counted."""

    count: Int64 = 0
    time_stamp: Int64 = 0


class TimerMetricsSerializeWrapper(Body):
    """The answer of code 61 and Java's file config/timermetrics."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    timing_count: dict[str, TimerMetric] = {}


class TopicConfigList(Body):
    """The body of code 18."""

    topic_config_list: list[TopicConfig] = []


class SubscriptionGroupList(Body):
    """The body of code 225."""

    group_config_list: list[SubscriptionGroupConfig] = []


class GroupList(Body):
    """The answer of code 300."""

    group_list: list[str] = []

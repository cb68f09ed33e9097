"""List all requests: a row for each request that one of our servers or clients takes or sends.

The columns of a row are

    code, request header, request body, header of the answer, body of the answer,
    right, resources, the code by which a slave refuses the request if it does, and the actions
    that policies allow or deny where they do not follow from the right

Rights and resources are those of Java's access control (the annotation RocketMQAction of 5.x and
PlainPermissionManager of 4.x) if it has any for the request. Where it has none, a request that
reads messages or the state of a group needs the right to consume. A request that reads about all
topics and groups needs the right to run the cluster. docs/security.md lists these differences. A group's retry
topic stands for the group, as in Java. If a request names a message by its place, the handler
checks the topic of the message. Actions are those of 5.3 (also DefaultAuthorizationContextBuilder)
if its policies know the request.

A slave refuses what would write to its log, which is its master's, or change tables that it copies
from its master. The codes are those of Java's slaves, of 4.9 where 5.3 differs. A slave takes
offsets that consumers commit while its master is away.

Longer than 500 lines: a table of one row for each request, which is read by searching it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.route import ClusterInfo, TopicRouteData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import headers as h
from cometmq.protocol import limits
from cometmq.protocol.bodies import access as a
from cometmq.protocol.bodies.cluster import (
    CheckClientRequestBody,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    GetBrokerMemberGroupResponseBody,
    GetConsumerListByGroupResponseBody,
    GroupList,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    TablesState,
    TimerMetricsSerializeWrapper,
    TopicConfigList,
    TopicConfigSerializeWrapper,
    TopicList,
    UnlockBatchRequestBody,
)
from cometmq.protocol.bodies.consumers import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.protocol.bodies.inspection import (
    BrokerStatsData,
    ConsumerConnection,
    ProducerConnection,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
)
from cometmq.protocol.bodies.overview import (
    CheckRocksdbCqWriteResult,
    GroupForbidden,
    HARuntimeInfo,
    MessageRequestModes,
    QueryCorrectionOffsetBody,
    SetMessageRequestModeRequestBody,
)
from cometmq.protocol.codes import OwnRequestCode, ResponseCode
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.header import NoHeader
from cometmq.protocol.pop import headers as pop
from cometmq.protocol.pop.bodies import BatchAckMessageRequestBody, PopProgress
from cometmq.protocol.redrive import (
    LetterSelection,
    RedriveDeadLettersRequestHeader,
    RedriveReport,
)
from cometmq.protocol.request_type import (
    ANY_ACCOUNT,
    CLUSTER,
    NO_BODY,
    Action,
    AnyRequestType,
    JsonBody,
    RawBody,
    RequestType,
    Right,
    cluster,
    group,
    groups_of_body,
    popped_topic,
    topic,
    topics_of_body,
)

RAW: Final = RawBody()
GET: Final = (Action.GET,)

# A formatter would give each column a line of its own.
# fmt: off

# Sending. Bodies are bounded by maxMessageSize.

SEND_MESSAGE: Final = RequestType(
    Code.SEND_MESSAGE, h.SendMessageRequestHeader, RAW, h.SendMessageResponseHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SERVICE_NOT_AVAILABLE)
SEND_MESSAGE_V2: Final = RequestType(
    Code.SEND_MESSAGE_V2, h.SendMessageRequestHeaderV2, RAW, h.SendMessageResponseHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SERVICE_NOT_AVAILABLE)
SEND_BATCH_MESSAGE: Final = RequestType(
    Code.SEND_BATCH_MESSAGE, h.SendMessageRequestHeaderV2, RAW, h.SendMessageResponseHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SERVICE_NOT_AVAILABLE)
SEND_REPLY_MESSAGE: Final = RequestType(
    Code.SEND_REPLY_MESSAGE, h.SendMessageRequestHeader, RAW, h.SendMessageResponseHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SERVICE_NOT_AVAILABLE)
SEND_REPLY_MESSAGE_V2: Final = RequestType(
    Code.SEND_REPLY_MESSAGE_V2, h.SendMessageRequestHeaderV2, RAW, h.SendMessageResponseHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SERVICE_NOT_AVAILABLE)
RECALL_MESSAGE: Final = RequestType(
    Code.RECALL_MESSAGE, h.RecallMessageRequestHeader, NO_BODY, h.RecallMessageResponseHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
END_TRANSACTION: Final = RequestType(
    Code.END_TRANSACTION, h.EndTransactionRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
RESUME_CHECK_HALF_MESSAGE: Final = RequestType(
    Code.RESUME_CHECK_HALF_MESSAGE, h.ResumeCheckHalfMessageRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.PUB, topic(), on_slave=ResponseCode.SYSTEM_ERROR, actions=(Action.UPDATE,))

# Consuming. The answers of pulls are records.

PULL_MESSAGE: Final = RequestType(
    Code.PULL_MESSAGE, h.PullMessageRequestHeader, NO_BODY, h.PullMessageResponseHeader, RAW,
    Right.SUB, topic(), group())
LITE_PULL_MESSAGE: Final = RequestType(
    Code.LITE_PULL_MESSAGE, h.PullMessageRequestHeader, NO_BODY, h.PullMessageResponseHeader, RAW,
    Right.SUB, topic(), group())
CONSUMER_SEND_MSG_BACK: Final = RequestType(
    Code.CONSUMER_SEND_MSG_BACK, h.ConsumerSendMsgBackRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.SUB, group("group"), on_slave=ResponseCode.SYSTEM_ERROR)
QUERY_CONSUMER_OFFSET: Final = RequestType(
    Code.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffsetRequestHeader, NO_BODY, h.OffsetResponseHeader,
    NO_BODY, Right.SUB, topic(), group(), actions=(Action.SUB, Action.GET))
UPDATE_CONSUMER_OFFSET: Final = RequestType(
    Code.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffsetRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.SUB, topic(), group(), actions=(Action.SUB, Action.UPDATE))
HEART_BEAT: Final = RequestType(
    Code.HEART_BEAT, NoHeader,
    JsonBody(HeartbeatData, limits.MAX_HEARTBEAT_LENGTH, limits.check_heartbeat), NoHeader, NO_BODY,
    Right.SUB, groups_of_body("consumer_data_set.group_name"),
    topics_of_body("consumer_data_set.subscription_data_set.topic"))
UNREGISTER_CLIENT: Final = RequestType(
    Code.UNREGISTER_CLIENT, h.UnregisterClientRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.SUB, group())
CHECK_CLIENT_CONFIG: Final = RequestType(
    Code.CHECK_CLIENT_CONFIG, NoHeader, JsonBody(CheckClientRequestBody, limits.MAX_CHECK_LENGTH),
    NoHeader, NO_BODY, Right.SUB, groups_of_body("group"), topics_of_body("subscription_data.topic"))
GET_CONSUMER_LIST_BY_GROUP: Final = RequestType(
    Code.GET_CONSUMER_LIST_BY_GROUP, h.GetConsumerListByGroupRequestHeader, NO_BODY,
    NoHeader, JsonBody(GetConsumerListByGroupResponseBody), Right.SUB, group(),
    actions=(Action.SUB, Action.GET))
# A member asks for the queues that its broker assigns to it.
QUERY_ASSIGNMENT: Final = RequestType(
    Code.QUERY_ASSIGNMENT, NoHeader,
    JsonBody(QueryAssignmentRequestBody, limits.MAX_ASSIGNMENT_LENGTH),
    NoHeader, JsonBody(QueryAssignmentResponseBody),
    Right.SUB, topics_of_body("topic"), groups_of_body("consumer_group"),
    actions=(Action.SUB, Action.GET))
LOCK_BATCH_MQ: Final = RequestType(
    Code.LOCK_BATCH_MQ, NoHeader,
    JsonBody(LockBatchRequestBody, limits.MAX_LOCK_LENGTH, limits.check_locks),
    NoHeader, JsonBody(LockBatchResponseBody),
    Right.SUB, groups_of_body("consumer_group"), topics_of_body("mq_set.topic"))
UNLOCK_BATCH_MQ: Final = RequestType(
    Code.UNLOCK_BATCH_MQ, NoHeader,
    JsonBody(UnlockBatchRequestBody, limits.MAX_LOCK_LENGTH, limits.check_locks),
    NoHeader, NO_BODY,
    Right.SUB, groups_of_body("consumer_group"), topics_of_body("mq_set.topic"))
# Right.SUB, because a client that commits offsets can also reset them.
INVOKE_BROKER_TO_RESET_OFFSET: Final = RequestType(
    Code.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffsetRequestHeader, NO_BODY, NoHeader, RAW,
    Right.SUB, topic(), group("group"), on_slave=ResponseCode.SYSTEM_ERROR,
    actions=(Action.UPDATE,))
# Right.SUB for the same reason.
CLONE_GROUP_OFFSET: Final = RequestType(
    Code.CLONE_GROUP_OFFSET, h.CloneGroupOffsetRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.SUB, topic(), group("src_group"), group("dest_group"), on_slave=ResponseCode.SYSTEM_ERROR,
    actions=(Action.UPDATE,))
# Right.SUB, because a client that may send to a group's retry topic can have its messages consumed
# again anyway.
REDRIVE_DEAD_LETTERS: Final = RequestType(
    OwnRequestCode.REDRIVE_DEAD_LETTERS, RedriveDeadLettersRequestHeader,
    JsonBody(LetterSelection, limits.MAX_SELECTION_LENGTH), NoHeader, JsonBody(RedriveReport),
    Right.SUB, group("group"), on_slave=ResponseCode.SYSTEM_ERROR)

# Queues and messages

GET_MAX_OFFSET: Final = RequestType(
    Code.GET_MAX_OFFSET, h.GetMaxOffsetRequestHeader, NO_BODY, h.OffsetResponseHeader, NO_BODY,
    Right.ANY, topic())
GET_MIN_OFFSET: Final = RequestType(
    Code.GET_MIN_OFFSET, h.GetMinOffsetRequestHeader, NO_BODY, h.OffsetResponseHeader, NO_BODY,
    Right.ANY, topic())
SEARCH_OFFSET_BY_TIMESTAMP: Final = RequestType(
    Code.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffsetRequestHeader, NO_BODY, h.OffsetResponseHeader,
    NO_BODY, Right.ANY, topic())
GET_EARLIEST_MSG_STORETIME: Final = RequestType(
    Code.GET_EARLIEST_MSG_STORETIME, h.GetEarliestMsgStoretimeRequestHeader, NO_BODY,
    h.GetEarliestMsgStoretimeResponseHeader, NO_BODY, Right.ANY, topic())
QUERY_MESSAGE: Final = RequestType(
    Code.QUERY_MESSAGE, h.QueryMessageRequestHeader, NO_BODY, h.QueryMessageResponseHeader, RAW,
    Right.SUB, topic(), actions=(Action.SUB, Action.GET))
VIEW_MESSAGE_BY_ID: Final = RequestType(
    Code.VIEW_MESSAGE_BY_ID, h.ViewMessageRequestHeader, NO_BODY, NoHeader, RAW,
    Right.SUB, topic(), actions=GET)

QUERY_CONSUME_QUEUE: Final = RequestType(
    Code.QUERY_CONSUME_QUEUE, h.QueryConsumeQueueRequestHeader, NO_BODY, NoHeader, RAW,
    Right.SUB, topic(), group(), actions=GET)
# There is no RocksDB here, so nothing lags behind.
CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Final = RequestType(
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, h.CheckRocksdbCqWriteProgressRequestHeader, NO_BODY,
    NoHeader, JsonBody(CheckRocksdbCqWriteResult), Right.ANY, topic())

# Operators' questions to a broker about topics, groups and clients

GET_TOPIC_CONFIG: Final = RequestType(
    Code.GET_TOPIC_CONFIG, h.GetTopicConfigRequestHeader, NO_BODY, NoHeader, JsonBody(TopicConfig),
    Right.ANY, topic())
GET_ALL_TOPIC_CONFIG: Final = RequestType(
    Code.GET_ALL_TOPIC_CONFIG, NoHeader, NO_BODY, NoHeader, JsonBody(TopicConfigSerializeWrapper),
    Right.INSPECT, CLUSTER)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Final = RequestType(
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoHeader, NO_BODY, NoHeader, JsonBody(TopicList),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
GET_SUBSCRIPTIONGROUP_CONFIG: Final = RequestType(
    Code.GET_SUBSCRIPTIONGROUP_CONFIG, h.GetSubscriptionGroupConfigRequestHeader, NO_BODY,
    NoHeader, JsonBody(SubscriptionGroupConfig), Right.SUB, group("group"), actions=GET)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Final = RequestType(
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoHeader, NO_BODY,
    NoHeader, JsonBody(SubscriptionGroupWrapper), Right.INSPECT, CLUSTER)
GET_TOPIC_STATS_INFO: Final = RequestType(
    Code.GET_TOPIC_STATS_INFO, h.GetTopicStatsInfoRequestHeader, NO_BODY, NoHeader, RAW,
    Right.ANY, topic())
GET_CONSUME_STATS: Final = RequestType(
    Code.GET_CONSUME_STATS, h.GetConsumeStatsRequestHeader, NO_BODY, NoHeader, RAW,
    Right.SUB, group(), topic(), topic("topic_list", separator=";"), actions=GET)
GET_CONSUMER_CONNECTION_LIST: Final = RequestType(
    Code.GET_CONSUMER_CONNECTION_LIST, h.GetConsumerConnectionListRequestHeader, NO_BODY,
    NoHeader, JsonBody(ConsumerConnection), Right.SUB, group(), actions=GET)
GET_PRODUCER_CONNECTION_LIST: Final = RequestType(
    Code.GET_PRODUCER_CONNECTION_LIST, h.GetProducerConnectionListRequestHeader, NO_BODY,
    NoHeader, JsonBody(ProducerConnection), Right.INSPECT, CLUSTER)
GET_BROKER_CONSUME_STATS: Final = RequestType(
    Code.GET_BROKER_CONSUME_STATS, h.GetConsumeStatsInBrokerHeader, NO_BODY, NoHeader, RAW,
    Right.INSPECT, CLUSTER)
QUERY_CONSUME_TIME_SPAN: Final = RequestType(
    Code.QUERY_CONSUME_TIME_SPAN, h.QueryConsumeTimeSpanRequestHeader, NO_BODY, NoHeader,
    JsonBody(QueryConsumeTimeSpanBody), Right.SUB, topic(), group("group"), actions=GET)
VIEW_BROKER_STATS_DATA: Final = RequestType(
    Code.VIEW_BROKER_STATS_DATA, h.ViewBrokerStatsDataRequestHeader, NO_BODY, NoHeader,
    JsonBody(BrokerStatsData), Right.INSPECT, CLUSTER)
QUERY_TOPIC_CONSUME_BY_WHO: Final = RequestType(
    Code.QUERY_TOPIC_CONSUME_BY_WHO, h.QueryTopicConsumeByWhoRequestHeader, NO_BODY,
    NoHeader, JsonBody(GroupList), Right.ANY, topic())
QUERY_TOPICS_BY_CONSUMER: Final = RequestType(
    Code.QUERY_TOPICS_BY_CONSUMER, h.QueryTopicsByConsumerRequestHeader, NO_BODY,
    NoHeader, JsonBody(TopicList), Right.SUB, group("group"), actions=GET)
QUERY_SUBSCRIPTION_BY_CONSUMER: Final = RequestType(
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER, h.QuerySubscriptionByConsumerRequestHeader, NO_BODY,
    NoHeader, JsonBody(QuerySubscriptionResponseBody), Right.SUB, topic(), group("group"),
    actions=GET)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Final = RequestType(
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.GetConsumerStatusRequestHeader, NO_BODY,
    NoHeader, RAW, Right.SUB, topic(), group("group"), actions=GET)
GET_ALL_PRODUCER_INFO: Final = RequestType(
    Code.GET_ALL_PRODUCER_INFO, NoHeader, NO_BODY, NoHeader, RAW, Right.INSPECT, CLUSTER)
GET_ALL_CONSUMER_OFFSET: Final = RequestType(
    Code.GET_ALL_CONSUMER_OFFSET, NoHeader, NO_BODY,
    NoHeader, JsonBody(ConsumerOffsetSerializeWrapper), Right.INSPECT, CLUSTER)
QUERY_CORRECTION_OFFSET: Final = RequestType(
    Code.QUERY_CORRECTION_OFFSET, h.QueryCorrectionOffsetHeader, NO_BODY,
    NoHeader, JsonBody(QueryCorrectionOffsetBody), Right.SUB, topic(), group("compare_group"),
    group("filter_groups", separator=","), actions=GET)
# The broker passes these two on to the client. With the second it sends the message as a record.
GET_CONSUMER_RUNNING_INFO: Final = RequestType(
    Code.GET_CONSUMER_RUNNING_INFO, h.GetConsumerRunningInfoRequestHeader, NO_BODY,
    NoHeader, JsonBody(ConsumerRunningInfo), Right.SUB, group(), actions=GET)
CONSUME_MESSAGE_DIRECTLY: Final = RequestType(
    Code.CONSUME_MESSAGE_DIRECTLY, h.ConsumeMessageDirectlyResultRequestHeader, RAW,
    NoHeader, JsonBody(ConsumeMessageDirectlyResult), Right.SUB, topic(), group())

# Operators make, change and delete topics and groups

UPDATE_AND_CREATE_TOPIC: Final = RequestType(
    Code.UPDATE_AND_CREATE_TOPIC, h.CreateTopicRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, topic(), on_slave=ResponseCode.SYSTEM_ERROR, actions=(Action.CREATE,))
UPDATE_AND_CREATE_TOPIC_LIST: Final = RequestType(
    Code.UPDATE_AND_CREATE_TOPIC_LIST, NoHeader,
    JsonBody(TopicConfigList, limits.MAX_CONFIG_LIST_LENGTH, limits.check_topic_list),
    NoHeader, NO_BODY,
    Right.ADMIN, topics_of_body("topic_config_list.topic_name"), on_slave=ResponseCode.SYSTEM_ERROR,
    actions=(Action.CREATE,))
# Java's tools also delete topics at slaves, and give up at a refusal. Our slave leaves the deletion
# to its master and copies the result.
DELETE_TOPIC_IN_BROKER: Final = RequestType(
    Code.DELETE_TOPIC_IN_BROKER, h.DeleteTopicRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, topic(), on_slave=ResponseCode.SUCCESS, actions=(Action.DELETE,))
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = RequestType(
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader,
    JsonBody(SubscriptionGroupConfig, limits.MAX_GROUP_CONFIG_LENGTH), NoHeader, NO_BODY,
    Right.ADMIN, groups_of_body("group_name"), on_slave=ResponseCode.SYSTEM_ERROR,
    actions=(Action.CREATE,))
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Final = RequestType(
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoHeader,
    JsonBody(SubscriptionGroupList, limits.MAX_CONFIG_LIST_LENGTH, limits.check_group_list),
    NoHeader, NO_BODY,
    Right.ADMIN, groups_of_body("group_config_list.group_name"), on_slave=ResponseCode.SYSTEM_ERROR,
    actions=(Action.CREATE,))
DELETE_SUBSCRIPTIONGROUP: Final = RequestType(
    Code.DELETE_SUBSCRIPTIONGROUP, h.DeleteSubscriptionGroupRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, group("group_name"), on_slave=ResponseCode.SYSTEM_ERROR, actions=(Action.DELETE,))
# Without `readable` it only asks, but it is one request with one right.
UPDATE_AND_GET_GROUP_FORBIDDEN: Final = RequestType(
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN, h.UpdateGroupForbiddenRequestHeader, NO_BODY,
    NoHeader, JsonBody(GroupForbidden), Right.ADMIN, topic(), group("group"),
    on_slave=ResponseCode.SYSTEM_ERROR)

# A broker as a whole. Configurations are properties text.

GET_BROKER_CONFIG: Final = RequestType(
    Code.GET_BROKER_CONFIG, NoHeader, NO_BODY, NoHeader, RAW, Right.INSPECT, CLUSTER)
UPDATE_BROKER_CONFIG: Final = RequestType(
    Code.UPDATE_BROKER_CONFIG, NoHeader, RawBody(limits.MAX_CONFIG_LENGTH), NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
GET_BROKER_RUNTIME_INFO: Final = RequestType(
    Code.GET_BROKER_RUNTIME_INFO, NoHeader, NO_BODY, NoHeader, JsonBody(KVTable), Right.INSPECT, CLUSTER)
GET_BROKER_HA_STATUS: Final = RequestType(
    Code.GET_BROKER_HA_STATUS, NoHeader, NO_BODY, NoHeader, JsonBody(HARuntimeInfo),
    Right.INSPECT, CLUSTER)
# Java's masters accept it and do nothing, and so do our slaves: they know how far a master has
# flushed from their copy of its log.
RESET_MASTER_FLUSH_OFFSET: Final = RequestType(
    Code.RESET_MASTER_FLUSH_OFFSET, h.ResetMasterFlushOffsetHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
GET_ALL_DELAY_OFFSET: Final = RequestType(
    Code.GET_ALL_DELAY_OFFSET, NoHeader, NO_BODY, NoHeader, JsonBody(DelayOffsetSerializeWrapper),
    Right.INSPECT, CLUSTER)
# Java's TimerCheckpoint, as in the file config/timercheck.
GET_TIMER_CHECK_POINT: Final = RequestType(
    Code.GET_TIMER_CHECK_POINT, NoHeader, NO_BODY, NoHeader, RAW, Right.INSPECT, CLUSTER)
# Slaves of RocketMQ 5.5 ask for it with every copy of the tables.
GET_TIMER_METRICS: Final = RequestType(
    Code.GET_TIMER_METRICS, NoHeader, NO_BODY, NoHeader, JsonBody(TimerMetricsSerializeWrapper),
    Right.INSPECT, CLUSTER)
# The contents of the file consumerFilter.json, for slaves. Java has no request for it.
GET_ALL_CONSUMER_FILTERS: Final = RequestType(
    OwnRequestCode.GET_ALL_CONSUMER_FILTERS, NoHeader, NO_BODY, NoHeader, RAW, Right.INSPECT, CLUSTER)
# The contents of the file messageRequestMode.json, for slaves.
GET_ALL_MESSAGE_REQUEST_MODE: Final = RequestType(
    Code.GET_ALL_MESSAGE_REQUEST_MODE, NoHeader, NO_BODY, NoHeader, JsonBody(MessageRequestModes),
    Right.INSPECT, CLUSTER)
# A slave proves to its master who it is, and gets a token for its HA connection. Java has no such
# request: its port for slaves serves everybody. Served only with access control.
ADMIT_SLAVE: Final = RequestType(
    OwnRequestCode.ADMIT_SLAVE, h.AdmitSlaveRequestHeader, NO_BODY, h.AdmitSlaveResponseHeader, NO_BODY,
    Right.BROKER, CLUSTER, on_slave=ResponseCode.SYSTEM_ERROR)
# A slave confirms its copy of the master's tables, and waits for a change. Java's slaves only look
# now and then, and changes do not wait for them.
AWAIT_TABLES: Final = RequestType(
    OwnRequestCode.AWAIT_TABLES, h.AwaitTablesRequestHeader, NO_BODY, NoHeader, JsonBody(TablesState),
    Right.BROKER, CLUSTER, on_slave=ResponseCode.SYSTEM_ERROR)
CLEAN_EXPIRED_CONSUMEQUEUE: Final = RequestType(
    Code.CLEAN_EXPIRED_CONSUMEQUEUE, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
CLEAN_UNUSED_TOPIC: Final = RequestType(
    Code.CLEAN_UNUSED_TOPIC, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER,
    on_slave=ResponseCode.SUCCESS)
DELETE_EXPIRED_COMMITLOG: Final = RequestType(
    Code.DELETE_EXPIRED_COMMITLOG, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
# Filter servers and filter classes of old brokers; our broker refuses them.
REGISTER_FILTER_SERVER: Final = RequestType(
    Code.REGISTER_FILTER_SERVER, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.NONE, CLUSTER,
    actions=ANY_ACCOUNT)
REGISTER_MESSAGE_FILTER_CLASS: Final = RequestType(
    Code.REGISTER_MESSAGE_FILTER_CLASS, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.NONE, CLUSTER,
    actions=ANY_ACCOUNT)

# Users and policies of ACL 2.0, at brokers and name servers. An answer about what there is not has no
# body. A slave has its master make changes.

AUTH_CREATE_USER: Final = RequestType(
    Code.AUTH_CREATE_USER, a.UserRequestHeader, JsonBody(a.UserInfo, limits.MAX_USER_LENGTH),
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
AUTH_UPDATE_USER: Final = RequestType(
    Code.AUTH_UPDATE_USER, a.UserRequestHeader, JsonBody(a.UserInfo, limits.MAX_USER_LENGTH),
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
AUTH_DELETE_USER: Final = RequestType(
    Code.AUTH_DELETE_USER, a.UserRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_GET_USER: Final = RequestType(
    Code.AUTH_GET_USER, a.UserRequestHeader, NO_BODY, NoHeader, RAW,
    Right.ADMIN, CLUSTER, actions=GET)
AUTH_LIST_USER: Final = RequestType(
    Code.AUTH_LIST_USER, a.ListUsersRequestHeader, NO_BODY, NoHeader, RAW,
    Right.ADMIN, CLUSTER, actions=GET)
AUTH_CREATE_ACL: Final = RequestType(
    Code.AUTH_CREATE_ACL, a.AclRequestHeader, JsonBody(a.AclInfo, limits.MAX_ACL_LENGTH),
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
AUTH_UPDATE_ACL: Final = RequestType(
    Code.AUTH_UPDATE_ACL, a.AclRequestHeader, JsonBody(a.AclInfo, limits.MAX_ACL_LENGTH),
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
AUTH_DELETE_ACL: Final = RequestType(
    Code.AUTH_DELETE_ACL, a.DeleteAclRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_GET_ACL: Final = RequestType(
    Code.AUTH_GET_ACL, a.AclRequestHeader, NO_BODY, NoHeader, RAW,
    Right.ADMIN, CLUSTER, actions=GET)
AUTH_LIST_ACL: Final = RequestType(
    Code.AUTH_LIST_ACL, a.ListAclsRequestHeader, NO_BODY, NoHeader, RAW,
    Right.ADMIN, CLUSTER, actions=GET)

# From brokers to clients

CHECK_TRANSACTION_STATE: Final = RequestType(
    Code.CHECK_TRANSACTION_STATE, h.CheckTransactionStateRequestHeader, RAW, NoHeader, NO_BODY,
    Right.NONE, topic(), actions=ANY_ACCOUNT)
NOTIFY_CONSUMER_IDS_CHANGED: Final = RequestType(
    Code.NOTIFY_CONSUMER_IDS_CHANGED, h.NotifyConsumerIdsChangedRequestHeader, NO_BODY,
    NoHeader, NO_BODY, Right.NONE, group(), actions=ANY_ACCOUNT)
RESET_CONSUMER_CLIENT_OFFSET: Final = RequestType(
    Code.RESET_CONSUMER_CLIENT_OFFSET, h.ResetOffsetRequestHeader, RAW, NoHeader, NO_BODY,
    Right.NONE, topic(), group("group"), actions=ANY_ACCOUNT)
GET_CONSUMER_STATUS_FROM_CLIENT: Final = RequestType(
    Code.GET_CONSUMER_STATUS_FROM_CLIENT, h.GetConsumerStatusRequestHeader, NO_BODY, NoHeader, RAW,
    Right.NONE, topic(), group("group"), actions=ANY_ACCOUNT)
PUSH_REPLY_MESSAGE_TO_CLIENT: Final = RequestType(
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT, h.ReplyMessageRequestHeader, RAW, NoHeader, NO_BODY,
    Right.NONE, topic(), actions=ANY_ACCOUNT)

# Popping

POP_MESSAGE: Final = RequestType(
    Code.POP_MESSAGE, pop.PopMessageRequestHeader, NO_BODY, pop.PopMessageResponseHeader, RAW,
    Right.SUB, topic(), group(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
ACK_MESSAGE: Final = RequestType(
    Code.ACK_MESSAGE, pop.AckMessageRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.SUB, popped_topic(), group(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
BATCH_ACK_MESSAGE: Final = RequestType(
    Code.BATCH_ACK_MESSAGE, NoHeader,
    JsonBody(BatchAckMessageRequestBody, limits.MAX_BATCH_ACK_LENGTH, limits.check_acks),
    NoHeader, NO_BODY,
    Right.SUB, topics_of_body("acks.topic"), groups_of_body("acks.consumer_group"),
    on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
CHANGE_MESSAGE_INVISIBLETIME: Final = RequestType(
    Code.CHANGE_MESSAGE_INVISIBLETIME, pop.ChangeInvisibleTimeRequestHeader, NO_BODY,
    pop.ChangeInvisibleTimeResponseHeader, NO_BODY,
    Right.SUB, popped_topic(), group(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
PEEK_MESSAGE: Final = RequestType(
    Code.PEEK_MESSAGE, pop.PeekMessageRequestHeader, NO_BODY, pop.PopMessageResponseHeader, RAW,
    Right.SUB, topic(), group(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
NOTIFICATION: Final = RequestType(
    Code.NOTIFICATION, pop.NotificationRequestHeader, NO_BODY, pop.NotificationResponseHeader, NO_BODY,
    Right.SUB, topic(), group(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
POLLING_INFO: Final = RequestType(
    Code.POLLING_INFO, pop.PollingInfoRequestHeader, NO_BODY, pop.PollingInfoResponseHeader, NO_BODY,
    Right.SUB, topic(), group(), on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
# An operator asks for the messages that a group has in flight, and for the holder of one. Java has no such request.
GET_POP_PROGRESS: Final = RequestType(
    OwnRequestCode.GET_POP_PROGRESS, pop.PopProgressRequestHeader, NO_BODY, NoHeader,
    JsonBody(PopProgress), Right.SUB, group(), actions=GET, on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)
# Whether members that let the broker divide the queues pull or pop.
SET_MESSAGE_REQUEST_MODE: Final = RequestType(
    Code.SET_MESSAGE_REQUEST_MODE, NoHeader,
    JsonBody(SetMessageRequestModeRequestBody, limits.MAX_ASSIGNMENT_LENGTH, limits.check_request_mode),
    NoHeader, NO_BODY, Right.ADMIN, topics_of_body("topic"), groups_of_body("consumer_group"),
    on_slave=ResponseCode.SLAVE_NOT_AVAILABLE)

# Name servers: routes and brokers

GET_ROUTEINFO_BY_TOPIC: Final = RequestType(
    Code.GET_ROUTEINFO_BY_TOPIC, h.GetRouteInfoRequestHeader, NO_BODY,
    NoHeader, JsonBody(TopicRouteData), Right.ANY, topic(),
    actions=(Action.PUB, Action.SUB, Action.GET))
# `register_body` reads and writes the body.
REGISTER_BROKER: Final = RequestType(
    Code.REGISTER_BROKER, h.RegisterBrokerRequestHeader, RawBody(limits.MAX_REGISTRATION_LENGTH),
    h.RegisterBrokerResponseHeader, JsonBody(KVTable), Right.BROKER, cluster())
UNREGISTER_BROKER: Final = RequestType(
    Code.UNREGISTER_BROKER, h.UnRegisterBrokerRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.BROKER, cluster())
QUERY_DATA_VERSION: Final = RequestType(
    Code.QUERY_DATA_VERSION, h.QueryDataVersionRequestHeader,
    JsonBody(DataVersion, limits.MAX_DATA_VERSION_LENGTH),
    h.QueryDataVersionResponseHeader, JsonBody(DataVersion), Right.BROKER, cluster())
BROKER_HEARTBEAT: Final = RequestType(
    Code.BROKER_HEARTBEAT, h.BrokerHeartbeatRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.BROKER, cluster())
REGISTER_TOPIC_IN_NAMESRV: Final = RequestType(
    Code.REGISTER_TOPIC_IN_NAMESRV, h.RegisterTopicRequestHeader,
    JsonBody(TopicRouteData, limits.MAX_TOPIC_ROUTE_LENGTH), NoHeader, NO_BODY, Right.BROKER, CLUSTER)
GET_BROKER_MEMBER_GROUP: Final = RequestType(
    Code.GET_BROKER_MEMBER_GROUP, h.GetBrokerMemberGroupRequestHeader, NO_BODY,
    NoHeader, JsonBody(GetBrokerMemberGroupResponseBody), Right.NONE, cluster(), actions=GET)

# Name servers: what operators ask and change

GET_BROKER_CLUSTER_INFO: Final = RequestType(
    Code.GET_BROKER_CLUSTER_INFO, NoHeader, NO_BODY, NoHeader, JsonBody(ClusterInfo),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Final = RequestType(
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader, NO_BODY, NoHeader, JsonBody(TopicList),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
GET_TOPICS_BY_CLUSTER: Final = RequestType(
    Code.GET_TOPICS_BY_CLUSTER, h.GetTopicsByClusterRequestHeader, NO_BODY,
    NoHeader, JsonBody(TopicList), Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
GET_SYSTEM_TOPIC_LIST_FROM_NS: Final = RequestType(
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader, NO_BODY, NoHeader, JsonBody(TopicList),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
GET_UNIT_TOPIC_LIST: Final = RequestType(
    Code.GET_UNIT_TOPIC_LIST, NoHeader, NO_BODY, NoHeader, JsonBody(TopicList), Right.NONE, CLUSTER,
    actions=ANY_ACCOUNT)
GET_HAS_UNIT_SUB_TOPIC_LIST: Final = RequestType(
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST, NoHeader, NO_BODY, NoHeader, JsonBody(TopicList),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Final = RequestType(
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoHeader, NO_BODY, NoHeader, JsonBody(TopicList),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
WIPE_WRITE_PERM_OF_BROKER: Final = RequestType(
    Code.WIPE_WRITE_PERM_OF_BROKER, h.WipeWritePermOfBrokerRequestHeader, NO_BODY,
    h.WipeWritePermOfBrokerResponseHeader, NO_BODY, Right.ADMIN, CLUSTER)
ADD_WRITE_PERM_OF_BROKER: Final = RequestType(
    Code.ADD_WRITE_PERM_OF_BROKER, h.AddWritePermOfBrokerRequestHeader, NO_BODY,
    h.AddWritePermOfBrokerResponseHeader, NO_BODY, Right.ADMIN, CLUSTER)
DELETE_TOPIC_IN_NAMESRV: Final = RequestType(
    Code.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicFromNamesrvRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, cluster())
PUT_KV_CONFIG: Final = RequestType(
    Code.PUT_KV_CONFIG, h.PutKVConfigRequestHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
GET_KV_CONFIG: Final = RequestType(
    Code.GET_KV_CONFIG, h.GetKVConfigRequestHeader, NO_BODY, h.GetKVConfigResponseHeader, NO_BODY,
    Right.NONE, CLUSTER, actions=GET)
DELETE_KV_CONFIG: Final = RequestType(
    Code.DELETE_KV_CONFIG, h.DeleteKVConfigRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
GET_KVLIST_BY_NAMESPACE: Final = RequestType(
    Code.GET_KVLIST_BY_NAMESPACE, h.GetKVListByNamespaceRequestHeader, NO_BODY,
    NoHeader, JsonBody(KVTable), Right.NONE, CLUSTER, actions=GET)
UPDATE_NAMESRV_CONFIG: Final = RequestType(
    Code.UPDATE_NAMESRV_CONFIG, NoHeader, RawBody(limits.MAX_CONFIG_LENGTH), NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
GET_NAMESRV_CONFIG: Final = RequestType(
    Code.GET_NAMESRV_CONFIG, NoHeader, NO_BODY, NoHeader, RAW, Right.INSPECT, CLUSTER)

# Accounts of ACL 1.0, served where it is on
UPDATE_AND_CREATE_ACL_CONFIG: Final = RequestType(
    Code.UPDATE_AND_CREATE_ACL_CONFIG, a.CreateAccessConfigRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
DELETE_ACL_CONFIG: Final = RequestType(
    Code.DELETE_ACL_CONFIG, a.DeleteAccessConfigRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
GET_BROKER_CLUSTER_ACL_INFO: Final = RequestType(
    Code.GET_BROKER_CLUSTER_ACL_INFO, NoHeader, NO_BODY, a.GetBrokerAclConfigResponseHeader, NO_BODY,
    Right.ADMIN, CLUSTER, actions=GET)
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Final = RequestType(
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, a.UpdateGlobalWhiteAddrsConfigRequestHeader, NO_BODY,
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)

# fmt: on

REQUESTS: Final[Mapping[int, AnyRequestType]] = {
    row.code: row for row in list(globals().values()) if isinstance(row, RequestType)
}

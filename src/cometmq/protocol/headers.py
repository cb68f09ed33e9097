"""Define the header records of requests and responses, one class each, grouped by who speaks to
whom.

Names and types are those of the Java classes (without the prefix `Rpc…`); `wire.json` of the
reference lists them. Nothing here reads the fields of Java's base classes (`lo`, `ns`, `nsd`,
`bname`, `oway`), so they stay among the unknown entries.

Longer than 500 lines: one short class for each header is found faster in one module than in two.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cometmq.protocol.header import Header, Int32, Int64

# Sending


# The number of queues of a topic that a send creates without naming one: the number that Java's
# producers ask for.
PRODUCERS_QUEUE_NUMS: Final = 4


class SendMessageRequestHeader(Header, kw_only=True):
    """Codes 10 and 324. `properties` is the encoded properties string.

    Java's brokers also serve a send without producer group and model topic.
    """

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 = PRODUCERS_QUEUE_NUMS
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


class SendMessageRequestHeaderV2(Header, kw_only=True):
    """Codes 310, 320 and 325: the fields of the first version under one-letter names."""

    producer_group: str = msgspec.field(name="a", default="")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c", default="")
    default_topic_queue_nums: Int32 = msgspec.field(name="d", default=PRODUCERS_QUEUE_NUMS)
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: Int32 | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: Int32 | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)
    broker_name: str | None = msgspec.field(name="n", default=None)


# The headers that handlers of both versions read.
SendMessageHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


class SendMessageResponseHeader(Header):
    """`msg_id` is the offset message id (comma-separated for a batch); the offsets are those of the
    first message.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


# Pulling


class PullMessageRequestHeader(Header):
    """Codes 11 and 361. Java requires the last three numbers only where `sys_flag` uses them."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = -1
    suspend_timeout_millis: Int64 = 0
    sub_version: Int64 = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None


class PullMessageResponseHeader(Header):
    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


# Groups and their offsets


class UnregisterClientRequestHeader(Header):
    """Code 35. A broker knows the client by its connection, even without the id."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Header):
    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header):
    consumer_group: str


class QueryConsumerOffsetRequestHeader(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(Header):
    """Code 15. Queue id and offset are required; a broker refuses a request without them with a
    code of its own.
    """

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class OffsetResponseHeader(Header):
    """The answer of codes 14, 29, 30 and 31."""

    offset: Int64


class ConsumerSendMsgBackRequestHeader(Header):
    """Code 36. `offset` is the message's commit-log offset; a `delay_level` of 0 leaves the delay
    to the broker. The last three, which are CometMQ's own, say why the delivery failed.
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    failure_type: str | None = None
    failure_text: str | None = None
    failure_member: str | None = None


class ResetOffsetRequestHeader(Header):
    """Codes 222 and 220; a `timestamp` of -1 stands for the end, a `queue_id` of -1 for all queues."""

    group: str
    topic: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 = -1
    offset: Int64 | None = None


class GetConsumerStatusRequestHeader(Header):
    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(Header):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class RecallMessageRequestHeader(Header):
    """Code 370. `recall_handle` comes from the answer to the send of a timed message."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    """`msg_id` is the unique id of the message that will not be delivered."""

    msg_id: str


# Queues


class GetMaxOffsetRequestHeader(Header):
    topic: str
    queue_id: Int32
    committed: bool = True


class GetMinOffsetRequestHeader(Header):
    topic: str
    queue_id: Int32


class SearchOffsetRequestHeader(Header):
    """`timestamp` is a store time in ms; `boundary_type` is `lower` or `upper`."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetEarliestMsgStoretimeRequestHeader(Header):
    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Header):
    timestamp: Int64


# Transactions


class EndTransactionRequestHeader(Header):
    """Code 37. The offsets are those of the half message; `commit_or_rollback` is 8, 12 or 0."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    topic: str | None = None
    transaction_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class CheckTransactionStateRequestHeader(Header):
    """Code 39, from a broker to a producer. The offsets are those to name in END_TRANSACTION."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class ResumeCheckHalfMessageRequestHeader(Header):
    """Code 323. `msg_id` is the offset message id of the half message or of its discarded copy."""

    msg_id: str
    topic: str | None = None


# Request and reply


class ReplyMessageRequestHeader(SendMessageRequestHeader, kw_only=True):
    """Code 326, from a broker to the client that asked. Hosts are `ip:port`."""

    born_host: str
    store_host: str
    store_timestamp: Int64


# Finding messages


class QueryMessageRequestHeader(Header):
    """Code 12. Times are store times in ms, both included.

    With `unique_key_query` (`true`) the key is a unique id; Java's class does not have this field.
    `index_type` is of Java 5.5: K for keys, U for unique ids, T for tags.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: str | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)
    index_type: str | None = None


class QueryMessageResponseHeader(Header):
    """The answer of code 12: how far the index reaches, as store time and commit-log offset of its
    last message.
    """

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(Header):
    """Code 33. `offset` is a commit-log offset."""

    offset: Int64
    topic: str | None = None


# Name server


class RegisterBrokerRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(UnRegisterBrokerRequestHeader):
    """Code 322: the same four fields, which name one broker."""


class QueryDataVersionResponseHeader(Header):
    changed: bool


class GetRouteInfoRequestHeader(Header):
    """Code 105. With `with_lost`, which Java's class does not have, the answer names the topic's
    lost brokers.
    """

    topic: str
    accept_standard_json_only: bool | None = None
    with_lost: bool | None = None


class PutKVConfigRequestHeader(Header):
    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    value: str | None = None


class DeleteKVConfigRequestHeader(GetKVConfigRequestHeader):
    """Code 102: namespace and key, as in the look-up."""


class GetKVListByNamespaceRequestHeader(Header):
    namespace: str


class AdmitSlaveRequestHeader(Header):
    broker_name: str


class AwaitTablesRequestHeader(Header):
    """`known` is the state of the tables that a slave has on its disk, "" if it has none of them."""

    known: str = ""
    wait_ms: Int64 = 0


class AdmitSlaveResponseHeader(Header):
    # In hexadecimal.
    token: str


class BrokerHeartbeatRequestHeader(Header):
    """Code 904, in acting-master mode. It lacks the fields for the controller."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None


class WipeWritePermOfBrokerRequestHeader(Header):
    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    wipe_topic_count: Int32


class AddWritePermOfBrokerRequestHeader(Header):
    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    add_topic_count: Int32


class GetTopicsByClusterRequestHeader(Header):
    cluster: str


class DeleteTopicFromNamesrvRequestHeader(Header):
    """Code 216. Without `cluster_name`, the topic is deleted from every cluster."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequestHeader(Header):
    topic: str


class GetBrokerMemberGroupRequestHeader(Header):
    cluster_name: str
    broker_name: str


class GetTopicStatsInfoRequestHeader(Header):
    topic: str


class GetTopicConfigRequestHeader(Header):
    topic: str


class GetConsumerConnectionListRequestHeader(Header):
    consumer_group: str


class GetProducerConnectionListRequestHeader(Header):
    producer_group: str


class GetConsumeStatsRequestHeader(Header):
    """Code 208: the progress of a group in every topic that it consumes, or in `topic`, or in the
    topics that `topic_list` names (separated by semicolons), even without a subscription to them.

    `with_subscribed` adds topics that an online group subscribes to without having an offset there;
    Java's class does not have this field.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    with_subscribed: bool | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """Code 317: the progress of every group in every topic, or with `is_order` in every ordered topic.
    For `with_subscribed` see code 208.
    """

    is_order: bool
    with_subscribed: bool | None = None


class QueryConsumeTimeSpanRequestHeader(Header):
    """Code 303."""

    topic: str
    group: str


class ViewBrokerStatsDataRequestHeader(Header):
    """Code 315: `stats_name` is the counter's name, `stats_key` the thing that it counts for, such
    as TOPIC@GROUP.
    """

    stats_name: str
    stats_key: str


class QueryTopicConsumeByWhoRequestHeader(Header):
    topic: str


class QueryTopicsByConsumerRequestHeader(Header):
    group: str


class QuerySubscriptionByConsumerRequestHeader(Header):
    group: str
    topic: str


class QueryCorrectionOffsetHeader(Header):
    """Code 308. `filter_groups` are separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class QueryConsumeQueueRequestHeader(Header):
    """Code 321: `count` units from the queue offset `index` on, and what the group selects."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class CheckRocksdbCqWriteProgressRequestHeader(Header):
    """Code 354. It concerns messages stored since `check_store_time`, in ms."""

    topic: str
    check_store_time: Int64 = 0


# Operators making, changing and deleting topics and groups


class CloneGroupOffsetRequestHeader(Header):
    """Code 314: clone the offsets in one topic, or in all if none is named. Unless `offline` is
    set, topics that the group has left are passed over while it is online.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class UpdateGroupForbiddenRequestHeader(Header):
    """Code 353: without `readable` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


class CreateTopicRequestHeader(Header, kw_only=True):
    """Code 17. `attributes` changes some of the topic's attributes: `+key=value,-key`.

    No broker reads `default_topic`.
    """

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicRequestHeader(Header):
    topic: str


class GetSubscriptionGroupConfigRequestHeader(Header):
    group: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """Code 207. Java 5.x calls the switch cleanOffset; Java 4.x calls it removeOffset."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


# Only servers of Java take these.


class ResetMasterFlushOffsetHeader(Header):
    """Code 908."""

    master_flush_offset: Int64


class SetCommitLogReadModeRequestHeader(Header):
    """Code 2004: 0 to read the log ahead, 1 not to."""

    mode: Int32 = msgspec.field(name="READ_AHEAD_MODE")


class ExportRocksDBConfigToJsonRequestHeader(Header):
    """Code 355. `config_type` names what is exported, separated by semicolons."""

    config_type: str

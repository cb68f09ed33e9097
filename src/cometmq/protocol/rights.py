"""Who may send which request to a server, for every request that one of ours serves.

Access control will ask for these rights by name; until then `cometmq.remoting.access` tells
administrators by their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from cometmq.protocol.codes import OwnRequestCode, RequestCode


class Right(Enum):
    # Whoever reaches the port: what clients send, what only reads, and what does no more harm than
    # the requests of clients do.
    CLIENT = auto()
    # A broker about itself: the handler compares the sender with whoever registered it.
    BROKER = auto()
    # Whoever runs the cluster: what stops, empties or changes a server for all its users.
    ADMIN = auto()


_CLIENT_CODES: Final = (
    # Sending, consuming, membership.
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    # Old brokers' filter servers and filter classes, which are refused or looked up in our own.
    RequestCode.REGISTER_FILTER_SERVER,
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    # Reading.
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_TOPICS_BY_CONSUMER,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_BROKER_MEMBER_GROUP,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.GET_NAMESRV_CONFIG,
    # A client that commits offsets can reset them, and one that sends to a group's retry topic can
    # have its messages consumed again.
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    OwnRequestCode.REDRIVE_DEAD_LETTERS,
)
_BROKER_CODES: Final = (
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.BROKER_HEARTBEAT,
)
_ADMIN_CODES: Final = (
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.PUT_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
)

RIGHTS: Final[Mapping[int, Right]] = {
    **dict.fromkeys(_CLIENT_CODES, Right.CLIENT),
    **dict.fromkeys(_BROKER_CODES, Right.BROKER),
    **dict.fromkeys(_ADMIN_CODES, Right.ADMIN),
}

"""List the requests of Java's RequestCode that no server here serves, each with the reason.

A server answers them with REQUEST_CODE_NOT_SUPPORTED and the reason. `scripts/request_reference.py`
writes the page docs/reference/requests.md out of this table and of what the servers register.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.protocol.codes import RequestCode as Code

_POP: Final = "pops are kept in the log (topic rmq_sys_pop_log) and not in RocksDB: there are no records to export"
_LITE: Final = (
    "there are no lite topics (RocketMQ 5.5) here; use a topic of the type NORMAL or FIFO, and message "
    "groups or tags in place of lite topics"
)
_CONTROLLER: Final = (
    "there is no controller here: a broker keeps the role that its configuration gives it"
)
_ACL_1: Final = (
    "accounts of ACL 1.0 are not kept here; aclEnable=true in the server's configuration switches "
    "this access control on"
)
_AUTH: Final = (
    "users and policies of ACL 2.0 are not kept here; authenticationEnabled=true and "
    "authorizationEnabled=true in the server's configuration switch this access control on"
)
_CONTAINER: Final = (
    "this is a broker, not a container of brokers; start each broker as a process of its own"
)
_COLD_DATA: Final = (
    "reads of cold data are not throttled here, so groups have no thresholds; a reader that is far "
    "behind gets at most maxTransferBytesOnMessageInDisk bytes and maxTransferCountOnMessageInDisk "
    "messages a pull; code 25 changes these keys on a running broker"
)
_SLAVES: Final = (
    "a slave learns all that it needs about its master from its copy of the log and from the name "
    "server; ask how far slaves are with code 907"
)
_NOBODY: Final = "no server of RocketMQ 4.9 or 5.3 serves it"

REFUSED: Final[Mapping[Code, str]] = {
    # Requests that no server of Java serves any more
    Code.QUERY_BROKER_OFFSET: f"{_NOBODY}; ask for the ends of a queue, codes 30 and 31",
    Code.GET_TOPIC_CONFIG_LIST: f"{_NOBODY}; ask for all topics, code 21",
    Code.GET_TOPIC_NAME_LIST: f"{_NOBODY}; ask for all topics, code 21",
    Code.TRIGGER_DELETE_FILES: f"{_NOBODY}; have files deleted with code 329",
    Code.GET_CLIENT_CONFIG: f"{_NOBODY}; ask for a consumer's running info, code 307",
    Code.SUSPEND_CONSUMER: f"{_NOBODY}; change the group's consumeEnable, code 200",
    Code.RESUME_CONSUMER: f"{_NOBODY}; change the group's consumeEnable, code 200",
    Code.RESET_CONSUMER_OFFSET_IN_CONSUMER: f"{_NOBODY}; reset offsets with code 222",
    Code.RESET_CONSUMER_OFFSET_IN_BROKER: f"{_NOBODY}; reset offsets with code 222",
    Code.ADJUST_CONSUMER_THREAD_POOL: f"{_NOBODY}; configure the consumer itself",
    Code.WHO_CONSUME_THE_MESSAGE: f"{_NOBODY}; ask who consumes the topic, code 300",
    # Requests about things that a broker of ours does not have
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: (
        "there is no RocksDB here; topics, groups and offsets are JSON files below config/ of the "
        "store already"
    ),
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "there are no static topics here; make an ordinary topic, code 17"
    ),
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD_DATA,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD_DATA,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _COLD_DATA,
    Code.SET_COMMITLOG_READ_MODE: (
        "the system decides how far files of the log are read ahead; change its read-ahead of the disk "
        "(blockdev --setra)"
    ),
    # Slaves, controllers, containers
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _SLAVES,
    Code.EXCHANGE_BROKER_HA_INFO: _SLAVES,
    Code.ADD_BROKER: _CONTAINER,
    Code.REMOVE_BROKER: _CONTAINER,
    **dict.fromkeys(
        (
            Code.CONTROLLER_ALTER_SYNC_STATE_SET,
            Code.CONTROLLER_ELECT_MASTER,
            Code.CONTROLLER_REGISTER_BROKER,
            Code.CONTROLLER_GET_REPLICA_INFO,
            Code.CONTROLLER_GET_METADATA_INFO,
            Code.CONTROLLER_GET_SYNC_STATE_DATA,
            Code.GET_BROKER_EPOCH_CACHE,
            Code.NOTIFY_BROKER_ROLE_CHANGED,
            Code.UPDATE_CONTROLLER_CONFIG,
            Code.GET_CONTROLLER_CONFIG,
            Code.CLEAN_BROKER_DATA,
            Code.CONTROLLER_GET_NEXT_BROKER_ID,
            Code.CONTROLLER_APPLY_BROKER_ID,
            Code.BROKER_CLOSE_CHANNEL_REQUEST,
            Code.CHECK_NOT_ACTIVE_BROKER_REQUEST,
            Code.GET_BROKER_LIVE_INFO_REQUEST,
            Code.GET_SYNC_STATE_DATA_REQUEST,
            Code.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        ),
        _CONTROLLER,
    ),
    # Pops that Java keeps in RocksDB
    **dict.fromkeys(
        (Code.POP_ROLLBACK,),
        _POP,
    ),
    # Since 5.4 and 5.5
    Code.SWITCH_TIMER_ENGINE: (
        "one engine reads delayed messages from the log here; there is no other engine to switch to"
    ),
    **dict.fromkeys(
        (
            Code.POP_LITE_MESSAGE,
            Code.LITE_SUBSCRIPTION_CTL,
            Code.ACK_LITE_MESSAGE,
            Code.NOTIFY_UNSUBSCRIBE_LITE,
            Code.GET_BROKER_LITE_INFO,
            Code.GET_PARENT_TOPIC_INFO,
            Code.GET_LITE_TOPIC_INFO,
            Code.GET_LITE_CLIENT_INFO,
            Code.GET_LITE_GROUP_INFO,
            Code.TRIGGER_LITE_DISPATCH,
        ),
        _LITE,
    ),
    # Access control
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_ACL_CONFIG,
            Code.DELETE_ACL_CONFIG,
            Code.GET_BROKER_CLUSTER_ACL_INFO,
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        ),
        _ACL_1,
    ),
    **dict.fromkeys(
        (
            Code.AUTH_CREATE_USER,
            Code.AUTH_UPDATE_USER,
            Code.AUTH_DELETE_USER,
            Code.AUTH_GET_USER,
            Code.AUTH_LIST_USER,
            Code.AUTH_CREATE_ACL,
            Code.AUTH_UPDATE_ACL,
            Code.AUTH_DELETE_ACL,
            Code.AUTH_GET_ACL,
            Code.AUTH_LIST_ACL,
        ),
        _AUTH,
    ),
}
# A broker answers these with NO_PERMISSION: they bring code that would run in it or in front of it.
NOT_PERMITTED: Final[Mapping[int, str]] = {
    Code.REGISTER_FILTER_SERVER: (
        "filter servers are not served; the broker filters by functions of its own, named in "
        "filterPredicateModules (name=package.module:function)"
    ),
    Code.REGISTER_MESSAGE_FILTER_CLASS: (
        "a broker runs no source that clients upload; have its operator name a function of a "
        "module there in filterPredicateModules (name=package.module:function) and subscribe "
        "by that name without source"
    ),
}
_REASONS: Final[Mapping[int, str]] = {int(code): reason for code, reason in REFUSED.items()}


def unsupported(code: int) -> str:
    """Return the remark that refuses a code without a handler: Java's words, then our reason."""
    remark = f" request type {code} not supported"
    reason = _REASONS.get(code)
    return remark if reason is None else f"{remark}: {reason}"

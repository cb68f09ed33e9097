"""List the requests that only servers of Java take: the columns are those of `requests`.

Our clients send them to Java's brokers. Our servers refuse them, see `refused_requests`.
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.protocol import access_bodies as a
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.header import NoHeader
from cometmq.protocol.overview_bodies import EpochEntryCache, SetMessageRequestModeRequestBody
from cometmq.protocol.request_type import (
    CLUSTER,
    NO_BODY,
    JsonBody,
    RawBody,
    RequestType,
    Right,
    groups_of_body,
    topics_of_body,
)

RAW: Final = RawBody()

# A formatter would give each column a line of its own.
# fmt: off

# Slaves and their masters
GET_BROKER_EPOCH_CACHE: Final = RequestType(
    Code.GET_BROKER_EPOCH_CACHE, NoHeader, NO_BODY, NoHeader, JsonBody(EpochEntryCache),
    Right.NONE, CLUSTER)
RESET_MASTER_FLUSH_OFFSET: Final = RequestType(
    Code.RESET_MASTER_FLUSH_OFFSET, h.ResetMasterFlushOffsetHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)

# Reads of cold data. Thresholds by group are properties text, the name of a group is text.
UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Final = RequestType(
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, NoHeader, RAW, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Final = RequestType(
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, NoHeader, RAW, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
GET_COLD_DATA_FLOW_CTR_INFO: Final = RequestType(
    Code.GET_COLD_DATA_FLOW_CTR_INFO, NoHeader, NO_BODY, NoHeader, JsonBody(dict[str, Any]),
    Right.NONE, CLUSTER)
SET_COMMITLOG_READ_MODE: Final = RequestType(
    Code.SET_COMMITLOG_READ_MODE, h.SetCommitLogReadModeRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)

EXPORT_ROCKSDB_CONFIG_TO_JSON: Final = RequestType(
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, h.ExportRocksDBConfigToJsonRequestHeader, NO_BODY,
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
# Moves the records of pop consumers from RocksDB to files.
POP_ROLLBACK: Final = RequestType(
    Code.POP_ROLLBACK, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
# How pop or pull consumers share the queues of a topic
SET_MESSAGE_REQUEST_MODE: Final = RequestType(
    Code.SET_MESSAGE_REQUEST_MODE, NoHeader, JsonBody(SetMessageRequestModeRequestBody),
    NoHeader, NO_BODY, Right.ADMIN, topics_of_body("topic"), groups_of_body("consumer_group"))


# Access control of 5.x: users and policies. An answer about what there is not has no body.
AUTH_CREATE_USER: Final = RequestType(
    Code.AUTH_CREATE_USER, a.UserRequestHeader, JsonBody(a.UserInfo), NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_UPDATE_USER: Final = RequestType(
    Code.AUTH_UPDATE_USER, a.UserRequestHeader, JsonBody(a.UserInfo), NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_DELETE_USER: Final = RequestType(
    Code.AUTH_DELETE_USER, a.UserRequestHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
AUTH_GET_USER: Final = RequestType(
    Code.AUTH_GET_USER, a.UserRequestHeader, NO_BODY, NoHeader, RAW, Right.ADMIN, CLUSTER)
AUTH_LIST_USER: Final = RequestType(
    Code.AUTH_LIST_USER, a.ListUsersRequestHeader, NO_BODY, NoHeader, RAW, Right.ADMIN, CLUSTER)
AUTH_CREATE_ACL: Final = RequestType(
    Code.AUTH_CREATE_ACL, a.AclRequestHeader, JsonBody(a.AclInfo), NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_UPDATE_ACL: Final = RequestType(
    Code.AUTH_UPDATE_ACL, a.AclRequestHeader, JsonBody(a.AclInfo), NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_DELETE_ACL: Final = RequestType(
    Code.AUTH_DELETE_ACL, a.DeleteAclRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)
AUTH_GET_ACL: Final = RequestType(
    Code.AUTH_GET_ACL, a.AclRequestHeader, NO_BODY, NoHeader, RAW, Right.ADMIN, CLUSTER)
AUTH_LIST_ACL: Final = RequestType(
    Code.AUTH_LIST_ACL, a.ListAclsRequestHeader, NO_BODY, NoHeader, RAW, Right.ADMIN, CLUSTER)

# fmt: on

"""List the requests that only servers of Java take: the columns are those of `requests`.

Our clients send them to Java's brokers. Our servers refuse them, see `refused_requests`.
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.protocol import headers as h
from cometmq.protocol.bodies.overview import EpochEntryCache
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.header import NoHeader
from cometmq.protocol.request_type import (
    ANY_ACCOUNT,
    CLUSTER,
    NO_BODY,
    JsonBody,
    RawBody,
    RequestType,
    Right,
)

RAW: Final = RawBody()

# A formatter would give each column a line of its own.
# fmt: off

# Slaves and their masters
GET_BROKER_EPOCH_CACHE: Final = RequestType(
    Code.GET_BROKER_EPOCH_CACHE, NoHeader, NO_BODY, NoHeader, JsonBody(EpochEntryCache),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)

# Reads of cold data. Thresholds by group are properties text, the name of a group is text.
UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Final = RequestType(
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, NoHeader, RAW, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Final = RequestType(
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, NoHeader, RAW, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
GET_COLD_DATA_FLOW_CTR_INFO: Final = RequestType(
    Code.GET_COLD_DATA_FLOW_CTR_INFO, NoHeader, NO_BODY, NoHeader, JsonBody(dict[str, Any]),
    Right.NONE, CLUSTER, actions=ANY_ACCOUNT)
SET_COMMITLOG_READ_MODE: Final = RequestType(
    Code.SET_COMMITLOG_READ_MODE, h.SetCommitLogReadModeRequestHeader, NO_BODY, NoHeader, NO_BODY,
    Right.ADMIN, CLUSTER)

EXPORT_ROCKSDB_CONFIG_TO_JSON: Final = RequestType(
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, h.ExportRocksDBConfigToJsonRequestHeader, NO_BODY,
    NoHeader, NO_BODY, Right.ADMIN, CLUSTER)
# Moves the records of pop consumers from RocksDB to files.
POP_ROLLBACK: Final = RequestType(
    Code.POP_ROLLBACK, NoHeader, NO_BODY, NoHeader, NO_BODY, Right.ADMIN, CLUSTER)

# fmt: on

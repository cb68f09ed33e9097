"""Make a well-formed request for each row of the request table, as ext fields and body.

All are about the same topic and the same group, wherever a row says that it touches one, and what
they change is harmless to the server that serves them. A row whose fields or body have no sample
here raises NoSampleError, so that a new row gets one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args

import msgspec

from cometmq import Credentials
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.route import TopicRouteData
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.bodies.cluster import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueueBean,
    QueryAssignmentRequestBody,
    RegisterBrokerBody,
    SubscriptionGroupList,
    TopicConfigList,
    TopicConfigSerializeWrapper,
    UnlockBatchRequestBody,
)
from cometmq.protocol.bodies.overview import SetMessageRequestModeRequestBody
from cometmq.protocol.bodies.registration import encode_register_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody
from cometmq.protocol.pop.handle import PopHandle
from cometmq.protocol.redrive import LetterSelection
from cometmq.protocol.request_type import (
    AnyRequestType,
    JsonBody,
    NoBody,
    Resource,
    ResourceKind,
)

TOPIC: Final = "matrix-topic"
GROUP: Final = "matrix-group"
CLIENT: Final = "matrix-client"
# A client that is nowhere: what is passed on to it is answered at once.
ABSENT: Final = "matrix-absent"
# What a request changes that is about a server, a broker or an account of its own.
DECOY: Final = "matrix-decoy"
DECOY_ACCOUNT: Final = Credentials(f"{DECOY}-account", f"{DECOY}-secret")
_DECOY_SUBJECT: Final = f"User:{DECOY_ACCOUNT.access_key}"
BROKER: Final = "broker-matrix"
CLUSTER: Final = "DefaultCluster"
# An offset id and a unique id of a message that is nowhere.
OFFSET_ID: Final = "7F00000100002A9F0000000000000000"
UNIQUE_ID: Final = "7F0000010001000000000000000000AA"
NAMES: Final = {
    ResourceKind.TOPIC: TOPIC,
    ResourceKind.GROUP: GROUP,
    ResourceKind.CLUSTER: CLUSTER,
}


class NoSampleError(Exception):
    """Says which field or body of a row has no sample value."""


class Sample(NamedTuple):
    """A request: its ext fields by their names on the wire, and its body."""

    row: AnyRequestType
    ext: dict[str, str]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.row.code)


_REGISTRATION: Final = encode_register_body(RegisterBrokerBody([], TopicConfigSerializeWrapper()))

# The values of required text fields, by the fields' names.
_TEXTS: Final[Mapping[str, str]] = {
    "access_key": DECOY_ACCOUNT.access_key,
    "acl_file_full_path": "",
    "born_host": "127.0.0.1:1",
    "broker_addr": "127.0.0.1:1",
    "broker_name": BROKER,
    "client_id": CLIENT,
    "cluster": CLUSTER,
    "cluster_name": CLUSTER,
    "default_topic": "TBW102",
    "extra_info": PopHandle(0, 1_700_000_000_000, 60_000, 0, "0", BROKER, 0, 0).encode(),
    "global_white_addrs": "10.99.99.99",
    "ha_server_addr": "127.0.0.1:1",
    "key": "matrix-key",
    "msg_id": UNIQUE_ID,
    "namespace": "MATRIX",
    "producer_group": "matrix-producer",
    "recall_handle": RecallHandle(TOPIC, BROKER, 1_700_000_000_000, UNIQUE_ID).encode(),
    "redrive_id": "matrix-redrive",
    "src_group": GROUP,
    "stats_key": TOPIC,
    "stats_name": "TOPIC_PUT_NUMS",
    "store_host": "127.0.0.1:1",
    "subject": _DECOY_SUBJECT,
    "topic_filter_type": "SINGLE_TAG",
    "username": DECOY_ACCOUNT.access_key,
    "value": "matrix-value",
}
# The values of numbers that may not be 0.
_NUMBERS: Final[Mapping[str, int]] = {
    "broker_id": 7,
    "count": 1,
    "default_topic_queue_nums": 4,
    "delay_level": 3,
    "max_msg_nums": 1,
    "max_num": 1,
    "perm": 6,
    "read_queue_nums": 4,
    "write_queue_nums": 4,
}
# Optional fields that a request of a row needs, or that say more than their absence.
_OPTIONAL: Final[Mapping[int, Mapping[str, str]]] = {
    RequestCode.PULL_MESSAGE: {"subscription": "*", "expressionType": "TAG"},
    RequestCode.LITE_PULL_MESSAGE: {"subscription": "*", "expressionType": "TAG"},
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: {"secretKey": DECOY_ACCOUNT.secret_key},
    RequestCode.UPDATE_CONSUMER_OFFSET: {"queueId": "0", "commitOffset": "0"},
    RequestCode.UNREGISTER_CLIENT: {"producerGroup": "matrix-producer"},
    RequestCode.CONSUME_MESSAGE_DIRECTLY: {"clientId": ABSENT, "msgId": OFFSET_ID},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {"offset": "0"},
    RequestCode.REGISTER_BROKER: {"bodyCrc32": str(zlib.crc32(_REGISTRATION) & 0x7FFFFFFF)},
}
# The values that a row wants instead of those above. Java reads both as the place of a message.
_OWN: Final[Mapping[int, Mapping[str, str]]] = {
    RequestCode.RESUME_CHECK_HALF_MESSAGE: {"msgId": OFFSET_ID},
    # A rollback: Java never answers an unknown verdict.
    RequestCode.END_TRANSACTION: {"commitOrRollback": "12"},
    # The subscription stands in the request; without PULL_SUSPEND it is answered at once.
    RequestCode.PULL_MESSAGE: {"sysFlag": "4"},
    RequestCode.LITE_PULL_MESSAGE: {"sysFlag": "4"},
    # There is no message so far: with one, its topic is checked, too.
    RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": str(1 << 40)},
    RequestCode.GET_CONSUMER_RUNNING_INFO: {"clientId": ABSENT},
    # Nobody else's topic, even where it succeeds.
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": DECOY},
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: {"topic": DECOY},
}
_RAW_BODIES: Final[Mapping[int, bytes]] = {
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        ),
        b"matrix",
    ),
    # No batch at all: whoever gets in is told so.
    RequestCode.SEND_BATCH_MESSAGE: b"matrix",
    RequestCode.UPDATE_BROKER_CONFIG: b"brokerPermission=6\n",
    RequestCode.UPDATE_NAMESRV_CONFIG: b"orderMessageEnable=false\n",
    RequestCode.REGISTER_BROKER: _REGISTRATION,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: b"",
}
_QUEUES: Final = [MessageQueueBean(BROKER, 0, TOPIC)]
_SUBSCRIPTION: Final = SubscriptionData(TOPIC)
_JSON_BODIES: Final[Mapping[Any, Any]] = {
    HeartbeatData: HeartbeatData(
        CLIENT, [ConsumerData(GROUP, subscription_data_set=[_SUBSCRIPTION])]
    ),
    CheckClientRequestBody: CheckClientRequestBody(CLIENT, GROUP, _SUBSCRIPTION),
    QueryAssignmentRequestBody: QueryAssignmentRequestBody(TOPIC, GROUP, CLIENT),
    LockBatchRequestBody: LockBatchRequestBody(CLIENT, GROUP, _QUEUES),
    UnlockBatchRequestBody: UnlockBatchRequestBody(CLIENT, GROUP, _QUEUES),
    SetMessageRequestModeRequestBody: SetMessageRequestModeRequestBody(GROUP, TOPIC),
    BatchAckMessageRequestBody: BatchAckMessageRequestBody(
        BROKER, [BatchAck(GROUP, TOPIC, bits="AQ==")]
    ),
    LetterSelection: LetterSelection(),
    TopicConfigList: TopicConfigList([TopicConfig(TOPIC)]),
    SubscriptionGroupConfig: SubscriptionGroupConfig(GROUP),
    SubscriptionGroupList: SubscriptionGroupList([SubscriptionGroupConfig(GROUP)]),
    DataVersion: DataVersion(),
    UserInfo: UserInfo(DECOY_ACCOUNT.access_key, DECOY_ACCOUNT.secret_key, "Normal"),
    AclInfo: AclInfo(
        _DECOY_SUBJECT,
        [PolicyInfo("Custom", [PolicyEntryInfo(f"Topic:{DECOY}", ["Pub"], decision="Allow")])],
    ),
    TopicRouteData: TopicRouteData(),
}


def sample(row: AnyRequestType) -> Sample:
    """Return a request of the row. Raise NoSampleError for a row that has none."""
    return Sample(row, _ext(row), _body(row))


def _ext(row: AnyRequestType) -> dict[str, str]:
    touched = {resource.path: resource for resource in row.resources if not resource.in_body}
    own = {**_OPTIONAL.get(row.code, {}), **_OWN.get(row.code, {})}
    ext = {}
    for field in msgspec.structs.fields(row.header):
        if field.encode_name in own:
            ext[field.encode_name] = own[field.encode_name]
        elif (resource := touched.get(field.name)) is not None:
            ext[field.encode_name] = NAMES[resource.kind]
        elif field.required:
            ext[field.encode_name] = _value(row, field)
    if unknown := own.keys() - ext.keys():
        raise NoSampleError(f"{row.name} has no field {', '.join(sorted(unknown))}")
    return ext


def _value(row: AnyRequestType, field: msgspec.structs.FieldInfo) -> str:
    kind = field.type if isinstance(field.type, type) else next(iter(get_args(field.type)), None)
    if kind is bool:
        return "false"
    if kind is int:
        return str(_NUMBERS.get(field.name, 0))
    if kind is str and field.name in _TEXTS:
        return _TEXTS[field.name]
    raise NoSampleError(f"{row.name} wants a field {field.name}: give it a value here")


def _body(row: AnyRequestType) -> bytes:
    if isinstance(row.body, NoBody):
        return b""
    if isinstance(row.body, JsonBody):
        if row.body.type not in _JSON_BODIES:
            raise NoSampleError(f"{row.name} wants a {row.body.type.__name__}: make one here")
        return row.body.encode(_JSON_BODIES[row.body.type])
    if row.code not in _RAW_BODIES:
        raise NoSampleError(f"{row.name} wants a body of its own form: make one here")
    return _RAW_BODIES[row.code]


def named(sample: Sample) -> list[tuple[Resource, str]]:
    """Return the resources that a sample names, each with its name."""
    header = msgspec.convert(sample.ext, sample.row.header, strict=False)
    body = sample.row.body.decode(sample.body) if isinstance(sample.row.body, JsonBody) else None
    return [
        (resource, name)
        for resource in sample.row.resources
        for name in resource.names(header, body)
    ]

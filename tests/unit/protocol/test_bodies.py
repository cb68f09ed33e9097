from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import ConsumerData, ProducerData, SubscriptionData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies.cluster import (
    BrokerMemberGroup,
    CheckClientRequestBody,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    GetBrokerMemberGroupResponseBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    KVConfigSerializeWrapper,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueBean,
    RegisterBrokerBody,
    SubscriptionGroupWrapper,
    TimerMetric,
    TimerMetricsSerializeWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
    UnlockBatchRequestBody,
)
from cometmq.protocol.fastjson.dialect import decode_body, encode_body

QUEUE = MessageQueueBean("a", 3, "t")

# Each body with every field set, and what Java would have to find in it (protocol.md, section 9).
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (
        HeartbeatData(
            "1.2.3.4@7",
            [ConsumerData("g", subscription_data_set=[SubscriptionData("t", "A", ["A"], [65], 9)])],
            5,
            [ProducerData("p")],
            True,
        ),
        {
            "clientID": "1.2.3.4@7",
            "consumerDataSet": [
                {
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "consumeType": "CONSUME_PASSIVELY",
                    "groupName": "g",
                    "messageModel": "CLUSTERING",
                    "subscriptionDataSet": [
                        {
                            "classFilterMode": False,
                            "codeSet": [65],
                            "expressionType": "TAG",
                            "subString": "A",
                            "subVersion": 9,
                            "tagsSet": ["A"],
                            "topic": "t",
                        }
                    ],
                    "unitMode": False,
                }
            ],
            "heartbeatFingerprint": 5,
            "producerDataSet": [{"groupName": "p"}],
            "withoutSub": True,
        },
    ),
    (
        CheckClientRequestBody("c", "g", SubscriptionData("t"), "ns"),
        {
            "clientId": "c",
            "group": "g",
            "namespace": "ns",
            "subscriptionData": {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": "*",
                "subVersion": 0,
                "tagsSet": [],
                "topic": "t",
            },
        },
    ),
    (GetConsumerListByGroupResponseBody(["c1", "c2"]), {"consumerIdList": ["c1", "c2"]}),
    (
        LockBatchRequestBody("c", "g", [QUEUE], True),
        {
            "clientId": "c",
            "consumerGroup": "g",
            "mqSet": [{"brokerName": "a", "queueId": 3, "topic": "t"}],
            "onlyThisBroker": True,
        },
    ),
    (
        UnlockBatchRequestBody("c", "g"),
        {"clientId": "c", "consumerGroup": "g", "mqSet": [], "onlyThisBroker": False},
    ),
    (
        LockBatchResponseBody([QUEUE]),
        {"lockOKMQSet": [{"brokerName": "a", "queueId": 3, "topic": "t"}]},
    ),
    (
        RegisterBrokerBody(
            ["h:1"],
            TopicConfigSerializeWrapper(DataVersion(1, 2, 3), None, {"t": TopicConfig("t")}),
        ),
        {
            "filterServerList": ["h:1"],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "stateVersion": 2, "timestamp": 3},
                "topicConfigTable": {
                    "t": {
                        "attributes": {},
                        "order": False,
                        "perm": 6,
                        "readQueueNums": 16,
                        "topicFilterType": "SINGLE_TAG",
                        "topicName": "t",
                        "topicSysFlag": 0,
                        "writeQueueNums": 16,
                    }
                },
            },
        },
    ),
    (TopicList("h:1", ["t"]), {"brokerAddr": "h:1", "topicList": ["t"]}),
    (TopicList(), {"topicList": []}),
    (KVTable({"k": "v"}), {"table": {"k": "v"}}),
    (KVConfigSerializeWrapper({"ns": {"k": "v"}}), {"configTable": {"ns": {"k": "v"}}}),
    (
        GetBrokerMemberGroupResponseBody(BrokerMemberGroup("a", "c", {0: "h:1"})),
        {"brokerMemberGroup": {"brokerAddrs": {"0": "h:1"}, "brokerName": "a", "cluster": "c"}},
    ),
    (
        ConsumerOffsetSerializeWrapper(offset_table={"t@g": {0: 250}}),
        {"offsetTable": {"t@g": {"0": 250}}},
    ),
    (DelayOffsetSerializeWrapper(None, {3: 7}), {"offsetTable": {"3": 7}}),
    (
        TimerMetricsSerializeWrapper(timing_count={"t": TimerMetric(2, 5)}),
        {
            "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "timingCount": {"t": {"count": 2, "timeStamp": 5}},
        },
    ),
    (
        SubscriptionGroupWrapper(forbidden_table={"g": {"t": 1}}),
        {
            "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "forbiddenTable": {"g": {"t": 1}},
            "subscriptionGroupTable": {},
        },
    ),
]


@pytest.mark.parametrize(("body", "shape"), BODIES, ids=lambda v: type(v).__name__)
def test_a_body_has_the_shape_java_reads_and_comes_back(
    body: msgspec.Struct, shape: dict[str, Any]
) -> None:
    data = encode_body(body)
    assert json.loads(data) == shape
    assert decode_body(data, type(body)) == body
    # Keys of a later release are ignored.
    assert decode_body(json.dumps({**shape, "later": [1]}).encode(), type(body)) == body


def test_subscription_groups_come_back_with_java_s_defaults() -> None:
    wrapper = decode_body(
        b'{"subscriptionGroupTable":{"g":{"groupName":"g"}}}', SubscriptionGroupWrapper
    )
    group = wrapper.subscription_group_table["g"]
    assert (group.consume_enable, group.retry_max_times, group.retry_queue_nums) == (True, 16, 1)
    assert (group.broker_id, group.which_broker_when_consume_slowly) == (0, 1)
    assert decode_body(encode_body(wrapper), SubscriptionGroupWrapper) == wrapper


def test_derived_keys_of_a_java_file_are_ignored() -> None:
    data = b'{"dataVersion":{"counter":4},"groupTopicMap":{"g":["t"]},"offsetTable":{"t@g":{1:9}}}'
    wrapper = decode_body(data, ConsumerOffsetSerializeWrapper)
    assert wrapper == ConsumerOffsetSerializeWrapper(DataVersion(4), {"t@g": {1: 9}})


names = st.text(st.characters(codec="utf-8"), max_size=10)


@given(names, names, st.integers(-(2**31), 2**31 - 1))
def test_a_queue_and_its_bean_say_the_same(topic: str, broker_name: str, queue_id: int) -> None:
    queue = MessageQueue(topic, broker_name, queue_id)
    bean = MessageQueueBean.of(queue)
    assert bean.queue() == queue
    assert decode_body(encode_body(bean), MessageQueueBean) == bean


@pytest.mark.parametrize(
    ("data", "type_"),
    [
        (b"{}", HeartbeatData),
        (b'{"clientID":5}', HeartbeatData),
        (b'{"clientID":"c","heartbeatFingerprint":2147483648}', HeartbeatData),
        (b'{"clientID":"c","consumerDataSet":[{}]}', HeartbeatData),
        (b'{"clientID":"c","consumerDataSet":{}}', HeartbeatData),
        (b'{"offsetTable":{"t@g":{"0":9223372036854775808}}}', ConsumerOffsetSerializeWrapper),
        (b'{"offsetTable":{"t@g":{2147483648:1}}}', ConsumerOffsetSerializeWrapper),
        (b'{"offsetTable":{"t@g":{x:1}}}', ConsumerOffsetSerializeWrapper),
        (b'{"clientId":"c","consumerGroup":"g","mqSet":[["t","a",1]]}', LockBatchRequestBody),
    ],
)
def test_what_does_not_fit_is_refused(data: bytes, type_: type) -> None:
    with pytest.raises(ProtocolError, match=type_.__name__):
        decode_body(data, type_)

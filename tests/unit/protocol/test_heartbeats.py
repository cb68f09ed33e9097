"""Heartbeats say what their senders mean, and no more than the limits allow."""

from __future__ import annotations

import json

import pytest

from cometmq.errors import ProtocolError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.subscription import MAX_TAGS, ConsumerData, ProducerData, SubscriptionData
from cometmq.model.topic import TopicConfig
from cometmq.protocol import limits, requests
from cometmq.protocol.bodies.cluster import HeartbeatData, TopicConfigList
from cometmq.protocol.fastjson.dialect import (
    decode_request,
    encode_body,
)


def large(groups: int = 600, topics: int = 4) -> HeartbeatData:
    return HeartbeatData(
        client_id="client",
        consumer_data_set=[
            ConsumerData(
                f"group-{group}",
                subscription_data_set=[
                    SubscriptionData(f"topic-{group}-{n}", tags_set=["a"], code_set=[97])
                    for n in range(topics)
                ],
            )
            for group in range(groups)
        ],
        producer_data_set=[ProducerData(f"producers-{n}") for n in range(50)],
        heartbeat_fingerprint=7,
    )


def served(data: bytes) -> HeartbeatData:
    return requests.HEART_BEAT.body.decode(data)


def test_a_long_heartbeat_in_the_dialect_is_refused() -> None:
    data = encode_body(large()).replace(b'"topic":', b"topic:")
    with pytest.raises(ProtocolError, match="is not strict JSON") as refused:
        served(data)
    assert refused.value.limit == "MAX_DIALECT_REQUEST_LENGTH"


def test_tags_of_all_subscriptions_are_counted() -> None:
    heartbeat = large(groups=20, topics=1)
    for group in heartbeat.consumer_data_set:
        group.subscription_data_set[0].tags_set = [str(number) for number in range(MAX_TAGS)]
    count = 20 * MAX_TAGS
    with pytest.raises(ProtocolError, match=f"{count} tags in a heartbeat.*;") as refused:
        served(encode_body(heartbeat))
    assert refused.value.limit == "MAX_TAGS_OF_HEARTBEAT"
    del heartbeat.consumer_data_set[limits.MAX_TAGS_OF_HEARTBEAT // MAX_TAGS :]
    assert served(encode_body(heartbeat)) == heartbeat


@pytest.mark.parametrize("cut", [0, 1, 40_000, -2])
def test_a_damaged_heartbeat_is_refused(cut: int) -> None:
    data = encode_body(large())
    with pytest.raises(ProtocolError):
        served(data[:cut] + b"\xff" + data[cut:][1:])


@pytest.mark.parametrize(
    ("name", "groups", "topics"),
    [
        ("MAX_GROUPS", limits.MAX_GROUPS + 1, 1),
        ("MAX_SUBSCRIPTIONS", 1, limits.MAX_SUBSCRIPTIONS + 1),
        ("MAX_SUBSCRIPTIONS", 600, 7),
    ],
)
def test_entries_of_a_heartbeat_are_counted(name: str, groups: int, topics: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        served(encode_body(large(groups, topics)))
    assert refused.value.limit == name


def test_tags_of_one_subscription_are_counted() -> None:
    heartbeat = large()
    tags = [str(number) for number in range(MAX_TAGS + 1)]
    heartbeat.consumer_data_set[5].subscription_data_set[0].tags_set = tags
    with pytest.raises(ProtocolError) as refused:
        served(encode_body(heartbeat))
    assert refused.value.limit == "MAX_TAGS"


@pytest.mark.parametrize("wrong", ['{"groupName": 7}', '{"subscriptionDataSet": []}', "7", "null"])
def test_an_entry_that_is_no_group_is_refused(wrong: str) -> None:
    with pytest.raises(ProtocolError):
        served(f'{{"clientID": "c", "consumerDataSet": [{wrong}]}}'.encode())


def test_codes_as_texts_are_numbers() -> None:
    """Go's clients send codes as texts."""
    heartbeat = large()
    tree = json.loads(encode_body(heartbeat))
    for group in tree["consumerDataSet"]:
        for subscription in group["subscriptionDataSet"]:
            subscription["codeSet"] = [str(code) for code in subscription["codeSet"]]
    assert served(json.dumps(tree).encode()) == heartbeat


ORDINALS = ("CONSUME_FROM_LAST_OFFSET", 0), ("CONSUME_PASSIVELY", 1), ("CLUSTERING", 1)


@pytest.mark.parametrize("dialect", [b"", b'"unitMode":null,'], ids=["strict", "with nulls"])
def test_a_heartbeat_of_the_cpp_client_with_ordinals_is_taken(dialect: bytes) -> None:
    beat = large(groups=300)
    data = encode_body(beat)
    for name, ordinal in ORDINALS:
        data = data.replace(b'"%b"' % name.encode(), b"%d" % ordinal)
    assert b"CONSUME" not in data
    data = data.replace(b'"groupName"', dialect + b'"groupName"', 1)
    assert served(data) == beat


@pytest.mark.parametrize(
    ("field", "ordinal", "name"),
    [
        ("consumeFromWhere", 4, "CONSUME_FROM_FIRST_OFFSET"),
        ("consumeFromWhere", 5, "CONSUME_FROM_TIMESTAMP"),
        ("consumeType", 0, "CONSUME_ACTIVELY"),
        ("consumeType", 2, "CONSUME_POP"),
        ("messageModel", 0, "BROADCASTING"),
    ],
)
def test_ordinals_are_those_of_javas_enums(field: str, ordinal: int, name: str) -> None:
    by_number = decode_request(
        b'{"groupName":"g","%b":%d}' % (field.encode(), ordinal), ConsumerData
    )
    by_name = decode_request(
        b'{"groupName":"g","%b":"%b"}' % (field.encode(), name.encode()), ConsumerData
    )
    assert by_number == by_name


def test_an_ordinal_out_of_range_is_refused_by_its_field() -> None:
    data = encode_body(large()).replace(b'"CLUSTERING"', b"9")
    with pytest.raises(
        ProtocolError, match=r"messageModel is 9; send one of BROADCASTING, .* 0 to 2"
    ):
        served(data)


def test_topics_and_groups_to_be_made_have_ordinals_too() -> None:
    topics = decode_request(
        b'{"topicConfigList":[{"topicName":"t","topicFilterType":1}]}', TopicConfigList
    )
    assert topics.topic_config_list[0].topic_filter_type == "MULTI_TAG"
    group = decode_request(
        b'{"groupName":"g","groupRetryPolicy":{"type":0}}', SubscriptionGroupConfig
    )
    assert group.group_retry_policy == {"type": "EXPONENTIAL"}
    with pytest.raises(ProtocolError, match="topicFilterType is 2; send one of SINGLE_TAG"):
        decode_request(b'{"topicFilterType":2}', TopicConfig)

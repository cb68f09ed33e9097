"""Large lists of topics and groups are decoded in steps, and say what they say in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cometmq.errors import ProtocolError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies import SubscriptionGroupList, TopicConfigList
from cometmq.protocol.config_lists import LARGE_BYTES
from cometmq.protocol.json_dialect import encode_body

TOPICS: Any = requests.UPDATE_AND_CREATE_TOPIC_LIST.body
GROUPS: Any = requests.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.body


def topics_in(data: bytes) -> list[TopicConfig]:
    steps = [each for each in TOPICS.name_steps(data) if each is not None]
    return [topic for step in steps for topic in step.topic_config_list]


@pytest.mark.parametrize("count", [0, 1, 10, 2_000])
def test_all_topics_come_in_their_order(count: int) -> None:
    topics = [TopicConfig(f"t{n}", {"+a": '{"\\,}]'}) for n in range(count)]
    assert topics_in(encode_body(TopicConfigList(topics))) == topics


def test_all_groups_come_in_their_order() -> None:
    groups = [SubscriptionGroupConfig(group_name=f"g{n}") for n in range(1_000)]
    data = encode_body(SubscriptionGroupList(groups))
    steps = [each for each in GROUPS.name_steps(data) if each is not None]
    assert [group for step in steps for group in step.group_config_list] == groups
    assert max(len(step.group_config_list) for step in steps) < 100


def test_spaces_behind_a_short_list_change_nothing() -> None:
    data = b'{"topicConfigList":[{"topicName":"t"}]}' + b" " * LARGE_BYTES
    assert topics_in(data) == [TopicConfig("t")]


def test_a_reference_means_what_it_means_in_the_whole() -> None:
    one = b'{"topicName":"t%d","attributes":{"+a":"b"}}'
    many = b",".join(one % n for n in range(1_000))
    data = b'{"topicConfigList":[%b,{"$ref":"$.topicConfigList[1]"}]}' % many
    assert topics_in(data)[-1] == TopicConfig("t1", {"+a": "b"})


def empty(count: int) -> bytes:
    return b",".join([b"{}"] * count)


ATTRIBUTES = b",".join(b'"+k%d":"v"' % number for number in range(20_000))


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b'{"topicConfigList":[%b]}' % empty(500_000), "MAX_CONFIGS"),
        (b'{"topicConfigList":[{"attributes":{%b}}]}' % ATTRIBUTES, "MAX_CONFIG_ENTRY_LENGTH"),
        (b'{"x":"%b","topicConfigList":[]}' % ATTRIBUTES.hex().encode(), "MAX_CONFIG_ENTRY_LENGTH"),
        (b'{"x":"$ref","topicConfigList":[%b]}' % empty(15_000), "MAX_CONFIGS"),
        (
            b'{"x":"$ref","topicConfigList":[%b]}' % empty(50_000),
            "MAX_REQUEST_REFERENCED_NODES",
        ),
        (
            b'{"x":"\\u0000","topicConfigList":[%b]}' % empty(100_000),
            "MAX_DIALECT_REQUEST_LENGTH",
        ),
    ],
)
def test_too_much_is_refused_by_a_limit(data: bytes, limit: str) -> None:
    with pytest.raises(ProtocolError, match=limit) as caught:
        topics_in(data.replace(b'"$ref"', b'"\\u0024ref"'))
    assert caught.value.limit == limit


def test_a_million_empty_groups_are_not_decoded() -> None:
    most = 0
    made = b'{"groupConfigList":[%b]}' % empty(1_300_000)

    def look() -> None:
        nonlocal most
        for step in GROUPS.name_steps(made):
            most += len(step.group_config_list) if step else 0

    with pytest.raises(ProtocolError, match="the limit MAX_CONFIGS is 10000"):
        look()
    assert most <= 10_000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda data: data.replace(b'{"topic', b'{"topicConfigList":[],"topic', 1),
        lambda data: b'{"x":%b}' % data,
        lambda data: data[:-2],
        lambda data: data.replace(b'"t7"', b"7"),
    ],
)
def test_what_is_no_list_is_refused_or_has_no_topic(wrong: Callable[[bytes], bytes]) -> None:
    data = encode_body(TopicConfigList([TopicConfig(f"t{n}") for n in range(1_000)]))
    try:
        in_steps = topics_in(wrong(data))
    except ProtocolError:
        return
    assert in_steps == TOPICS.decode(wrong(data)).topic_config_list

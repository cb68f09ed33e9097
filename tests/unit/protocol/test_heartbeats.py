"""Large heartbeats: decoded in steps they are what they are when they are decoded at once."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest

from cometmq.errors import ProtocolError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.subscription import MAX_TAGS, ConsumerData, ProducerData, SubscriptionData
from cometmq.model.topic import TopicConfig
from cometmq.protocol import limits, requests
from cometmq.protocol.bodies import HeartbeatData, TopicConfigList
from cometmq.protocol.header import NoHeader
from cometmq.protocol.heartbeats import Heartbeat, decode_heartbeat
from cometmq.protocol.json_cuts import CHUNK_BYTES
from cometmq.protocol.json_dialect import (
    MAX_DIALECT_REQUEST_LENGTH,
    decode_body,
    decode_request,
    encode_body,
)
from cometmq.protocol.request_type import ResourceKind


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


def served(data: bytes) -> tuple[int, HeartbeatData]:
    """Return in how many steps a heartbeat was decoded, and what it says."""
    steps: Generator[None, None, Heartbeat] = decode_heartbeat(data)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            decoded: Heartbeat = end.value
            return count, HeartbeatData(
                client_id=decoded.client_id,
                consumer_data_set=[group for group in decoded.consumers if group is not None],
                heartbeat_fingerprint=decoded.fingerprint,
                producer_data_set=list(decoded.producers),
                without_sub=decoded.without_subscriptions,
            )
        count += 1


def test_a_large_heartbeat_takes_a_step_for_each_group() -> None:
    heartbeat = large()
    steps, decoded = served(encode_body(heartbeat))
    assert decoded == heartbeat
    assert steps >= 600


def test_a_small_heartbeat_is_decoded_at_once() -> None:
    heartbeat = large(groups=3)
    assert served(encode_body(heartbeat)) == (0, heartbeat)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"group-599"', b'null,"messageModel":null'),  # within one group
        (b'"withoutSub":false', b'"withoutSub":null'),  # beside the groups
        (b'"tagsSet":["a"]', b'"tagsSet":null'),
        (b'"fingerprint', b'"unknown":{"a":[{}]},"fingerprint'),
    ],
)
def test_what_fastjson_writes_means_the_same_in_steps(before: bytes, after: bytes) -> None:
    data = encode_body(large()).replace(before, after, 1)
    try:
        whole = decode_body(data, HeartbeatData)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            served(data)
    else:
        assert served(data)[1] == whole


@pytest.mark.parametrize(
    "odd",
    [
        '"x": {"$ref": "$.clientID"}',
        r'"x": {"\u0024ref": "$.clientID"}',
        r'"x": {"$r\u0065f": "$.clientID"}',
        r'"x": "\u0000cut 0"',
    ],
)
def test_what_may_mean_another_thing_in_parts_is_decoded_whole_if_it_is_short(odd: str) -> None:
    text = encode_body(large(groups=300)).decode()
    short = f"{{{odd},{text[1:]}".encode()
    assert len(short) <= MAX_DIALECT_REQUEST_LENGTH
    assert served(short) == (0, decode_request(short, HeartbeatData))
    with pytest.raises(ProtocolError) as refused:
        served(short + b" " * MAX_DIALECT_REQUEST_LENGTH)
    assert refused.value.limit == "MAX_DIALECT_REQUEST_LENGTH"


@pytest.mark.parametrize("bare", [False, True], ids=["strict", "dialect"])
def test_a_group_with_many_subscriptions_is_decoded_in_parts(bare: bool) -> None:
    """8,192 subscriptions of one group were decoded in one piece, and so were all tags of a group."""
    heartbeat = large(groups=2, topics=600)
    heartbeat.consumer_data_set[1].subscription_data_set[7].tags_set = ["x, [{", '"}]\\']
    heartbeat.consumer_data_set[1].subscription_data_set[8].sub_string = "y" * 50_000
    heartbeat.consumer_data_set.append(ConsumerData("small"))
    data = encode_body(heartbeat)
    if bare:
        for name in (b"topic", b"consumerDataSet", b"subscriptionDataSet"):
            data = data.replace(b'"%b":' % name, b" %b :" % name)
        data = data.replace(b'"tagsSet":["a"]', b'"tagsSet":null')
        for group in heartbeat.consumer_data_set:
            for subscription in group.subscription_data_set:
                subscription.tags_set = [tag for tag in subscription.tags_set if tag != "a"]
    assert len(data) <= MAX_DIALECT_REQUEST_LENGTH
    steps, decoded = served(data)
    assert decoded == heartbeat
    assert steps > len(data) // CHUNK_BYTES * 2


def test_a_long_heartbeat_in_the_dialect_is_refused() -> None:
    data = encode_body(large()).replace(b'"topic":', b"topic:")
    with pytest.raises(ProtocolError, match="is not strict JSON") as refused:
        served(data)
    assert refused.value.limit == "MAX_DIALECT_REQUEST_LENGTH"


def test_too_many_tags_of_a_subscription_are_refused_before_they_are_decoded() -> None:
    """A million tags took 40 ms of the loop before somebody counted them."""
    heartbeat = large(groups=1)
    heartbeat.consumer_data_set[0].subscription_data_set[0].tags_set = [""] * 1_000_000
    with pytest.raises(ProtocolError, match="1000019 values in the lists") as refused:
        served(encode_body(heartbeat))
    assert refused.value.limit == "MAX_TAGS"


def test_tags_of_a_heartbeat_are_counted_as_they_are_decoded() -> None:
    """280,000 tags were all taken in before the bytes that they take were refused."""
    heartbeat = large(groups=70, topics=1)
    for group in heartbeat.consumer_data_set:
        group.subscription_data_set[0].tags_set = [str(number) for number in range(MAX_TAGS)]
    count = limits.MAX_TAGS_OF_HEARTBEAT + MAX_TAGS
    with pytest.raises(ProtocolError, match=f"{count} tags in a heartbeat.*;") as refused:
        served(encode_body(heartbeat))
    assert refused.value.limit == "MAX_TAGS_OF_HEARTBEAT"
    del heartbeat.consumer_data_set[32:]
    assert served(encode_body(heartbeat))[1] == heartbeat


@pytest.mark.parametrize("place", ["heartbeat", "group", "producer"])
def test_what_no_broker_reads_is_not_looked_through_by_megabytes(place: str) -> None:
    garbage = "0," * limits.MAX_HEARTBEAT_HEAD_LENGTH
    tree = json.loads(encode_body(large(groups=1, topics=600)))
    where = {
        "heartbeat": tree,
        "group": tree["consumerDataSet"][0],
        "producer": tree["producerDataSet"][0],
    }[place]
    where["x"] = 0
    data = json.dumps(tree).replace('"x": 0', f'"x": [{garbage}0]').encode()
    with pytest.raises(ProtocolError) as refused:
        served(data)
    assert refused.value.limit == "MAX_HEARTBEAT_HEAD_LENGTH"


def test_a_long_list_that_is_there_twice_is_refused() -> None:
    topics = ",".join(f'{{"topic":"topic-{number}"}}' for number in range(2_000))
    subscriptions = f'"subscriptionDataSet":[{topics}]'
    group = f'"consumerDataSet":[{{"groupName":"g",{subscriptions}}}]'
    twice_in_group = group.replace(subscriptions, f"{subscriptions},{subscriptions}")
    for groups in (f"{group},{group}", twice_in_group):
        with pytest.raises(ProtocolError, match="twice"):
            served(f'{{"clientID":"c",{groups}}}'.encode())


@pytest.mark.parametrize("cut", [0, 1, 40_000, -2])
def test_a_damaged_heartbeat_is_refused(cut: int) -> None:
    data = encode_body(large())
    with pytest.raises(ProtocolError):
        served(data[:cut] + b"\xff" + data[cut:][1:])


@pytest.mark.parametrize(
    ("name", "groups", "topics"),
    [
        ("MAX_GROUPS", limits.MAX_GROUPS + 1, 1),
        ("MAX_SUBSCRIPTIONS", 600, 28),
        ("MAX_SUBSCRIPTIONS_OF_GROUP", 1, limits.MAX_SUBSCRIPTIONS_OF_GROUP + 1),
    ],
)
def test_limits_hold_for_a_heartbeat_in_steps(name: str, groups: int, topics: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        served(encode_body(large(groups, topics)))
    assert refused.value.limit == name


def test_tags_are_bounded_in_a_heartbeat_in_steps() -> None:
    heartbeat = large()
    tags = [str(number) for number in range(MAX_TAGS + 1)]
    heartbeat.consumer_data_set[5].subscription_data_set[0].tags_set = tags
    with pytest.raises(ProtocolError) as refused:
        served(encode_body(heartbeat))
    assert refused.value.limit == "MAX_TAGS"


def names_of(value: object) -> list[tuple[ResourceKind, str]]:
    row = requests.HEART_BEAT
    return [(part.kind, name) for part in row.resources for name in part.names(NoHeader(), value)]


@pytest.mark.parametrize(
    "odd",
    [
        "",
        '"unknown": [1, {"groupName": "x"}], ',
        '"consumerDataSet": [{"groupName": "overridden"}], ',
        '"clientID": null, ',
        '"consumerDataSet": null, ',
        '"a": {"$ref": "$.consumerDataSet[0]"}, ',
    ],
)
def test_access_control_reads_the_names_that_the_handler_reads(odd: str) -> None:
    groups = [
        {
            "groupName": f"g\u4e2d-{number}",
            "subscriptionDataSet": [{"topic": f"t-{number}-{i}"} for i in range(7)],
        }
        for number in range(2_000)
    ]
    text = json.dumps({"clientID": "c", "consumerDataSet": groups})
    body = f"{{{odd}{text[1:]}".encode()
    assert len(body) > MAX_DIALECT_REQUEST_LENGTH
    pieces = requests.HEART_BEAT.body.name_steps(body)
    if "$ref" in odd:
        for read in (lambda: list(pieces), lambda: served(body)):
            with pytest.raises(ProtocolError, match="MAX_DIALECT_REQUEST_LENGTH"):
                read()
        return
    names = {name for piece in pieces if piece is not None for name in names_of(piece)}
    assert (
        names == set(names_of(served(body)[1])) == set(names_of(decode_body(body, HeartbeatData)))
    )
    assert len(names) == 16_000


@pytest.mark.parametrize("wrong", ['{"groupName": 7}', '{"subscriptionDataSet": []}', "7", "null"])
def test_what_the_handler_cannot_read_has_no_names_either(wrong: str) -> None:
    padding = "x" * MAX_DIALECT_REQUEST_LENGTH
    body = f'{{"clientID": "{padding}", "consumerDataSet": [{wrong}]}}'.encode()
    with pytest.raises(ProtocolError):
        requests.HEART_BEAT.body.decode_names(body)


def test_codes_as_texts_take_no_single_long_step() -> None:
    """Go's clients send codes as texts: their large heartbeats were decoded in one piece."""
    tree = json.loads(encode_body(large()))
    for group in tree["consumerDataSet"]:
        for subscription in group["subscriptionDataSet"]:
            subscription["codeSet"] = [str(code) for code in subscription["codeSet"]]
    tree["producerDataSet"] = None
    data = json.dumps(tree).encode()
    steps, decoded = served(data)
    assert decoded == decode_body(data, HeartbeatData)
    assert steps >= 600


ORDINALS = ("CONSUME_FROM_LAST_OFFSET", 0), ("CONSUME_PASSIVELY", 1), ("CLUSTERING", 1)


@pytest.mark.parametrize("groups", [1, 600], ids=["whole", "in steps"])
@pytest.mark.parametrize("dialect", [b"", b'"unitMode":null,'], ids=["strict", "with nulls"])
def test_a_heartbeat_of_the_cpp_client_with_ordinals_is_taken(groups: int, dialect: bytes) -> None:
    beat = large(groups)
    data = encode_body(beat)
    for name, ordinal in ORDINALS:
        data = data.replace(b'"%b"' % name.encode(), b"%d" % ordinal)
    assert b"CONSUME" not in data
    data = data.replace(b'"groupName"', dialect + b'"groupName"', 1)
    assert served(data)[1] == beat
    if groups == 1:
        assert decode_request(data, HeartbeatData) == beat


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


@pytest.mark.parametrize("groups", [1, 600], ids=["whole", "in steps"])
def test_an_ordinal_out_of_range_is_refused_by_its_field(groups: int) -> None:
    data = encode_body(large(groups)).replace(b'"CLUSTERING"', b"9")
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

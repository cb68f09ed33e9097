from __future__ import annotations

import contextlib
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import limits
from cometmq.protocol.bodies import registration as register_body
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import (
    Registered,
    RegisteredTopics,
    StaticTopicMapping,
    TopicQueues,
    body_crc,
    check_body_crc,
    decode_register_body,
    encode_register_body,
)
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.fastjson import dialect as json_dialect
from cometmq.protocol.fastjson.dialect import encode_body

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
attributes = st.dictionaries(st.text("+ abÄ", max_size=6), st.text("= abÄ", max_size=6), max_size=3)
counts = st.integers(0, 2**31 - 1)
configs = st.builds(
    TopicConfig,
    topic_name=names,
    attributes=attributes,
    perm=st.integers(0, 7),
    read_queue_nums=counts,
    write_queue_nums=counts,
)
wrappers = st.builds(
    TopicConfigSerializeWrapper,
    st.builds(DataVersion, counts, counts, counts),
    st.none(),
    st.lists(configs, max_size=5).map(lambda all_: {c.topic_name: c for c in all_}),
    st.none(),
    st.dictionaries(names, counts, max_size=3).map(
        lambda table: {name: {"topic": name, "epoch": epoch} for name, epoch in table.items()}
    ),
)
bodies = st.builds(RegisterBrokerBody, st.lists(names, max_size=3), wrappers)


def read(body: RegisterBrokerBody) -> Registered:
    """Return what a name server reads of a body."""
    wrapper = body.topic_config_serialize_wrapper
    topics = {
        name: TopicQueues(
            config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums
        )
        for name, config in wrapper.topic_config_table.items()
    }
    mappings = {
        name: msgspec.convert(mapping, StaticTopicMapping)
        for name, mapping in (wrapper.topic_queue_mapping_info_map or {}).items()
    }
    return Registered(
        body.filter_server_list, RegisteredTopics(wrapper.data_version, topics, mappings)
    )


@pytest.mark.parametrize("compressed", [False, True])
@given(body=bodies)
def test_a_registration_comes_back(body: RegisterBrokerBody, compressed: bool) -> None:
    data = encode_register_body(body, compressed=compressed)
    decoded = decode_register_body(data, compressed=compressed, version=MQVersion.V5_3_3)
    assert decoded == read(body)


BODY = RegisterBrokerBody(
    ["10.0.0.1:7"],
    TopicConfigSerializeWrapper(
        DataVersion(1, 2, 3),
        None,
        {"t": TopicConfig("t", {"+k": "a b"}, read_queue_nums=4, write_queue_nums=8)},
    ),
)


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


VERSION_JSON = b'{"counter":1,"stateVersion":2,"timestamp":3}'


def test_layout_of_the_compressed_form() -> None:
    assert zlib.decompress(encode_register_body(BODY, compressed=True)) == (
        sized(VERSION_JSON)
        + b"\0\0\0\1"
        + sized(b't 4 8 6 SINGLE_TAG {"+k":"a b"}')
        + sized(b'["10.0.0.1:7"]')
        + b"\0\0\0\0"
    )


def test_brokers_before_5_send_neither_attributes_nor_mappings() -> None:
    data = zlib.compress(
        sized(VERSION_JSON)
        + b"\0\0\0\2"
        + sized(b"t 4 8 6 SINGLE_TAG")
        + sized(b"u 1 1 6 MULTI_TAG ")  # 4.9.3 ends with a blank
        + sized(b"[]")
    )
    decoded = decode_register_body(data, compressed=True, version=MQVersion.V4_9_4)
    table = decoded.topic_config_serialize_wrapper.topic_config_table
    assert table["t"] == TopicQueues(read_queue_nums=4, write_queue_nums=8)
    assert table["u"] == TopicQueues(read_queue_nums=1, write_queue_nums=1)
    assert decoded.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}
    with pytest.raises(ProtocolError):
        decode_register_body(data, compressed=True, version=MQVersion.V5_0_0)


def test_brokers_before_3_0_11_send_the_wrapper_alone() -> None:
    data = encode_body(BODY.topic_config_serialize_wrapper)
    decoded = decode_register_body(data, compressed=False, version=MQVersion.V3_0_11 - 1)
    assert decoded == read(RegisterBrokerBody([], BODY.topic_config_serialize_wrapper))


def test_the_crc_covers_the_transmitted_bytes_and_zero_means_unchecked() -> None:
    data = encode_register_body(BODY, compressed=True)
    crc = body_crc(data)
    assert 0 < crc <= 0x7FFFFFFF
    check_body_crc(data, crc)
    check_body_crc(data, 0)
    with pytest.raises(ProtocolError, match="crc32 not match"):
        check_body_crc(data, crc - 1)


def test_a_topic_name_with_a_blank_has_no_compressed_form() -> None:
    table = {"a b": TopicConfig("a b")}
    body = RegisterBrokerBody([], TopicConfigSerializeWrapper(topic_config_table=table))
    with pytest.raises(ProtocolError, match="blank"):
        encode_register_body(body, compressed=True)


def refuse(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_register_body(zlib.compress(content), compressed=True, version=MQVersion.V5_3_3)


whole = zlib.decompress(encode_register_body(BODY, compressed=True))


@pytest.mark.parametrize("cut", range(len(whole)))
def test_content_that_breaks_off_is_refused(cut: int) -> None:
    refuse(whole[:cut])


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\1\0"])
def test_counts_beyond_the_content_are_refused_at_once(count: bytes) -> None:
    refuse(sized(VERSION_JSON) + count + b"\0" * 64)


@pytest.mark.parametrize(
    "topic",
    [
        b"",
        b"t",
        b"t 4 8 6",
        b"t x 8 6 SINGLE_TAG",
        b"t 2147483648 8 6 SINGLE_TAG",
        b"t " + b"9" * 5000 + b" 8 6 SINGLE_TAG",
        b"\xff 4 8 6 SINGLE_TAG",
        b'{"topicName":"t"}',
    ],
)
def test_a_topic_of_another_form_is_refused(topic: bytes) -> None:
    refuse(sized(VERSION_JSON) + b"\0\0\0\1" + sized(topic) + sized(b"[]") + b"\0\0\0\0")


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "MAX_INFLATED_LENGTH", 100_000)
    with pytest.raises(ProtocolError, match="more than 100000 bytes"):
        decode_register_body(
            zlib.compress(bytes(100_001)), compressed=True, version=MQVersion.V5_3_3
        )


@given(st.binary(max_size=60), st.booleans(), st.booleans())
def test_any_bytes_are_a_registration_or_a_protocol_error(
    data: bytes, compressed: bool, deflated: bool
) -> None:
    sent = zlib.compress(data) if deflated else data
    with contextlib.suppress(ProtocolError):
        decode_register_body(sent, compressed=compressed, version=MQVersion.V5_3_3)


MANY = b",".join(b'"k%d":"v"' % number for number in range(30_000))
TOO_MANY = [
    b'{"filterServerList":[%b"a"]}' % (b'"a",' * 30_000),
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"attributes":{%b}}}}}' % MANY,
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b"t":{}}}}' % (b'"t":{},' * 5_000),
    b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"t":{"m":{%b}}}}}' % MANY,
    sized(b"{}") + b"\0\0\0\0" + sized(b"[%b]" % b",".join([b'"a"'] * 30_000)) + b"\0\0\0\0",
    sized(b"{}")
    + b"\0\0\0\1"
    + sized(b"t 4 8 6 SINGLE_TAG {%b}" % MANY)
    + sized(b"[]")
    + b"\0\0\0\0",
    sized(b"{}")
    + b"\0\0\0\0"
    + sized(b"[]")
    + b"\0\0\0\1"
    + sized(b'{"topic":"t","m":{%b}}' % MANY),
]


@pytest.mark.parametrize("data", TOO_MANY)
def test_values_are_counted_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(limits, "MAX_REGISTERED_VALUES", 20_000)
    monkeypatch.setattr(limits, "MAX_REGISTERED_OBJECTS", 4_000)
    monkeypatch.setattr(json_dialect, "_decode", None)
    compressed = data.startswith(b"\0")
    sent = zlib.compress(data) if compressed else data
    with pytest.raises(ProtocolError, match=r"the limit MAX_REGISTERED_(VALUES|OBJECTS) is"):
        decode_register_body(sent, compressed=compressed, version=MQVersion.V5_3_3)


def test_one_field_of_the_compressed_form_holds_one_value() -> None:
    refuse(sized(VERSION_JSON) + b"\0\0\0\0" + sized(b"[]") + b"\0\0\0\1" + sized(b"{},{}"))


MAPPED = b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"t":{"currIdMap":{0:1}}}}}'


def test_a_registration_in_the_dialect_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = decode_register_body(
        MAPPED, compressed=False, version=MQVersion.V5_3_3
    ).topic_config_serialize_wrapper
    assert wrapper.topic_queue_mapping_info_map == {"t": StaticTopicMapping(curr_id_map={0: 1})}
    monkeypatch.setattr(register_body, "MAX_DIALECT_REGISTRATION_LENGTH", len(MAPPED) - 1)
    with pytest.raises(ProtocolError, match="the limit MAX_DIALECT_REGISTRATION_LENGTH is 85 by"):
        decode_register_body(MAPPED, compressed=False, version=MQVersion.V5_3_3)


@pytest.mark.parametrize(
    "mapping", [b'{"currIdMap":[1]}', b'{"currIdMap":{"a":1}}', b'{"bname":{}}', b"[]", b"7"]
)
def test_a_mapping_with_which_no_client_could_read_the_route_is_refused(mapping: bytes) -> None:
    refuse(sized(VERSION_JSON) + b"\0\0\0\0" + sized(b"[]") + b"\0\0\0\1" + sized(mapping))

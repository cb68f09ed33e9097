"""Bytes that the Java implementation wrote are decoded and encoded again.

Frames, records, batches, ids and properties must come out byte for byte. JSON bodies do not: Java
leaves integer keys without quotes, orders maps by hash and fields by name, while we write strict
JSON. The re-encoded JSON must mean the same to a strict JSON reader.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec
import pytest
from tests.batches import decode_batch
from tests.golden.golden import Golden, named, of_kind
from tests.json_text import pretty
from tests.unique_ids import parse_unique_id

from cometmq.errors import IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.java.hashing import java_hash
from cometmq.model.route import ClusterInfo, TopicRouteData
from cometmq.model.topic import DataVersion
from cometmq.protocol import headers
from cometmq.protocol.bodies import cluster as bodies
from cometmq.protocol.bodies.registration import (
    body_crc,
    decode_register_body,
    encode_register_body,
)
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.command import RequestDecoder, decode_command, encode_command, peek_code
from cometmq.protocol.fastjson.dialect import (
    decode_body,
    encode_body,
    encode_strict_sorted,
)
from cometmq.protocol.frame import FrameDecoder, SerializeType
from cometmq.protocol.header import Header, header_to_ext
from cometmq.protocol.messages.batch import encode_batch
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.ids import (
    encode_offset_id,
    pack_host,
    parse_offset_id,
)
from cometmq.protocol.messages.properties import decode_properties, encode_properties, find_property
from cometmq.protocol.messages.record import (
    StoredRecord,
    decode_record,
    decode_records,
    encode_record,
)


def golden(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("one", of_kind(kind), ids=str)


# Frames

# Java has one class each for the four answers that hold an offset.
OFFSET_ANSWERS = {
    f"{name}ResponseHeader"
    for name in ("QueryConsumerOffset", "GetMaxOffset", "GetMinOffset", "SearchOffset")
}


def header_type(name: str) -> type[Header]:
    found: type[Header] = getattr(
        headers, "OffsetResponseHeader" if name in OFFSET_ANSWERS else name
    )
    assert issubclass(found, Header)
    return found


@golden("frame")
def test_a_frame_is_read_as_it_was_meant_and_written_byte_for_byte(one: Golden) -> None:
    (frame,) = FrameDecoder().feed(one.data)
    command = decode_command(frame)
    assert SerializeType(frame.serialize_type).name == one.input["serializeType"]
    assert peek_code(frame) == command.code == one.input["code"]
    for name in ("language", "version", "opaque", "flag", "remark"):
        assert getattr(command, name) == one.input[name], name
    assert command.ext == one.input["extFields"]
    assert command.body == bytes.fromhex(one.input.get("body") or "")
    assert encode_command(command, SerializeType(frame.serialize_type)) == one.data


FRAMES_WITH_HEADER = [one for one in of_kind("frame") if one.input.get("header") is not None]


@pytest.mark.parametrize("one", FRAMES_WITH_HEADER, ids=str)
def test_a_header_s_fields_are_those_that_java_set(one: Golden) -> None:
    type_ = header_type(one.input["header"])
    (frame,) = FrameDecoder().feed(one.data)
    decoder = RequestDecoder()
    decoder.register(one.input["code"], type_)
    request = decoder.decode(frame, one.input["code"])
    known = {field.encode_name for field in msgspec.structs.fields(type_)}
    header = {k: v for k, v in msgspec.to_builtins(request.header).items() if v is not None}
    set_by_java = {k: v for k, v in one.input["fields"].items() if v is not None and k in known}
    assert {k: v for k, v in header.items() if k in set_by_java} == set_by_java
    # What Java did not set has the value that Java would give it.
    assert {k: v for k, v in header.items() if k not in set_by_java} == {
        field.encode_name: field.default
        for field in msgspec.structs.fields(type_)
        if field.encode_name not in set_by_java and field.default not in (None, msgspec.NODEFAULT)
    }
    ext = header_to_ext(request.header)
    assert {k: v for k, v in ext.items() if k in set_by_java} == {
        k: v for k, v in one.input["extFields"].items() if k in set_by_java
    }


# Bodies

TYPES: dict[str, Any] = {
    "TopicRouteData": TopicRouteData,
    "ClusterInfo": ClusterInfo,
    "DataVersion": DataVersion,
    # Needed by no request of ours yet: read as it stands, beans as keys included.
    "ResetOffsetBody": dict[str, dict[str, int]],
}


def body_type(shape: str) -> Any:
    return TYPES.get(shape) or getattr(bodies, shape)


@golden("body")
def test_a_body_is_read_and_says_the_same_again(one: Golden) -> None:
    type_ = body_type(one.input["shape"])
    body = decode_body(one.data, type_)
    again = encode_body(body)
    assert decode_body(again, type_) == body
    assert_says(json.loads(again), decode_body(one.data, object))


def assert_says(ours: Any, java: Any) -> None:
    """Check that ours has everything Java's has with the same value; maps may have any order."""
    if isinstance(java, dict):
        for key, value in java.items():
            assert key in ours
            assert_says(ours[key], value)
    elif isinstance(java, list):
        assert len(ours) == len(java)
        for our_item, java_item in zip(ours, java, strict=True):
            assert_says(our_item, java_item)
    else:
        assert ours == java


@pytest.mark.parametrize("artifact", ["4.9.8", "5.3.3"])
@pytest.mark.parametrize("name", ["body-route", "body-route-ordered"])
def test_a_route_for_who_wants_standard_json_is_java_s(name: str, artifact: str) -> None:
    route = decode_body(named(name, artifact).data, TopicRouteData)
    strict = named(f"{name}-strict", artifact)
    ours = json.loads(encode_strict_sorted(route))
    if artifact == "4.9.8":
        # It knows neither acting masters nor zones; later clients skip the field.
        for broker in ours["brokerDatas"]:
            assert broker.pop("enableActingMaster") is False
        assert ours == json.loads(strict.data)
    else:
        # Java's hex digits in escapes are upper case.
        assert encode_strict_sorted(route).lower() == strict.data.lower()


def test_beans_as_keys_are_read() -> None:
    table = decode_body(named("body-reset-offset").data, dict[str, dict[str, int]])["offsetTable"]
    assert {
        decode_body(key.encode(), bodies.MessageQueueBean).queue(): offset
        for key, offset in table.items()
    } == {("TopicA", "broker-a", 0): 12, ("TopicA", "broker-a", 1): 5_000_000_000}


VERSIONS = {"4.9.8": MQVersion.V5_0_0 - 1, "5.3.3": MQVersion.V5_3_3}


@golden("register-body")
def test_a_registration_is_read_and_says_the_same_again(one: Golden) -> None:
    compressed, version = one.input["compressed"], VERSIONS[one.artifact]
    body = decode_register_body(one.data, compressed=compressed, version=version)
    assert body_crc(one.data) == one.input["crc32"]
    assert body.filter_server_list == one.input["value"]["filterServerList"]
    wrapper = one.input["value"]["topicConfigSerializeWrapper"]
    assert_says(
        msgspec.to_builtins(body.topic_config_serialize_wrapper.data_version),
        wrapper["dataVersion"],
    )
    table = msgspec.to_builtins(body.topic_config_serialize_wrapper.topic_config_table)
    kept = {"perm", "readQueueNums", "writeQueueNums"} | (
        {"topicSysFlag"} if not compressed else set()
    )
    for name, java in wrapper["topicConfigTable"].items():
        assert_says(table[name], {k: v for k, v in java.items() if k in kept})
    assert table.keys() == wrapper["topicConfigTable"].keys()
    sent = encode_register_body(registered(one), compressed=compressed)
    assert decode_register_body(sent, compressed=compressed, version=MQVersion.V5_3_3) == body


def registered(one: Golden) -> bodies.RegisterBrokerBody:
    """Return what Java's broker registered."""
    return msgspec.convert(one.input["value"], bodies.RegisterBrokerBody, strict=False)


def test_the_inflated_registration_is_java_s_but_for_the_order_of_topics() -> None:
    """The compressed bytes may differ between releases of zlib, but the content may not."""
    one = named("register-broker-compressed")
    read = decode_register_body(one.data, compressed=True, version=MQVersion.V5_3_3)
    body = registered(one)
    wrapper = body.topic_config_serialize_wrapper
    wrapper.topic_config_table = {
        name: wrapper.topic_config_table[name]
        for name in read.topic_config_serialize_wrapper.topic_config_table
    }
    again = zlib.decompress(encode_register_body(body, compressed=True))
    assert again == zlib.decompress(one.data)


CONFIG_TYPES = {
    "topics.json": bodies.TopicConfigSerializeWrapper,
    "subscriptionGroup.json": bodies.SubscriptionGroupWrapper,
    "consumerOffset.json": bodies.ConsumerOffsetSerializeWrapper,
    "delayOffset.json": bodies.DelayOffsetSerializeWrapper,
}


@golden("config")
def test_a_broker_s_file_is_read_and_laid_out_alike(one: Golden) -> None:
    type_: Any = CONFIG_TYPES[one.name.removeprefix("config-")]
    body = decode_body(one.data, type_)
    text = pretty(body)
    assert decode_body(text.encode(), type_) == body
    java = one.data.decode()
    # Integer keys stand on one line there, and maps in the order of their hashes.
    if type_ in (bodies.TopicConfigSerializeWrapper, bodies.SubscriptionGroupWrapper):
        ours, theirs = ({line.rstrip(",") for line in t.splitlines()} for t in (text, java))
        assert ours == theirs
    assert text[-1] == java[-1] == "}"


# Records


def check_record(record: StoredRecord, java: dict[str, Any]) -> None:
    assert record.topic == java["topic"]
    assert record.queue_id == java["queueId"]
    assert record.flag == java["flag"]
    assert record.queue_offset == java["queueOffset"]
    assert record.physical_offset == java["commitLogOffset"]
    assert record.sys_flag == java["sysFlag"]
    assert record.born_timestamp == java["bornTimestamp"]
    assert record.store_timestamp == java["storeTimestamp"]
    assert record.born_host == pack_host(java["bornHost"]["ip"], java["bornHost"]["port"])
    assert record.store_host == pack_host(java["storeHost"]["ip"], java["storeHost"]["port"])
    assert record.body_crc == java["bodyCrc"]
    assert record.reconsume_times == java["reconsumeTimes"]
    assert record.prepared_transaction_offset == java["preparedTransactionOffset"]
    assert record.body == bytes.fromhex(java["storedBody"])
    body = decompress(record.body, record.sys_flag, max_length=1 << 22)
    assert body == bytes.fromhex(java["body"])
    if java["propertiesString"] is not None:
        assert record.properties == java["propertiesString"]
    message = record.to_message()
    assert message.properties == (java["properties"] or {})
    assert message.offset_msg_id == java["msgId"]


def encode_again(record: StoredRecord) -> bytes:
    return encode_record(
        topic=record.topic.encode(),
        body=record.body,
        properties=record.properties.encode(),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        flag=record.flag,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


@golden("record")
def test_a_record_is_read_as_it_was_stored_and_written_byte_for_byte(one: Golden) -> None:
    record = decode_record(one.data, check_crc=True)
    check_record(record, one.input)
    assert int.from_bytes(one.data[4:8], "big", signed=True) == one.input["magic"]
    assert encode_again(record) == one.data


@golden("records")
def test_records_of_one_answer(one: Golden) -> None:
    records = list(decode_records(one.data))
    for record, java in zip(records, one.input["records"], strict=True):
        check_record(record, java)
    assert b"".join(map(encode_again, records)) == one.data


@golden("batch")
def test_a_batch_is_read_and_written_byte_for_byte(one: Golden) -> None:
    entries = decode_batch(one.data)
    for entry, java in zip(entries, one.input["messages"], strict=True):
        assert entry.flag == java["flag"]
        assert entry.body == bytes.fromhex(java["body"])
        assert decode_properties(entry.properties.decode()) == java["properties"]
    assert encode_batch(entries) == one.data


# Texts


@golden("properties")
def test_properties_are_written_as_java_writes_them(one: Golden) -> None:
    text = one.data.decode()
    properties = dict(one.input["properties"])
    assert decode_properties(text) == {k: v for k, v in properties.items() if v}
    # 4.9.1 to 5.1.4 leave the last separator out.
    assert encode_properties(properties).removesuffix("\x02") == text.removesuffix("\x02")
    assert text.endswith("\x02") == (one.artifact == "5.3.3" and bool(properties))


@golden("properties-parse")
def test_odd_properties_are_read_as_java_reads_them(one: Golden) -> None:
    text = one.data.decode()
    assert decode_properties(text) == one.input["properties"]
    for name, value in one.input["properties"].items():
        assert find_property(text, name) == value


@golden("unique-id")
def test_a_unique_id_is_read(one: Golden) -> None:
    parts = parse_unique_id(one.input["id"])
    assert pack_host(parts.address, 0)[:-4].hex() == one.input["ipBytes"]
    assert parts.process_id == one.input["pid"] & 0xFFFF


@golden("offset-id")
def test_an_offset_id_is_read_and_made(one: Golden) -> None:
    ip, port, offset = one.input["ip"], one.input["port"], one.input["offset"]
    assert encode_offset_id(pack_host(ip, port), offset) == one.input["id"]
    parsed = parse_offset_id(one.input["id"])
    assert pack_host(parsed.host, parsed.port) == pack_host(ip, port)
    assert parsed.commit_log_offset == offset


@golden("tag-code")
def test_tag_codes_are_java_s(one: Golden) -> None:
    assert java_hash(one.input["tag"]) == one.input["code"]


@golden("expression")
def test_a_subscription_is_built_as_java_builds_it(one: Golden) -> None:
    if "error" in one.input:
        with pytest.raises(IllegalArgumentError):
            build_subscription(one.input["topic"], one.input["expression"])
        return
    ours = msgspec.to_builtins(build_subscription(one.input["topic"], one.input["expression"]))
    java = one.input["subscription"]
    # Java's tags and codes are sets.
    sets = {"tagsSet", "codeSet"}
    assert {name: sorted(ours[name]) for name in sets} == {n: sorted(java[n]) for n in sets}
    assert {**ours, **dict.fromkeys(sets)} == {**java, **dict.fromkeys(sets)}

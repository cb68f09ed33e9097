from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    StoredRecord,
    decode_record,
    decode_records,
    encode_record,
    record_size,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(pack_host, st.ip_addresses().map(str), st.integers(0, 65535))
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
texts = st.text(st.characters(codec="utf-8"), max_size=30)
# Around the length at which the record's version changes.
topics = texts | st.integers(120, 135).map("t".__mul__)

record_fields = st.fixed_dictionaries(
    {
        "topic": topics,
        "body": st.binary(max_size=60),
        "properties": texts,
        "queue_id": int32,
        "queue_offset": int64,
        "physical_offset": int64,
        "sys_flag": st.integers(0, 2**31 - 1),
        "born_timestamp": int64,
        "born_host": hosts,
        "store_timestamp": int64,
        "store_host": hosts,
        "flag": int32,
        "reconsume_times": int32,
        "prepared_transaction_offset": int64,
    }
)

PLAIN: dict[str, Any] = {
    "topic": "orders",
    "body": b"body",
    "properties": "TAGS\x01A\x02UNIQ_KEY\x01ID7\x02",
    "queue_id": 3,
    "queue_offset": 17,
    "physical_offset": 4096,
    "sys_flag": 0,
    "born_timestamp": 1_700_000_000_000,
    "born_host": pack_host("10.0.0.9", 50000),
    "store_timestamp": 1_700_000_000_001,
    "store_host": pack_host("10.0.0.1", 10911),
    "flag": 5,
    "reconsume_times": 2,
    "prepared_transaction_offset": 0,
}


def encode(fields: dict[str, Any]) -> bytes:
    texts = {name: fields[name].encode() for name in ("topic", "properties")}
    return encode_record(**{**fields, **texts})


def as_dict(record: StoredRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in PLAIN}


@given(record_fields)
def test_a_record_comes_back(fields: dict[str, Any]) -> None:
    data = encode(fields)
    record = decode_record(data, check_crc=True)
    host_bits = record.sys_flag & HOST_BITS
    assert as_dict(record) == {**fields, "sys_flag": fields["sys_flag"] & ~HOST_BITS | host_bits}
    assert bool(host_bits & BORN_HOST_V6) == (len(fields["born_host"]) == 20)
    assert bool(host_bits & STORE_HOST_V6) == (len(fields["store_host"]) == 20)
    topic, properties = fields["topic"].encode(), fields["properties"].encode()
    assert record.total_size == len(data)
    assert len(data) == record_size(
        len(fields["body"]), len(topic), len(properties), fields["born_host"], fields["store_host"]
    )
    assert record.version == (2 if len(topic) > 127 else 1)
    assert record.body_crc == zlib.crc32(fields["body"]) & 0x7FFFFFFF


@given(st.lists(record_fields, max_size=4))
def test_records_stand_one_after_the_other(several: list[dict[str, Any]]) -> None:
    data = b"".join(map(encode, several))
    for buffer in (data, memoryview(data)):
        assert [r.queue_offset for r in decode_records(buffer)] == [
            fields["queue_offset"] for fields in several
        ]


def test_the_smallest_record_has_91_bytes() -> None:
    assert len(encode({**PLAIN, "topic": "", "body": b"", "properties": ""})) == MIN_RECORD_SIZE


@pytest.mark.parametrize(("length", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2)])
def test_the_topic_s_length_decides_the_magic(length: int, magic: int) -> None:
    data = encode({**PLAIN, "topic": "t" * length})
    assert int.from_bytes(data[4:8], "big") == magic
    assert decode_record(data).topic == "t" * length


def test_a_v2_record_may_have_a_short_topic() -> None:
    v1 = encode({**PLAIN, "topic": "ab", "properties": ""})
    topic_at = len(v1) - 2 - 3
    v2 = (
        (len(v1) + 1).to_bytes(4, "big")
        + MAGIC_V2.to_bytes(4, "big")
        + v1[8:topic_at]
        + b"\0"
        + v1[topic_at:]
    )
    record = decode_record(v2)
    assert (record.version, record.topic, record.body) == (2, "ab", b"body")


def test_a_record_lies_anywhere_in_a_buffer() -> None:
    data = encode(PLAIN)
    assert as_dict(decode_record(b"xyz" + data + b"tail", 3)) == PLAIN


def test_as_a_message() -> None:
    message = decode_record(encode(PLAIN)).to_message("broker-a")
    assert message.properties == {"TAGS": "A", "UNIQ_KEY": "ID7"}
    assert message.msg_id == "ID7"
    assert message.offset_msg_id == "0A00000100002A9F0000000000001000"
    assert (message.born_host, message.store_host) == ("10.0.0.9:50000", "10.0.0.1:10911")
    assert (message.broker_name, message.queue_id, message.queue_offset) == ("broker-a", 3, 17)
    assert (message.flag, message.reconsume_times, message.store_size) == (5, 2, len(encode(PLAIN)))


def test_a_message_without_unique_id_goes_by_its_offset_id() -> None:
    message = decode_record(encode({**PLAIN, "properties": ""})).to_message()
    assert message.msg_id == message.offset_msg_id


data = encode(PLAIN)
BODY_LENGTH_AT, TOPIC_LENGTH_AT, PROPERTIES_LENGTH_AT = 84, 92, 99


def patched(at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize("cut", range(len(data)))
def test_a_record_that_breaks_off_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        decode_record(data[:cut])


@pytest.mark.parametrize(
    "damaged",
    [
        patched(0, b"\0\0\0\0"),
        patched(0, b"\xff\xff\xff\xff"),
        patched(0, (len(data) - 1).to_bytes(4, "big")),
        patched(4, b"\0\0\0\0"),
        patched(4, b"\xcb\xd4\x31\x94"),  # the magic of a blank
        patched(36, b"\0\0\0\x10"),  # claims an IPv6 host
        patched(BODY_LENGTH_AT, b"\xff\xff\xff\xff"),
        patched(BODY_LENGTH_AT, b"\x7f\xff\xff\xff"),
        patched(BODY_LENGTH_AT, b"\0\0\0\3"),
        patched(TOPIC_LENGTH_AT, b"\xff"),
        patched(TOPIC_LENGTH_AT, b"\5"),
        patched(PROPERTIES_LENGTH_AT, b"\xff\xff"),
        patched(PROPERTIES_LENGTH_AT, b"\0\0"),
        patched(TOPIC_LENGTH_AT + 1, b"\xff"),  # not UTF-8
        patched(PROPERTIES_LENGTH_AT + 2, b"\xc3\x28"),
    ],
)
def test_a_damaged_record_is_refused(damaged: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(damaged)


def test_a_damaged_body_is_noticed_where_the_crc_is_asked_for() -> None:
    damaged = patched(BODY_LENGTH_AT + 4, b"B")
    assert decode_record(damaged).body == b"Body"
    with pytest.raises(ProtocolError, match="CRC"):
        decode_record(damaged, check_crc=True)


@pytest.mark.parametrize(
    ("field", "length"), [("topic", 32768), ("properties", 32768), ("properties", 65536)]
)
def test_texts_too_long_for_their_length_fields_are_refused(field: str, length: int) -> None:
    with pytest.raises(ProtocolError, match="the limit is 32767"):
        encode({**PLAIN, field: "x" * length})


@given(st.binary(max_size=120), st.integers(0, 120))
def test_any_bytes_are_a_record_or_a_protocol_error(garbage: bytes, at: int) -> None:
    for buffer in (garbage, data[:at] + garbage, data[:at] + garbage + data[at:]):
        try:
            decode_record(buffer)
        except ProtocolError:
            continue

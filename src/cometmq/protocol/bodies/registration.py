"""Encode and decode the body of a broker's registration, code 103 (Java: RegisterBrokerBody).

The plain form is the JSON of `bodies.RegisterBrokerBody`; from brokers before 3.0.11, the JSON of
the topic wrapper alone. The compressed form is a zlib stream of the following, integers big-endian:

    size    field
    4+n     length, data version as JSON
    4       number of topics
            per topic, 4+n: length, text
            `name readQueues writeQueues perm filterType attributes`, the last as JSON, from 5.0 on
    4+n     length, filter servers as JSON list
    4       from 5.0 on: number of static-topic mappings
            per mapping, 4+n: length, JSON

The compressed form does not carry a topic's order flag, sys flag and 4.x attributes; they take their
defaults, as they do in Java.

A broker writes all that it knows of its topics. A name server reads only what routes need of it, because
50,000 topics come in one piece: the decoder skips the rest. Their names are the keys of their table.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from cometmq.errors import ProtocolError
from cometmq.model.java.ranges import Int32, Int64
from cometmq.model.sysflag import PERM_RW
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies.cluster import Body, RegisterBrokerBody
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.limits import check_names, check_registered, check_registered_values
from cometmq.protocol.messages.compression import inflate

T = TypeVar("T")

CRC_MASK: Final = 0x7FFFFFFF
_COMPRESSION_LEVEL: Final = 9
# Several times the length of MAX_REGISTERED_TOPICS topics.
MAX_INFLATED_LENGTH: Final = 16 * 1024 * 1024
# Java's brokers write registrations in fastjson's dialect if they have static topics.
MAX_DIALECT_REGISTRATION_LENGTH: Final = 4 * 1024 * 1024


class TopicQueues(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Holds the numbers of one topic that a route of one broker name carries. Equal ones may be one object."""

    perm: Int32 = PERM_RW
    read_queue_nums: Int32 = 16
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16


class StaticTopicMapping(Body, omit_defaults=True):
    """Which queues of a static topic are at a broker (Java: TopicQueueMappingInfo)."""

    bname: str | None = None
    curr_id_map: dict[Int32, Int32] = msgspec.field(default_factory=dict)
    dirty: bool = False
    epoch: Int64 = 0
    scope: str | None = None
    topic: str | None = None
    total_queues: Int32 = 0


class RegisteredTopics(Body):
    """Holds the fields of a `TopicConfigSerializeWrapper` that a name server uses."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicQueues] = msgspec.field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, StaticTopicMapping] = msgspec.field(
        default_factory=dict
    )


class Registered(Body):
    """Holds the fields of a `RegisterBrokerBody` that a name server uses."""

    filter_server_list: list[str] = msgspec.field(default_factory=list)
    topic_config_serialize_wrapper: RegisteredTopics = msgspec.field(
        default_factory=RegisteredTopics
    )


def body_crc(data: bytes) -> int:
    """Return the CRC that the header field `bodyCrc32` holds for the transmitted bytes."""
    return zlib.crc32(data) & CRC_MASK


def check_body_crc(data: bytes, expected: int) -> None:
    """Raise ProtocolError unless the bytes have that CRC; 0 means no check."""
    if expected not in (0, body_crc(data)):
        raise ProtocolError("crc32 not match")


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool = False) -> bytes:
    """Return the bytes to transmit, in the form of 5.x. Raise ProtocolError for a blank in a topic
    name.
    """
    if not compressed:
        return encode_body(body)
    wrapper = body.topic_config_serialize_wrapper
    mappings = wrapper.topic_queue_mapping_info_map or {}
    topics = [_encode_topic(config) for config in wrapper.topic_config_table.values()]
    parts = [
        _sized(encode_body(wrapper.data_version)),
        _int32(len(topics)),
        *map(_sized, topics),
        _sized(encode_body(body.filter_server_list)),
        _int32(len(mappings)),
        *[_sized(encode_body(mapping)) for mapping in mappings.values()],
    ]
    return zlib.compress(b"".join(parts), _COMPRESSION_LEVEL)


def decode_register_body(data: bytes, *, compressed: bool, version: int) -> Registered:
    """Decode the registration of a broker whose requests carry `version` (an MQVersion ordinal).

    Raise ProtocolError for bytes of another form, for more than a registration may have, for a name that
    is too long, and when the stream inflates to more than MAX_INFLATED_LENGTH bytes.
    """
    if compressed and version >= MQVersion.V3_0_11:
        body = _decode_compressed(data, version)
    else:
        check_registered_values(data)
        if version < MQVersion.V3_0_11:
            body = Registered([], _decode(data, RegisteredTopics))
        else:
            body = _decode(data, Registered)
    wrapper = body.topic_config_serialize_wrapper
    topics, mappings = wrapper.topic_config_table, wrapper.topic_queue_mapping_info_map
    check_registered(len(topics), len(mappings), len(body.filter_server_list))
    check_names("the topic name", topics)
    check_names("the topic name", mappings)
    check_names("the filter server", body.filter_server_list)
    return body


def _decode(data: bytes, type_: type[T]) -> T:
    return decode_body(
        data,
        type_,
        max_dialect_length=MAX_DIALECT_REGISTRATION_LENGTH,
        limit="MAX_DIALECT_REGISTRATION_LENGTH",
    )


def _decode_compressed(data: bytes, version: int) -> Registered:
    content = inflate(data, max_length=MAX_INFLATED_LENGTH, limit="MAX_INFLATED_LENGTH")
    check_registered_values(content)
    reader = _Reader(content)
    data_version = _decode(reader.sized(), DataVersion)
    count = reader.count()
    check_registered(count, 0, 0)
    topics = _topics(reader.many_sized(count))
    filter_servers = _decode(reader.sized(), list[str])
    mappings: dict[str, StaticTopicMapping] = {}
    if version >= MQVersion.V5_0_0:
        count = reader.count()
        check_registered(0, count, 0)
        mappings = _mappings(list(reader.many_sized(count)))
    return Registered(filter_servers, RegisteredTopics(data_version, topics, mappings))


def _mappings(parts: list[bytes]) -> dict[str, StaticTopicMapping]:
    """Decode many short mappings together: each by itself would take ten times as long."""
    mappings = _decode(b"[%b]" % b",".join(parts), list[StaticTopicMapping])
    if len(mappings) != len(parts):
        raise ProtocolError(
            f"a registration has {len(mappings)} JSON values in {len(parts)} fields"
        )
    return {mapping.topic or "": mapping for mapping in mappings}


def _topics(lines: Iterator[bytes]) -> dict[str, TopicQueues]:
    topics: dict[str, TopicQueues] = {}
    # Most topics differ in their names only.
    alike: dict[bytes, TopicQueues] = {}
    line = b""
    try:
        for line in lines:
            name, _, said = line.partition(b" ")
            queues = alike.get(said)
            if queues is None:
                queues = alike[said] = _queues(said)
            topics[name.decode()] = queues
    except (ValueError, msgspec.ValidationError) as error:
        raise ProtocolError(f"a registered topic {line[:80]!r} does not decode: {error}") from error
    return topics


def _queues(said: bytes) -> TopicQueues:
    """Decode what stands behind a topic's name. Its attributes are left alone, which may have blanks."""
    read_queues, write_queues, perm, _filter_type, *_ = said.split(b" ", 4)
    fields = {"readQueueNums": read_queues, "writeQueueNums": write_queues, "perm": perm}
    texts = {name: value.decode() for name, value in fields.items()}
    return msgspec.convert(texts, TopicQueues, strict=False)


def _encode_topic(config: TopicConfig) -> bytes:
    if " " in config.topic_name:
        raise ProtocolError(f"the topic name {config.topic_name!r} holds a blank")
    fields = (
        config.topic_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_filter_type,
        encode_body(config.attributes).decode(),
    )
    return " ".join(map(str, fields)).encode()


def _int32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _sized(data: bytes) -> bytes:
    return _int32(len(data)) + data


class _Reader:
    """Reads sized fields from the inflated bytes, and checks each length before using it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self) -> int:
        """Read a number of entries; each takes at least four bytes."""
        number = int.from_bytes(self._take(4), "big")
        left = len(self._data) - self._position
        if number > left // 4:
            raise ProtocolError(f"a registration declares {number} entries, {left} bytes are left")
        return number

    def sized(self) -> bytes:
        return self._take(int.from_bytes(self._take(4), "big"))

    def many_sized(self, count: int) -> Iterator[bytes]:
        """Yield so many fields: like `sized`, in half the time."""
        data, length = self._data, len(self._data)
        for _ in range(count):
            start = self._position + 4
            end = start + int.from_bytes(data[self._position : start], "big")
            if end > length:
                self.sized()  # raises the error
            self._position = end
            yield data[start:end]

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ProtocolError(
                f"a registration declares a field of {length} bytes at {self._position} "
                f"of {len(self._data)}"
            )
        data = self._data[self._position : end]
        self._position = end
        return data

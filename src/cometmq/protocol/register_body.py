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
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import msgspec

from cometmq.errors import ProtocolError
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies import Body, RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.compression import inflate
from cometmq.protocol.json_dialect import decode_body, encode_body
from cometmq.protocol.limits import MAX_REGISTERED_TOPICS, check_registered

CRC_MASK: Final = 0x7FFFFFFF
_COMPRESSION_LEVEL: Final = 9
# Two or three times the length of MAX_REGISTERED_TOPICS topics.
MAX_INFLATED_LENGTH: Final = 32 * 1024 * 1024


def body_crc(data: bytes) -> int:
    """Return the CRC that the header field `bodyCrc32` holds for the transmitted bytes."""
    return zlib.crc32(data) & CRC_MASK


def check_body_crc(data: bytes, expected: int) -> None:
    """Raise ProtocolError unless the bytes have that CRC; 0 means no check."""
    if expected != 0 and body_crc(data) != expected:
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


def decode_register_body(data: bytes, *, compressed: bool, version: int) -> RegisterBrokerBody:
    """Decode the registration of a broker whose requests carry `version` (an MQVersion ordinal).

    Raise ProtocolError for bytes of another form, and when the stream inflates to more than
    MAX_INFLATED_LENGTH bytes.
    """
    if version < MQVersion.V3_0_11:
        return RegisterBrokerBody([], decode_body(data, TopicConfigSerializeWrapper))
    if not compressed:
        return decode_body(data, RegisterBrokerBody)
    return _finish(_inflated_steps(data, version))


def _finish(steps: Generator[None, None, RegisterBrokerBody]) -> RegisterBrokerBody:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            body: RegisterBrokerBody = end.value
            return body


# So many topics are decoded in a step, together: to decode each by itself takes twice as long.
_TOPICS_AT_ONCE: Final = 64


class _WrapperOutline(Body):
    """A `TopicConfigSerializeWrapper` whose topics are not decoded yet."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_config_table: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, dict[str, Any]] | None = None
    topic_queue_mapping_info_map: dict[str, dict[str, Any]] | None = None


class _Outline(Body):
    """A `RegisterBrokerBody` whose topics are not decoded yet."""

    filter_server_list: list[str] = msgspec.field(default_factory=list)
    topic_config_serialize_wrapper: _WrapperOutline = msgspec.field(default_factory=_WrapperOutline)


_outlines: Final = msgspec.json.Decoder(_Outline)
_topics: Final = msgspec.json.Decoder(list[TopicConfig])


def decode_register_steps(
    data: bytes,
    *,
    compressed: bool,
    version: int,
    is_known: Callable[[str, TopicConfig], bool] | None = None,
) -> Generator[None, None, RegisterBrokerBody]:
    """Decode as `decode_register_body` does, in steps; leave out the topics that `is_known`.

    Most registrations of brokers with many topics change few of them or none. A body of another
    form, with references, or damaged is decoded whole. Raises ProtocolError for too many topics, too.
    """
    body = None
    if version >= MQVersion.V3_0_11:
        if compressed:
            return (yield from _inflated_steps(data, version, is_known))
        body = yield from _plain_steps(data, is_known)
    if body is None:
        body = decode_register_body(data, compressed=compressed, version=version)
    return body


def _inflated_steps(
    data: bytes, version: int, is_known: Callable[[str, TopicConfig], bool] | None = None
) -> Generator[None, None, RegisterBrokerBody]:
    reader = _Reader(inflate(data, max_length=MAX_INFLATED_LENGTH, limit="MAX_INFLATED_LENGTH"))
    wrapper = TopicConfigSerializeWrapper(decode_body(reader.sized(), DataVersion))
    left = reader.count("topics")
    while left > 0:
        yield
        part = min(left, _TOPICS_AT_ONCE)
        left -= part
        topics = [_topic_fields(data) for data in reader.many_sized(part)]
        try:
            configs = msgspec.convert(topics, list[TopicConfig], strict=False)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"a registered topic does not decode: {error}") from error
        for config in configs:
            if is_known is None or not is_known(config.topic_name, config):
                wrapper.topic_config_table[config.topic_name] = config
    filter_servers = decode_body(reader.sized(), list[str])
    if version >= MQVersion.V5_0_0:
        mappings: dict[str, dict[str, Any]] = {}
        for number in range(reader.count("static-topic mappings")):
            if number % _TOPICS_AT_ONCE == 0:
                yield
            mapping = decode_body(reader.sized(), dict[str, Any])
            mappings[str(mapping.get("topic"))] = mapping
        wrapper.topic_queue_mapping_info_map = mappings
    return RegisterBrokerBody(filter_servers, wrapper)


def _plain_steps(
    data: bytes, is_known: Callable[[str, TopicConfig], bool] | None
) -> Generator[None, None, RegisterBrokerBody | None]:
    """Return None for a body that has to be decoded whole."""
    if b'"$ref"' in data:
        return None
    try:
        outline = _outlines.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    wrapper = outline.topic_config_serialize_wrapper
    table = wrapper.topic_config_table
    mappings = wrapper.topic_queue_mapping_info_map
    check_registered(len(table), len(mappings or ()), len(outline.filter_server_list))
    changed: dict[str, TopicConfig] = {}
    keys = list(table)
    for start in range(0, len(keys), _TOPICS_AT_ONCE):
        yield
        part = keys[start : start + _TOPICS_AT_ONCE]
        joined = b",".join([bytes(table.pop(key)) for key in part])
        try:
            configs = _topics.decode(b"[%b]" % joined)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        changed.update(
            (key, config)
            for key, config in zip(part, configs, strict=True)
            if is_known is None or not is_known(config.topic_name or key, config)
        )
    sifted = TopicConfigSerializeWrapper(
        wrapper.data_version,
        wrapper.mapping_data_version,
        changed,
        wrapper.topic_queue_mapping_detail_map,
        mappings,
    )
    return RegisterBrokerBody(outline.filter_server_list, sifted)


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


def _topic_fields(data: bytes) -> dict[str, Any]:
    # The attributes' JSON may contain blanks, hence the limit of the split.
    try:
        name, read_queues, write_queues, perm, filter_type, *rest = data.decode().split(" ", 5)
    except ValueError as error:
        raise ProtocolError(f"a registered topic {data[:80]!r} does not decode: {error}") from error
    fields: dict[str, Any] = {
        "topicName": name,
        "readQueueNums": read_queues,
        "writeQueueNums": write_queues,
        "perm": perm,
        "topicFilterType": filter_type,
    }
    # Nearly every topic has no attributes.
    if rest and rest[0] not in ("", "{}"):
        fields["attributes"] = decode_body(rest[0].encode(), dict[str, str])
    return fields


def _int32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _sized(data: bytes) -> bytes:
    return _int32(len(data)) + data


class _Reader:
    """Reads sized fields from the inflated bytes, and checks each length before using it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self, what: str) -> int:
        """Read a number of entries; each takes at least four bytes."""
        number = int.from_bytes(self._take(4), "big")
        if number > MAX_REGISTERED_TOPICS:
            raise ProtocolError(
                f"{number} {what} in a registration, the limit MAX_REGISTERED_TOPICS is "
                f"{MAX_REGISTERED_TOPICS}; divide the topics among several brokers"
            )
        if number > (len(self._data) - self._position) // 4:
            raise ProtocolError(
                f"a registration declares {number} entries, "
                f"{len(self._data) - self._position} bytes are left"
            )
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

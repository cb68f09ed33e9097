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
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from cometmq.errors import ProtocolError
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.compression import inflate_steps
from cometmq.protocol.json_dialect import decode_body, encode_body
from cometmq.protocol.limits import (
    MAX_REGISTERED_TOPICS,
    check_registered,
    check_registered_length,
)

T = TypeVar("T")

CRC_MASK: Final = 0x7FFFFFFF
_COMPRESSION_LEVEL: Final = 9
# Two or three times the length of MAX_REGISTERED_TOPICS topics.
MAX_INFLATED_LENGTH: Final = 32 * 1024 * 1024
# So many bytes of a body are summed in a step: a fraction of a millisecond.
_LOOK_STEP: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Sieve:
    """Says which topics and mappings, by key and value, are to be left out of a decoded registration."""

    topic: Callable[[str, TopicConfig], bool]
    mapping: Callable[[str, dict[str, Any]], bool]


def _keep(_key: str, _value: object) -> bool:
    return False


KEEP_ALL: Final = Sieve(_keep, _keep)


def body_crc(data: bytes) -> int:
    """Return the CRC that the header field `bodyCrc32` holds for the transmitted bytes."""
    return zlib.crc32(data) & CRC_MASK


def check_body_crc(data: bytes, expected: int) -> None:
    """Raise ProtocolError unless the bytes have that CRC; 0 means no check."""
    for _ in check_body_crc_steps(data, expected):
        pass


def check_body_crc_steps(data: bytes, expected: int) -> Iterator[None]:
    """Raise what `check_body_crc` raises, in steps."""
    if expected == 0:
        return
    crc = 0
    for start in range(0, len(data), _LOOK_STEP):
        crc = zlib.crc32(data[start : start + _LOOK_STEP], crc)
        yield
    if crc & CRC_MASK != expected:
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
    return _finish(_inflated_steps(data, version, KEEP_ALL))


def _finish(steps: Generator[None, None, RegisterBrokerBody]) -> RegisterBrokerBody:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            body: RegisterBrokerBody = end.value
            return body


# So many topics of the compressed form are decoded in a step, together: to decode each by itself takes
# twice as long.
_TOPICS_AT_ONCE: Final = 64
# Topics with many attributes take as long as their bytes.
_TOPIC_BYTES_AT_ONCE: Final = 32 * 1024
# Where the two large tables of the plain form lie: in the wrapper, in the body.
_TABLES: Final = ("topicConfigTable", "topicQueueMappingInfoMap")
_LEVEL_OF_TABLES: Final = 3


def decode_register_steps(
    data: bytes, *, compressed: bool, version: int, sieve: Sieve = KEEP_ALL
) -> Generator[None, None, RegisterBrokerBody]:
    """Decode as `decode_register_body` does, in steps, and leave out what the sieve does.

    A body with references is decoded in one. Raises ProtocolError for too many topics, too, and for a
    piece that would have to be decoded at once and is longer than MAX_REGISTERED_ENTRY_LENGTH.
    """
    if version < MQVersion.V3_0_11:
        data, compressed = b'{"topicConfigSerializeWrapper":%b}' % data, False
    if compressed:
        return (yield from _inflated_steps(data, version, sieve))
    return (yield from _plain_steps(data, sieve))


def _inflated_steps(
    data: bytes, version: int, sieve: Sieve
) -> Generator[None, None, RegisterBrokerBody]:
    content = yield from inflate_steps(
        data, max_length=MAX_INFLATED_LENGTH, limit="MAX_INFLATED_LENGTH"
    )
    reader = _Reader(content)
    wrapper = TopicConfigSerializeWrapper(decode_body(reader.sized(), DataVersion))
    left = reader.count("topics")
    while left > 0:
        yield
        topics = [_topic_fields(data) for data in reader.many_sized(min(left, _TOPICS_AT_ONCE))]
        left -= len(topics)
        try:
            configs = msgspec.convert(topics, list[TopicConfig], strict=False)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"a registered topic does not decode: {error}") from error
        for config in configs:
            if not sieve.topic(config.topic_name, config):
                wrapper.topic_config_table[config.topic_name] = config
    filter_servers = decode_body(reader.sized(), list[str])
    if version >= MQVersion.V5_0_0:
        mappings: dict[str, dict[str, Any]] = {}
        for _ in range(reader.count("static-topic mappings")):
            yield
            mapping = decode_body(reader.sized(), dict[str, Any])
            topic = str(mapping.get("topic"))
            if not sieve.mapping(topic, mapping):
                mappings[topic] = mapping
        wrapper.topic_queue_mapping_info_map = mappings
    return RegisterBrokerBody(filter_servers, wrapper)


def _plain_steps(data: bytes, sieve: Sieve) -> Generator[None, None, RegisterBrokerBody]:
    # numpy takes longer to import than a client takes to start, and only name servers come here.
    from cometmq.protocol.json_cuts import contains, cut_tables

    topic_parts = mapping_parts = None
    # A reference may name an object of another part.
    is_whole = yield from contains(data, b'"$ref"')
    if not is_whole:
        cut = yield from cut_tables(data, _TABLES, level=_LEVEL_OF_TABLES)
        check_registered_length(len(cut.rest))
        body = decode_body(cut.rest, RegisterBrokerBody)
        wrapper = body.topic_config_serialize_wrapper
        topic_parts = cut.parts(wrapper.topic_config_table)
        mapping_parts = cut.parts(wrapper.topic_queue_mapping_info_map or {})
        is_whole = not cut.is_spent  # one of them lies elsewhere, or is there twice
        if is_whole:
            check_registered_length(len(data))
    if is_whole:
        topic_parts = mapping_parts = None
        body = decode_body(data, RegisterBrokerBody)
        wrapper = body.topic_config_serialize_wrapper
    count = 0
    topics: dict[str, TopicConfig] = {}
    for some in _tables_of(topic_parts, wrapper.topic_config_table, TopicConfig):
        yield
        count += len(some)
        check_registered(count, 0, 0)
        topics |= {
            key: config
            for key, config in some.items()
            if not sieve.topic(config.topic_name or key, config)
        }
    wrapper.topic_config_table = topics
    if (given := wrapper.topic_queue_mapping_info_map) is not None:
        count = 0
        mappings: dict[str, dict[str, Any]] = {}
        wrapper.topic_queue_mapping_info_map = mappings
        for entries in _tables_of(mapping_parts, given, dict[str, Any]):
            yield
            count += len(entries)
            check_registered(0, count, 0)
            mappings |= {
                topic: mapping
                for topic, mapping in entries.items()
                if not sieve.mapping(topic, mapping)
            }
    return body


def _tables_of(
    parts: Iterator[bytes] | None, whole: dict[str, T], type_: type[T]
) -> Iterator[dict[str, T]]:
    """Return a table in decoded parts, or as it is if it was not cut."""
    if parts is None:
        return iter([whole])
    return (_decode_part(part, type_) for part in parts)


def _decode_part(part: bytes, type_: type[T]) -> dict[str, T]:
    check_registered_length(len(part))
    return decode_body(part, dict[str, type_])  # type: ignore[valid-type]  # mypy takes no variable as a type


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


def _topic_fields(data: bytes | bytearray) -> dict[str, Any]:
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

    def __init__(self, data: bytearray) -> None:
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
        """Read a field. Raises ProtocolError for one that is too long to be decoded in one piece."""
        field = self._take(int.from_bytes(self._take(4), "big"))
        check_registered_length(len(field))
        return field

    def many_sized(self, count: int) -> Iterator[bytearray]:
        """Yield so many fields, fewer if they are long: like `sized`, in half the time."""
        data, length = self._data, len(self._data)
        enough = self._position + _TOPIC_BYTES_AT_ONCE
        for _ in range(count):
            start = self._position + 4
            end = start + int.from_bytes(data[self._position : start], "big")
            if end > length:
                self.sized()  # raises the error
            check_registered_length(end - start)
            self._position = end
            yield data[start:end]
            if end > enough:
                return

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ProtocolError(
                f"a registration declares a field of {length} bytes at {self._position} "
                f"of {len(self._data)}"
            )
        data = bytes(self._data[self._position : end])
        self._position = end
        return data

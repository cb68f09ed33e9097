"""No decoder takes more time than its input deserves: four times the bytes take about four times
the time.

`tests/integration/test_request_growth.py` does the same to every request that has a body.
"""

from __future__ import annotations

import base64
import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
from backports import zstd
from tests.batches import decode_batch
from tests.growth import check_growth, cpu_seconds
from tests.json_text import pretty

from cometmq.client.tracing.codec import decode_traces
from cometmq.errors import CometMQError, ProtocolError
from cometmq.filtering.sql92 import MAX_EXPRESSION_LENGTH, compile_sql
from cometmq.filtering.tags import accepts, build_subscription, tag_matcher
from cometmq.model.names import group_fault, topic_fault
from cometmq.model.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from cometmq.protocol.bodies import cluster as bodies
from cometmq.protocol.bodies import consumers as consumer_bodies
from cometmq.protocol.bodies.registration import decode_register_body
from cometmq.protocol.codes import MQVersion, RequestCode
from cometmq.protocol.command import RequestDecoder, decode_command
from cometmq.protocol.fastjson.dialect import decode_body, encode_body, encode_strict_sorted
from cometmq.protocol.fastjson.queue_table import decode_queue_table
from cometmq.protocol.frame import Frame, FrameDecoder, SerializeType
from cometmq.protocol.headers import PullMessageRequestHeader
from cometmq.protocol.limits import check_route
from cometmq.protocol.messages.batch import BatchEntry, encode_batch
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.properties import decode_properties, find_property
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.protocol.redrive import LetterSelection
from cometmq.runtime.configuration.config import parse_properties

_KIB = 1024
Work = Callable[[Any], object]


def filled(piece: bytes, size: int, start: bytes = b"", end: bytes = b"") -> bytes:
    return start + piece * (size // len(piece)) + end


def numbered(template: str, size: int) -> list[str]:
    return [template % i for i in range(size // len(template))]


# What JSON bodies are made of when they are to take long.
JSON_SHAPES: dict[str, Callable[[int], bytes]] = {
    "a text without end": lambda n: filled(b'"\\"', n),
    "a text without end in a heartbeat": lambda n: filled(b'\\"', n, b'{"clientID":"'),
    "quotes": lambda n: filled(b'"', n),
    "many texts": lambda n: filled(b'"",', n, b"[0,{a:"),
    "backslashes": lambda n: filled(b"\\", n, b'{a:"', b'"}'),
    "escapes": lambda n: filled(b'\\"', n, b'{a:"', b'"}'),
    "open objects with bare keys": lambda n: filled(b"{a:", n),
    "bare keys": lambda n: filled(b"a:1,", n, b"{", b"a:1}"),
    "a bare word without end": lambda n: filled(b"a", n, b"{"),
    "blanks before colons": lambda n: filled(b"a   :1,", n, b"{", b"a:1}"),
    "blanks": lambda n: filled(b" ", n, b"{a", b":1}"),
    "words and blanks": lambda n: filled(b"a ", n, b"{"),
    "open braces": lambda n: filled(b"{", n),
    "open brackets": lambda n: filled(b"[", n),
    "closed braces": lambda n: filled(b"}", n),
    "braces before colons": lambda n: filled(b"{}:", n),
    "colons": lambda n: filled(b":", n),
    "NUL": lambda n: filled(b"\0", n),
    "digits": lambda n: filled(b"9", n, b"{a:", b"}"),
    "beans as keys": lambda n: filled(b'{"brokerName":"b",queueId:0}:1,', n, b"{", b"a:1}"),
    "beans as keys that are not closed": lambda n: filled(b'{"queueId":0', n, b"{"),
    "nulls": lambda n: filled(b'{"groupName":null},', n, b'{"consumerDataSet":[', b"{}]}"),
    "references": lambda n: filled(b'{"$ref":"$.a"},', n, b'{"a":1,"consumerDataSet":[', b"1]}"),
    "a long reference": lambda n: filled(b".a", n, b'{"a":{"$ref":"$', b'"}}'),
    "a reference of brackets": lambda n: filled(b"[0]", n, b'{"a":{"$ref":"$', b'"}}'),
    "a reference of backslashes": lambda n: filled(b"\\\\", n, b'{"a":{"$ref":"$.', b'"}}'),
    "sound members": lambda n: (
        b'{"clientID":"c","consumerDataSet":[%b]}'
        % ",".join(numbered('{"groupName":"g-%08d"}', n)).encode()
    ),
    "sound topics with one bare key": lambda n: (
        b'{0:1,"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}'
        % ",".join(numbered('"t-%08d":{"topicName":"t","perm":6}', n)).encode()
    ),
    "sound offsets": lambda n: (
        b'{"offsetTable":{%b}}' % ",".join(numbered('"t@g-%08d":{0:1,1:2}', n)).encode()
    ),
}
JSON_TYPES: tuple[Any, ...] = (
    bodies.HeartbeatData,
    bodies.CheckClientRequestBody,
    bodies.LockBatchRequestBody,
    bodies.RegisterBrokerBody,
    bodies.ConsumerOffsetSerializeWrapper,
    bodies.KVConfigSerializeWrapper,
    bodies.SubscriptionGroupWrapper,
    TopicRouteData,
    ClusterInfo,
    LetterSelection,
    dict[str, Any],
)


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_json_takes_time_in_proportion_to_its_length(shape: str) -> None:
    def cost_of(size: int) -> float:
        data = JSON_SHAPES[shape](size)
        return sum(cpu_seconds(lambda t=t: decode_body(data, t), CometMQError) for t in JSON_TYPES)  # type: ignore[misc]  # mypy infers no lambda with a default

    check_growth(cost_of, 48 * _KIB)


def binary_header(entries: bytes) -> Frame:
    head = struct.pack(">HBHii", 11, 0, 400, 1, 0) + bytes(4)
    return Frame(SerializeType.ROCKETMQ, head + struct.pack(">i", len(entries)) + entries, b"")


def json_header(ext: bytes, rest: bytes = b"") -> Frame:
    return Frame(SerializeType.JSON, b'{"code":11,"extFields":{%b}%b}' % (ext, rest), b"")


def requests() -> RequestDecoder:
    decoder = RequestDecoder()
    decoder.register(RequestCode.PULL_MESSAGE, PullMessageRequestHeader)
    return decoder


def both_readings(frame: Frame) -> None:
    """Decode a frame as any command, and as a request of a known code."""
    faults = 0
    for read in (decode_command, lambda f: requests().decode(f, RequestCode.PULL_MESSAGE)):
        try:
            read(frame)
        except CometMQError:
            faults += 1
    assert faults in (0, 1, 2)


def fields(count: int, name: bytes = b"%05x") -> bytes:
    named = [name % (i % 0xFFFFF) if b"%" in name else name for i in range(count)]
    return b"".join(struct.pack(">h", len(n)) + n + struct.pack(">i", 1) + b"v" for n in named)


def registered(count: int, topic: bytes = b"t%06d 8 8 6 SINGLE_TAG {}") -> bytes:
    def sized(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    topics = b"".join(sized(topic % i) for i in range(count))
    data = sized(b"{}") + struct.pack(">i", count) + topics + sized(b"[]") + bytes(4)
    return zlib.compress(data)


def decompressed(kind: int) -> Work:
    return lambda data: decompress(data, COMPRESSED | kind, max_length=4 << 20)


# By name: what makes an input of about so many bytes, what reads it, and the smaller size.
DECODERS: dict[str, tuple[Callable[[int], Any], Work, int]] = {
    "ext fields": (
        lambda n: json_header(b",".join(b'"%05x":"v"' % i for i in range(n // 12))),
        both_readings,
        64 * _KIB,
    ),
    "ext fields of one name": (
        lambda n: json_header(filled(b'"a":"v",', n, end=b'"b":"v"')),
        both_readings,
        64 * _KIB,
    ),
    "an ext field without end": (
        lambda n: json_header(filled(b'\\"', n, b'"a":"')),
        both_readings,
        64 * _KIB,
    ),
    "a long remark": (
        lambda n: json_header(b"", b',"remark":"%b"' % (b"r" * n)),
        both_readings,
        256 * _KIB,
    ),
    "nested JSON in a header": (
        lambda n: json_header(b"", b',"x":' + b"[" * n),
        both_readings,
        64 * _KIB,
    ),
    "binary ext fields": (lambda n: binary_header(fields(n // 12)), both_readings, 64 * _KIB),
    "binary ext fields of one name": (
        lambda n: binary_header(fields(n // 8, b"a")),
        both_readings,
        64 * _KIB,
    ),
    "frames": (
        lambda n: bytes.fromhex("0000000400000000") * (n // 8),
        FrameDecoder().feed,
        64 * _KIB,
    ),
    "properties": (lambda n: "a\x01b\x02" * (n // 4), decode_properties, 64 * _KIB),
    "separators": (lambda n: "\x01\x02" * (n // 2), decode_properties, 64 * _KIB),
    "a property without value": (
        lambda n: "TAGS\x01\x02" * (n // 6),
        lambda text: find_property(text, "TAGS"),
        64 * _KIB,
    ),
    "a batch": (
        lambda n: encode_batch([BatchEntry(0, b"x", b"")] * (n // 23)),
        decode_batch,
        64 * _KIB,
    ),
    "a batch with properties": (
        lambda n: encode_batch([BatchEntry(0, b"x", b"K\x01v\x02" * 10)] * (n // 63)),
        decode_batch,
        64 * _KIB,
    ),
    "tags": (
        lambda n: "||".join(f"{i:06x}" for i in range(n // 8)),
        lambda text: build_subscription("t", text),
        6 * _KIB,
    ),
    "empty tags": (lambda n: "|" * n, lambda text: build_subscription("t", text), 64 * _KIB),
    "queues of a route": (
        lambda n: TopicRouteData(
            [BrokerData(f"b-{i}", "c", {0: "h:1"}) for i in range(n)],
            [QueueData(f"b-{i}", 1, 1, 6) for i in range(n)],
        ),
        lambda route: (check_route(route).publish_queues("t"), route.subscribe_queues("t")),
        2_000,
    ),
    "code sets": (
        lambda n: SubscriptionData("t", "a", ["a"] * n, list(range(n))),
        lambda data: (tag_matcher(data), accepts(data, "b")),
        32 * _KIB,
    ),
    "a registration": (
        lambda n: registered(n // 32),
        lambda data: decode_register_body(data, compressed=True, version=MQVersion.V5_0_0),
        256 * _KIB,
    ),
    "a registration with attributes": (
        lambda n: registered(n // 40, b't%06d 8 8 6 SINGLE_TAG {"+a":"b"}'),
        lambda data: decode_register_body(data, compressed=True, version=MQVersion.V5_0_0),
        256 * _KIB,
    ),
    "a registration that inflates": (
        lambda n: zlib.compress(bytes(n)),
        lambda data: decode_register_body(data, compressed=True, version=MQVersion.V5_0_0),
        8192 * _KIB,
    ),
    "ZLIB that inflates": (
        lambda n: zlib.compress(bytes(n)),
        decompressed(COMPRESSION_ZLIB),
        2048 * _KIB,
    ),
    "ZSTD that inflates": (
        lambda n: zstd.compress(bytes(n)),
        decompressed(COMPRESSION_ZSTD),
        2048 * _KIB,
    ),
    "LZ4 that inflates": (
        lambda n: lz4.frame.compress(bytes(n), store_size=False),
        decompressed(COMPRESSION_LZ4),
        2048 * _KIB,
    ),
    "another packing": (
        lambda n: gzip.compress(bytes(n)),
        decompressed(COMPRESSION_ZLIB),
        2048 * _KIB,
    ),
    "offsets of queues": (
        lambda n: (
            b'{"offsetTable":{%b}}'
            % b",".join(
                b'{"brokerName":"b","queueId":%d,"topic":"t"}:7' % i for i in range(n // 50)
            )
        ),
        lambda data: decode_queue_table(data, "offsetTable", int),
        64 * _KIB,
    ),
    "offsets that are reset": (
        lambda n: filled(b'{"queueId":1},', n, b'{"offsetTable":[', b"{}]}"),
        consumer_bodies.decode_reset_offsets,
        64 * _KIB,
    ),
    "traces": (
        lambda n: (
            "Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01key\x01h\x015\x013\x010\x01o\x01true\x02"
            * (n // 50)
        ),
        decode_traces,
        64 * _KIB,
    ),
    "keys of a trace": (
        lambda n: "Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01" + "k " * (n // 2) + "\x02",
        decode_traces,
        64 * _KIB,
    ),
    "a recall handle": (
        lambda n: base64.urlsafe_b64encode(b"v1 " + b"a " * (n // 2)).decode(),
        RecallHandle.decode,
        64 * _KIB,
    ),
    "a recall handle's time": (
        lambda n: base64.urlsafe_b64encode(b"v1 t b " + b"9" * n + b" id").decode(),
        RecallHandle.decode,
        64 * _KIB,
    ),
    "an offset id": (lambda n: "A" * n, parse_offset_id, 256 * _KIB),
    "a topic name": (lambda n: "%" * n, topic_fault, 256 * _KIB),
    "a group name": (lambda n: " " * n, group_fault, 256 * _KIB),
    "a body that is encoded": (
        lambda n: {str(i): [None, {"null": "null"}] for i in range(n // 16)},
        lambda value: (encode_body(value), encode_strict_sorted(value), pretty(value)),
        32 * _KIB,
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_take_time_in_proportion_to_their_input(name: str) -> None:
    make, read, small = DECODERS[name]
    sources: dict[int, Any] = {}

    def cost_of(size: int) -> float:
        source = sources.setdefault(size, make(size))
        return cpu_seconds(lambda: read(source), CometMQError)

    check_growth(cost_of, small)


PROPERTIES_FILES: dict[str, str] = {
    "entries": "a=b\n",
    "continued lines": "a\\\n",
    "continued lines with blanks": "a=b\\\n    ",
    "continued comments": "#\\\n",
    "backslashes": "\\",
    "escapes": "\\u0041",
    "half escapes": "\\u",
    "comments": "#\n",
    "blanks": " ",
    "signs": "=",
    "one word": "a",
    "carriage returns": "\r\\\r",
}


@pytest.mark.parametrize("piece", PROPERTIES_FILES)
def test_a_configuration_takes_time_in_proportion_to_its_length(piece: str) -> None:
    text = PROPERTIES_FILES[piece]

    def cost_of(size: int) -> float:
        data = text * (size // len(text))
        return cpu_seconds(lambda: parse_properties(data, "the test"), CometMQError)

    parse_properties("a=b", "the test")  # imports what it needs
    check_growth(cost_of, 8 * _KIB)


EXPRESSIONS: dict[str, Callable[[int], str]] = {
    "open parentheses": lambda n: "(" * n,
    "parentheses": lambda n: "(" * (n // 3) + "a=1" + ")" * (n // 3),
    "OR": lambda n: "a=1 OR " * (n // 7) + "a=1",
    "AND": lambda n: "a=1 AND " * (n // 8) + "a=1",
    "AND and OR": lambda n: "a=1 AND b='x' OR " * (n // 17) + "a=1",
    "IN": lambda n: "a IN (" + "'x'," * (n // 4) + "'y')",
    "IN without end": lambda n: "a IN (" + "'x'," * (n // 4),
    "NOT": lambda n: "NOT " * (n // 4) + "a",
    "minus signs": lambda n: "- " * (n // 2) + "1",
    "plus signs": lambda n: "+" * n + "1",
    "quotes": lambda n: "a = '" + "'" * n,
    "open comments": lambda n: "/* " * (n // 3),
    "stars": lambda n: "/*" + "* " * (n // 2),
    "comments": lambda n: "/**/" * (n // 4) + "a=1",
    "line comments": lambda n: "--\n" * (n // 3) + "a=1",
    "zeros": lambda n: "a = " + "0" * n,
    "digits": lambda n: "a = " + "9" * min(n, 4_000),
    "decimals": lambda n: "a = 1." + "9" * n,
    "dots": lambda n: "." * n,
    "names": lambda n: "a " * (n // 2),
    "a long name": lambda n: "a" * n,
    "IS NULL": lambda n: "a" + " IS NULL" * (n // 8),
    "equals": lambda n: "a" + " = a" * (n // 4),
    "blanks": lambda n: " " * n,
    "CONTAINS": lambda n: " OR ".join(["a CONTAINS 'x'"] * (n // 19)),
    "BETWEEN": lambda n: " OR ".join(["a BETWEEN 1 AND 2"] * (n // 21)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_takes_time_in_proportion_to_its_length(name: str) -> None:
    compile_sql("a = 1")  # makes the parser
    versions = iter(range(1_000))

    def cost_of(size: int) -> float:
        # Compiled expressions are kept, so each run needs one of its own.
        text = f"{EXPRESSIONS[name](size)[: MAX_EXPRESSION_LENGTH - 9]} /*{next(versions)}*/"
        return cpu_seconds(lambda: compile_sql(text), CometMQError)

    check_growth(cost_of, MAX_EXPRESSION_LENGTH // 5)


@pytest.mark.parametrize(
    "route",
    [
        TopicRouteData(queue_datas=[QueueData("b", 2**31 - 1, 1, 6)]),
        TopicRouteData(order_topic_conf="b:999999999"),
    ],
)
def test_a_route_of_more_queues_than_a_client_can_list_is_refused(route: TopicRouteData) -> None:
    with pytest.raises(ProtocolError, match="queues in a route, the limit MAX_QUEUES_OF_TOPIC is"):
        check_route(route)

"""What is fuzzed: every decoder of bytes that a peer or a file gives, each with sound inputs.

A target is fed damaged bytes. It returns whatever it likes or raises a CometMQError; any other
exception is a fault, and so is an assertion of its own that fails.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
from tests.fuzz.mutation import MAX_INPUT_LENGTH, cuts
from tests.golden import sql92
from tests.golden.golden import load

from cometmq.errors import CometMQError, FilterExpressionError, ProtocolError
from cometmq.filtering.sql92 import compile_sql
from cometmq.filtering.tags import accepts, build_subscription, tag_matcher
from cometmq.model.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.model.subscription import ConsumerData, ProducerData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import bodies as b
from cometmq.protocol import headers
from cometmq.protocol.batch import BatchEntry, decode_batch, encode_batch
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.command import (
    RemotingCommand,
    RequestDecoder,
    decode_command,
    encode_command,
    peek_code,
    request,
)
from cometmq.protocol.compression import CompressionType, compress, decompress
from cometmq.protocol.frame import Frame, FrameDecoder, SerializeType
from cometmq.protocol.header import Header
from cometmq.protocol.ids import (
    UniqueIdGenerator,
    encode_offset_id,
    pack_host,
    parse_offset_id,
    parse_unique_id,
)
from cometmq.protocol.json_dialect import decode_body, encode_body, pretty
from cometmq.protocol.properties import decode_properties, encode_properties, find_property
from cometmq.protocol.recall_handle import RecallHandle
from cometmq.protocol.record import decode_record, decode_records, encode_record
from cometmq.protocol.redrive import LetterSelection, RedriveReport
from cometmq.protocol.register_body import decode_register_body, encode_register_body
from cometmq.protocol.replication import FrameReader, ReportReader, encode_head, encode_report
from cometmq.runtime.config import parse_properties
from cometmq.store.log.scan import BadRecord, ScannedRecord, check_record


class Target(NamedTuple):
    name: str
    corpus: list[bytes]
    run: Callable[[Random, bytes], Any]


def _header_types() -> list[type[Header]]:
    return [
        value
        for value in vars(headers).values()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    ]


SEND = headers.SendMessageRequestHeaderV2(
    "g", "t", "TBW102", 4, 1, 0, 1_700_000_000_000, 0, "K\1v\2"
)
PULL = headers.PullMessageRequestHeader("g", "t", 1, 2, 32, 7, 5, 15000, 9, "TagA || TagB", "TAG")

# One decoder of requests; code n stands for the n-th header class.
_HEADER_TYPES = _header_types()
_requests = RequestDecoder()
for _code, _type in enumerate(_HEADER_TYPES):
    _requests.register(_code, _type)


def _golden(*kinds: str) -> list[bytes]:
    """What the Java implementation wrote of these kinds, where it is short enough."""
    found = [one.data for one in load() if one.kind in kinds]
    return [data for data in found if len(data) <= MAX_INPUT_LENGTH]


def _command_corpus() -> list[bytes]:
    commands = [
        request(_HEADER_TYPES.index(headers.SendMessageRequestHeaderV2), SEND, b"body"),
        request(_HEADER_TYPES.index(headers.PullMessageRequestHeader), PULL),
        RemotingCommand(17, remark="not there: ünïcode", flag=1, opaque=5),
        RemotingCommand(105, ext={"topic": "t", "n": "7"}, body=b"{}", language="GO"),
    ]
    frames = [encode_command(command, form) for command in commands for form in SerializeType]
    return [*frames, frames[0] + frames[1] + frames[2], *_golden("frame")]


def _feed(reads: list[bytes]) -> list[Frame] | None:
    """The frames in the reads, or None if they cannot be frames."""
    decoder = FrameDecoder(max_frame_length=4096)
    frames = []
    try:
        for read in reads:
            frames += decoder.feed(read)
            decoder.check()
            assert decoder.buffered <= 4100
    except ProtocolError:
        return None
    return frames


def run_stream(random: Random, data: bytes) -> None:
    """However a stream is split, it gives the same frames, or is refused at some point."""
    frames = _feed([data])
    assert _feed(cuts(random, data)) == frames
    if len(data) < 500:
        assert _feed([data[i : i + 1] for i in range(len(data))]) == frames
    for frame in frames or ():
        run_header(random, frame.header, frame.serialize_type)


def _copied(reads: list[bytes]) -> dict[int, int] | None:
    """The bytes by offset that a slave would take from a master, None if it refuses them."""
    copied: dict[int, int] = {}
    reader, total = FrameReader(max_body_size=2048), 0
    try:
        for read in reads:
            for offset, data in reader.feed(read):
                assert 0 <= offset <= 2**63 - 1 - len(data)
                total += len(data)
                copied.update(zip(range(offset, offset + len(data)), data, strict=True))
    except ProtocolError:
        return None
    assert total <= sum(map(len, reads))
    return copied


def _reported(reads: list[bytes]) -> int | None:
    """The last offset that a master would take from a slave, None if there is none or a bad one."""
    reader, last = ReportReader(), None
    try:
        for read in reads:
            offset = reader.feed(read)
            last = last if offset is None else offset
    except ProtocolError:
        return None
    assert last is None or last >= 0
    return last


def run_replication(random: Random, data: bytes) -> None:
    """However the bytes are split, a slave copies the same, and a master reads the same reports."""
    whole, pieces = [data], cuts(random, data)
    single = [data[i : i + 1] for i in range(len(data))] if len(data) < 500 else whole
    assert _copied(whole) == _copied(pieces) == _copied(single)
    assert _reported(whole) == _reported(pieces) == _reported(single)


def run_header(random: Random, data: bytes, form: int | None = None) -> None:
    frame = Frame(random.choice([0, 0, 1, 1, 2]) if form is None else form, data, b"")
    code = random.randrange(len(_HEADER_TYPES))
    for read in (peek_code, decode_command, lambda f: _requests.decode(f, code)):
        try:
            read(frame)
        except ProtocolError:
            continue


def run_records(random: Random, data: bytes) -> None:
    try:
        list(decode_records(memoryview(data)))
    finally:
        message = decode_record(data, check_crc=random.random() < 0.5).to_message("broker")
        assert message.store_size <= len(data)


def run_log(random: Random, data: bytes) -> None:
    """The store's look at a record and the codec's reading of it agree."""
    offset = int.from_bytes(data[28:36], "big", signed=True)
    scanned = check_record(memoryview(data), 0, offset, check_crc=True)
    try:
        record = decode_record(data, check_crc=True)
    except ProtocolError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        # The store takes properties as bytes, for the consumer to decode.
        assert isinstance(scanned, BadRecord) or "not UTF-8" in refusal
        return
    if not record.topic or "\0" in record.topic:
        # No broker stores such a topic: to the store it is a sector that never reached the disk.
        assert isinstance(scanned, BadRecord)
        return
    assert isinstance(scanned, ScannedRecord)
    assert (scanned.size, scanned.queue_id) == (record.total_size, record.queue_id)
    assert (scanned.queue_offset, scanned.sys_flag) == (record.queue_offset, record.sys_flag)
    assert (scanned.topic, scanned.store_timestamp) == (record.topic, record.store_timestamp)
    assert scanned.properties == record.properties.encode()


def run_configuration(random: Random, data: bytes) -> None:
    parse_properties(data.decode(errors="replace"), "fuzz")


def run_properties(random: Random, data: bytes) -> None:
    text = data.decode(errors="replace")
    properties = decode_properties(text)
    for name in [*properties, "TAGS", "K"]:
        assert find_property(text, name) == properties.get(name)


def run_ids(random: Random, data: bytes) -> None:
    text = data.decode(errors="replace")
    for parse in (parse_offset_id, parse_unique_id):
        try:
            parse(text)
        except ProtocolError:
            continue


def run_recall_handle(random: Random, data: bytes) -> None:
    """As it comes, and as the text within."""
    for text in (data.decode(errors="replace"), base64.urlsafe_b64encode(data).decode()):
        try:
            handle = RecallHandle.decode(text)
        except ProtocolError:
            continue
        assert RecallHandle.decode(handle.encode()) == handle


def run_sql(random: Random, data: bytes) -> None:
    """An expression that compiles takes any properties, those in its own text too."""
    text = data.decode("utf-8", "replace")
    condition = compile_sql(text)
    odd = {name: random.choice(_SQL).decode() for name in "abcdAB"}
    for message in (*sql92.MESSAGES, odd, dict.fromkeys("abcd", text)):
        assert condition(message) in (True, False, None)


def run_tags(random: Random, data: bytes) -> None:
    subscription = build_subscription("t", data.decode(errors="replace"))
    matches = tag_matcher(subscription)
    assert matches is None or all(map(matches, subscription.code_set))
    assert all(accepts(subscription, tag) for tag in subscription.tags_set)


BODIES: list[msgspec.Struct] = [
    TopicRouteData([BrokerData("a", "c", {0: "h:1", 1: "h:2"})], [QueueData("a", 4, 4, 6)]),
    ClusterInfo({"a": BrokerData("a", "c", {0: "h:1"})}, {"c": ["a"]}),
    b.HeartbeatData(
        "id",
        [ConsumerData("g", subscription_data_set=[build_subscription("t", "TagA || TagB")])],
        1,
        [ProducerData("p")],
    ),
    b.CheckClientRequestBody("c", "g", build_subscription("t", "a > 1", "SQL92")),
    b.GetConsumerListByGroupResponseBody(["c1", "c2"]),
    b.LockBatchRequestBody("c", "g", [b.MessageQueueBean("a", 1, "t")]),
    b.LockBatchResponseBody([b.MessageQueueBean("a", 1, "t")]),
    b.TopicList("h:1", ["t"]),
    b.KVTable({"k": "v"}),
    b.KVConfigSerializeWrapper({"ns": {"k": "v"}}),
    b.SubscriptionGroupWrapper(forbidden_table={"g": {"t": 1}}),
    b.ConsumerOffsetSerializeWrapper(DataVersion(1, 2, 3), {"t@g": {0: 250, 1: 7}}),
    b.DelayOffsetSerializeWrapper(None, {1: 7}),
    LetterSelection(("U1",), ("k1", "k2"), 1, 2),
    RedriveReport("r", "g", 1, 2, 3, 4, True),
]

_DIALECT = [
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"h"},"brokerName":"a","cluster":"c"}]}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":5}}}',
    b'{"brokerAddrTable":{"a":{"brokerName":"a"},"b":{"$ref":"$.brokerAddrTable.a"}}}',
    b'{"clientID":"c","consumerDataSet":null}',
]


def run_bodies(random: Random, data: bytes) -> None:
    for type_ in (object, type(random.choice(BODIES)), type(random.choice(BODIES))):
        try:
            value = decode_body(data, type_)
        except ProtocolError:
            continue
        # What was taken in can also be passed on, and says the same again; nulls aside.
        if type_ is not object:
            assert decode_body(encode_body(value), type_) == value
            assert decode_body(pretty(value).encode(), type_) == value


_REGISTRATION = b.RegisterBrokerBody(
    ["h:1"],
    b.TopicConfigSerializeWrapper(
        DataVersion(1, 2, 3),
        None,
        {"t": TopicConfig("t", {"+k": "v"}), "u": TopicConfig("u")},
        None,
        {"t": {"topic": "t"}},
    ),
)


def run_registration(random: Random, data: bytes) -> None:
    version = random.choice([MQVersion.V3_0_11 - 1, MQVersion.V4_9_4, MQVersion.V5_3_3])
    for sent, compressed in ((data, False), (data, True), (zlib.compress(data, 1), True)):
        try:
            decode_register_body(sent, compressed=compressed, version=version)
        except ProtocolError:
            continue


def run_compression(random: Random, data: bytes) -> None:
    for flag in (0x1, 0x101, 0x201, 0x301, 0x401):
        try:
            assert len(decompress(data, flag, max_length=5000)) <= 5000
        except ProtocolError:
            continue


def _records() -> list[bytes]:
    v4, v6 = pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911)
    return [
        encode_record(
            topic=topic,
            body=b"body" * 5,
            properties=encode_properties({"TAGS": "TagA", "UNIQ_KEY": "0A"}).encode(),
            queue_id=1,
            queue_offset=2,
            physical_offset=3,
            sys_flag=0,
            born_timestamp=4,
            born_host=born,
            store_timestamp=5,
            store_host=store,
        )
        for topic in (b"orders", b"t" * 200)
        for born, store in ((v4, v4), (v4, v6), (v6, v6))
    ]


RECORDS = [*_records(), *_golden("record")]
_PROPERTIES = encode_properties({"TAGS": "TagA", "KEYS": "k1 k2", "K": "v"}).encode()
_OFFSET_ID = encode_offset_id(pack_host("10.0.0.1", 10911), 4096).encode()
_UNIQUE_ID = (
    UniqueIdGenerator(bytes([10, 0, 0, 1]), now_ms=lambda: 1_700_000_000_000, randbytes=bytes)
    .next()
    .encode()
)


def _compiles(expression: str) -> bool:
    try:
        compile_sql(expression)
    except FilterExpressionError:
        return False
    return True


_SQL = [text.encode() for text in sql92.EXPRESSIONS if _compiles(text)]

TARGETS = [
    Target("stream", _command_corpus(), run_stream),
    Target("header", [frame[8:] for frame in _command_corpus()], run_header),
    Target("records", [*RECORDS, b"".join(_records()), *_golden("records")], run_records),
    Target("log", [*RECORDS, *_golden("commit-log-file")], run_log),
    Target(
        "configuration",
        [b"brokerName=a\nlistenPort : 10911\n# c\n\\u4e2d=\\\n x"],
        run_configuration,
    ),
    Target(
        "batch",
        [
            encode_batch([BatchEntry(1, b"one", _PROPERTIES), BatchEntry(2, b"", b"")]),
            *_golden("batch"),
        ],
        lambda _, data: decode_batch(data),
    ),
    Target(
        "properties",
        [_PROPERTIES, _PROPERTIES[:-1], *_golden("properties", "properties-parse")],
        run_properties,
    ),
    Target("ids", [_OFFSET_ID, _UNIQUE_ID], run_ids),
    Target(
        "recall handle",
        [b"v1 orders broker-a 1700000003001 U1", b"djEgb3JkZXJzIGIgMTcwMDAwMDAwMzAwMSBVMQ=="],
        run_recall_handle,
    ),
    Target("tags", [b"TagA || TagB", b"*", b"TagA"], run_tags),
    Target("sql92", _SQL, run_sql),
    Target(
        "bodies", [*map(encode_body, BODIES), *_DIALECT, *_golden("body", "config")], run_bodies
    ),
    Target(
        "registration",
        [
            encode_register_body(_REGISTRATION),
            encode_register_body(_REGISTRATION, compressed=True),
            zlib.decompress(encode_register_body(_REGISTRATION, compressed=True)),
            *_golden("register-body"),
        ],
        run_registration,
    ),
    Target(
        "replication",
        [
            b"".join(encode_head(100 + at, 60) + bytes(range(60)) for at in (0, 60, 120)),
            encode_head(2**40, 0) + encode_head(2**40, 5) + b"bytes" + encode_head(2**40 + 5, 0),
            encode_report(0) + encode_report(1) + encode_report(2**62),
        ],
        run_replication,
    ),
    Target("compression", [compress(b"body " * 50, t) for t in CompressionType], run_compression),
]

REFUSALS = CometMQError

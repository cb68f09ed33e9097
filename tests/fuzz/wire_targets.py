"""Fuzz targets of the wire: frames, headers, batches, bodies, registrations, replication."""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from tests.batches import decode_batch
from tests.fuzz.frames import mutate_frames
from tests.fuzz.golden_inputs import golden
from tests.fuzz.mutation import cuts
from tests.fuzz.samples import sample
from tests.fuzz.target import REFUSALS, Target
from tests.json_text import pretty

from cometmq.client.tracing.codec import decode_traces
from cometmq.errors import ProtocolError
from cometmq.model.attributes import parse_changes
from cometmq.model.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.model.subscription import ConsumerData, ProducerData, SubscriptionData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import headers, requests
from cometmq.protocol.bodies import cluster as b
from cometmq.protocol.bodies.registration import decode_register_body, encode_register_body
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.command import (
    RemotingCommand,
    RequestDecoder,
    decode_command,
    encode_command,
    encode_header,
    peek_code,
    request,
)
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table
from cometmq.protocol.frame import Frame, FrameDecoder, SerializeType
from cometmq.protocol.header import Header
from cometmq.protocol.messages.batch import BatchEntry, encode_batch
from cometmq.protocol.messages.compression import CompressionType, compress, decompress
from cometmq.protocol.messages.ids import (
    UniqueIdGenerator,
    encode_offset_id,
    pack_host,
    parse_offset_id,
)
from cometmq.protocol.messages.properties import decode_properties, encode_properties, find_property
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.protocol.redrive import LetterSelection, RedriveReport
from cometmq.protocol.replication import FrameReader, ReportReader, encode_head, encode_report
from cometmq.protocol.request_type import JsonBody
from cometmq.protocol.requests import REQUESTS
from cometmq.proxy.port import balancers
from cometmq.tls.records import RecordReader, RecordTurns

T = TypeVar("T")


def _header_types() -> list[type[Header]]:
    """Return all headers of the request table, and those that it does not name, by name."""
    found = {type_ for row in REQUESTS.values() for type_ in (row.header, row.answer)}
    found |= {
        value
        for value in vars(headers).values()
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    }
    return sorted(found, key=lambda type_: type_.__name__)


SEND: Final = headers.SendMessageRequestHeaderV2(
    producer_group="g",
    topic="t",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=1,
    sys_flag=0,
    born_timestamp=1_700_000_000_000,
    flag=0,
    properties="K\1v\2",
)
PULL: Final = headers.PullMessageRequestHeader(
    "g", "t", 1, 2, 32, 7, 5, 15000, 9, "TagA || TagB", "TAG"
)

# One decoder of requests; code n stands for the n-th header class.
HEADER_TYPES: Final = _header_types()
_requests: Final = RequestDecoder()
for _code, _type in enumerate(HEADER_TYPES):
    _requests.register(_code, _type)


def _command_corpus() -> list[bytes]:
    commands = [
        request(HEADER_TYPES.index(headers.SendMessageRequestHeaderV2), SEND, b"body"),
        request(HEADER_TYPES.index(headers.PullMessageRequestHeader), PULL),
        RemotingCommand(17, remark="not there: ünïcode", flag=1, opaque=5),
        RemotingCommand(105, ext={"topic": "t", "n": "7"}, body=b"{}", language="GO"),
    ]
    frames = [encode_command(command, form) for command in commands for form in SerializeType]
    return [*frames, frames[0] + frames[1] + frames[2], *golden("frame")]


def _header_corpus() -> list[bytes]:
    found = []
    for code, type_ in enumerate(HEADER_TYPES):
        command = request(code, sample(type_))
        found += [
            bytes([form, code]) + encode_header(command, SerializeType(form)) for form in (0, 1)
        ]
    return found + [bytes([frame[4], 1]) + frame[8:] for frame in _command_corpus()]


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


def run_stream(random: Random, data: bytes) -> object:
    """However a stream is split, it gives the same frames, or is refused at some point."""
    frames = _feed([data])
    assert _feed(cuts(random, data)) == frames
    if len(data) < 500:
        assert _feed([data[i : i + 1] for i in range(len(data))]) == frames
    for frame in frames or ():
        try_header(Frame(frame.serialize_type, frame.header, b""), len(frame.body))
    return frames and len(frames)


def run_header(_: Random, data: bytes) -> object:
    """The first byte is the form, the second one says which class the header is decoded to."""
    form, code = (*data[:2], 0, 0)[:2]
    return try_header(Frame(form % 3, data[2:], b""), code)


def try_header(frame: Frame, code: int) -> list[str]:
    """Decode a header in all ways. The quick typed way agrees with the general one."""
    code %= len(HEADER_TYPES)
    peeked, command = _tried(lambda: peek_code(frame)), _tried(lambda: decode_command(frame))
    # As in a connection: nothing is decoded that has no code.
    typed = (
        peeked
        if isinstance(peeked, ProtocolError)
        else _tried(lambda: _requests.decode(frame, code))
    )
    if isinstance(command, RemotingCommand):
        # A connection refuses a header of two codes.
        assert peeked == command.code or frame.header.count(b"code") > 1, (peeked, command)
    # The typed decoder skips fields that it does not know, whatever they are, and the general one
    # refuses some of them. Whoever needs all fields, as access control does, asks the general one.
    if not isinstance(typed, ProtocolError) and not isinstance(command, ProtocolError):
        assert (typed.opaque, typed.flag) == (command.opaque, command.flag), (typed, command)
        assert typed.header == command.header(HEADER_TYPES[code]), (typed, command)
    if isinstance(command, RemotingCommand):
        _passes_on(command)
    return [repr(one) for one in (peeked, command)]


def _tried(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ProtocolError as error:
        return error


def _passes_on(command: RemotingCommand) -> None:
    """Check that a decoded command can be sent on as JSON, and says the same."""
    again = decode_command(Frame(SerializeType.JSON, encode_header(command), b""))
    assert (again.code, again.ext, again.remark) == (command.code, command.ext, command.remark)


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


def run_replication(random: Random, data: bytes) -> object:
    """However the bytes are split, a slave copies the same, and a master reads the same reports."""
    whole, pieces = [data], cuts(random, data)
    single = [data[i : i + 1] for i in range(len(data))] if len(data) < 500 else whole
    copied, reported = _copied(whole), _reported(whole)
    assert copied == _copied(pieces) == _copied(single)
    assert reported == _reported(pieces) == _reported(single)
    return reported


def run_batch(_: Random, data: bytes) -> object:
    """Check that a decoded batch can be encoded, and decoded again."""
    entries = decode_batch(data)
    assert decode_batch(encode_batch(entries)) == entries
    return entries


def run_properties(_: Random, data: bytes) -> object:
    text = data.decode(errors="replace")
    properties = decode_properties(text)
    for name in [*properties, "TAGS", "K"][:50]:
        assert find_property(text, name) == properties.get(name)
    if all(not set("\1\2") & set(name + value) for name, value in properties.items()):
        assert decode_properties(encode_properties(properties)) == properties
    return properties


def run_ids(_: Random, data: bytes) -> object:
    text = data.decode(errors="replace")
    try:
        return parse_offset_id(text)
    except ProtocolError as error:
        return str(error)


def run_recall_handle(_: Random, data: bytes) -> object:
    """As it comes, and as the text within."""
    handle = None
    for text in (data.decode(errors="replace"), base64.urlsafe_b64encode(data).decode()):
        try:
            handle = RecallHandle.decode(text)
        except ProtocolError:
            continue
        assert RecallHandle.decode(handle.encode()) == handle
    return handle


def run_haproxy(_: Random, data: bytes) -> object:
    """Read the header of a balancer. One that is not whole asks for more than there is, up to the limit."""
    try:
        found = balancers.read_header(data)
    except ProtocolError as error:
        return str(error)
    if isinstance(found, int):
        assert len(data) < found <= balancers.LONGEST
        return None
    assert found.size <= min(len(data), balancers.LONGEST)
    return found.source


def run_traces(_: Random, data: bytes) -> object:
    """Decode traces as a consumer of the trace topic gets them, and attributes of topics as mqadmin
    writes them.
    """
    text = data.decode(errors="replace")
    try:
        return decode_traces(text)
    except ProtocolError:
        return parse_changes(text)


BODIES: Final[list[msgspec.Struct]] = [
    TopicRouteData([BrokerData("a", "c", {0: "h:1", 1: "h:2"})], [QueueData("a", 4, 4, 6)]),
    ClusterInfo({"a": BrokerData("a", "c", {0: "h:1"})}, {"c": ["a"]}),
    b.HeartbeatData(
        "id",
        [ConsumerData("g", subscription_data_set=[SubscriptionData("t", "TagA || TagB")])],
        1,
        [ProducerData("p")],
    ),
    b.CheckClientRequestBody("c", "g", SubscriptionData("t", "a > 1", expression_type="SQL92")),
    b.GetConsumerListByGroupResponseBody(["c1", "c2"]),
    b.LockBatchRequestBody("c", "g", [b.MessageQueueBean("a", 1, "t")]),
    b.LockBatchResponseBody([b.MessageQueueBean("a", 1, "t")]),
    b.TopicList("h:1", ["t"]),
    b.KVTable({"k": "v"}),
    b.KVConfigSerializeWrapper({"ns": {"k": "v"}}),
    b.SubscriptionGroupWrapper(forbidden_table={"g": {"t": 1}}),
    b.ConsumerOffsetSerializeWrapper(DataVersion(1, 2, 3), {"t@g": {0: 250, 1: 7}}),
    b.DelayOffsetSerializeWrapper(None, {1: 7}),
    b.TimerMetricsSerializeWrapper(timing_count={"t": b.TimerMetric(2, 5)}),
    LetterSelection(("U1",), ("k1", "k2"), 1, 2),
    RedriveReport("r", "g", 1, 2, 3, 4, True),
]

DIALECT: Final = [
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"h"},"brokerName":"a","cluster":"c"}]}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":5}}}',
    b'{"brokerAddrTable":{"a":{"brokerName":"a"},"b":{"$ref":"$.brokerAddrTable.a"}}}',
    b'{"clientID":"c","consumerDataSet":null}',
]


def _body_kinds() -> list[JsonBody[Any]]:
    """Return all JSON bodies of the request table, and those of state files, one for each type."""
    kinds: dict[Any, JsonBody[Any]] = {object: JsonBody(object)}
    for row in REQUESTS.values():
        for kind in (row.body, row.answer_body):
            # Of two that differ in their limit only, the bounded one.
            if isinstance(kind, JsonBody) and (
                kind.type not in kinds or kind.max_length is not None
            ):
                kinds[kind.type] = kind
    for body in BODIES:
        kinds.setdefault(type(body), JsonBody(type(body)))
    return sorted(kinds.values(), key=lambda kind: str(kind.type))


_BODY_KINDS: Final = _body_kinds()


def _body_corpus() -> list[bytes]:
    found = []
    of_type = {type(body): encode_body(body) for body in BODIES}
    for index, kind in enumerate(_BODY_KINDS):
        data = of_type.get(kind.type) or encode_body(sample(kind.type))
        found.append(bytes([index]) + data)
    return found + [b"\0" + data for data in [*DIALECT, *golden("body", "config")]]


def run_bodies(random: Random, data: bytes) -> object:
    """The first byte says which type the body is decoded to."""
    kind = _BODY_KINDS[data[0] % len(_BODY_KINDS) if data else 0]
    text = data[1:]
    try:
        value = kind.decode(text)
    finally:
        if random.random() < 0.1:
            _try_tables(text)
    # What was taken in can also be passed on, and says the same again; nulls aside.
    if kind.type is not object:
        assert kind.decode(encode_body(value)) == value
        assert decode_body(pretty(value).encode(), kind.type) == value
    return value


def _try_tables(data: bytes) -> None:
    for name in ("offsetTable", "messageQueueTable"):
        try:
            decode_queue_table(data, name, int)
        except REFUSALS:
            continue


_REGISTRATION: Final = b.RegisterBrokerBody(
    ["h:1"],
    b.TopicConfigSerializeWrapper(
        DataVersion(1, 2, 3),
        None,
        {"t": TopicConfig("t", {"+k": "v"}), "u": TopicConfig("u")},
        None,
        {"t": {"topic": "t"}},
    ),
)
_HEARTBEAT: Final = b.HeartbeatData(
    "client",
    [
        ConsumerData(
            "g", subscription_data_set=[SubscriptionData("t", tags_set=["a"], code_set=[97])]
        ),
        ConsumerData("h"),
    ],
    7,
    [ProducerData("p")],
)
_VERSIONS: Final = (MQVersion.V3_0_11 - 1, MQVersion.V4_9_4, MQVersion.V5_3_3)


def run_registration(random: Random, data: bytes) -> object:
    version, outcomes = random.choice(_VERSIONS), []
    for sent, compressed in ((data, False), (data, True), (zlib.compress(data, 1), True)):
        try:
            body = decode_register_body(sent, compressed=compressed, version=version)
            outcomes.append(repr(body))
        except ProtocolError as error:
            outcomes.append(str(error))
    return outcomes


def run_heartbeat(_: Random, data: bytes) -> object:
    return requests.HEART_BEAT.body.decode(data)


class _Socket(asyncio.Transport):
    """Is what a RecordReader sees of a socket, and of the TLS above it."""

    def __init__(self) -> None:
        super().__init__()
        self.got = bytearray()
        self.reads = True
        self._room = bytearray(300)

    def get_protocol(self) -> Any:
        return self

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_buffer(self, _wanted: int) -> bytearray:
        return self._room

    def buffer_updated(self, count: int) -> None:
        self.got += self._room[:count]


def run_tls_records(random: Random, data: bytes) -> object:
    """Check that TLS is given all bytes that came, in their order, but for the beginning of a head."""

    async def read() -> bytes:
        turns, under = RecordTurns(), _Socket()
        reader = RecordReader(turns, under)
        at = 0
        while at < len(data):
            end = at + random.choice((1, 3, 7, 100, 5000))
            reader.data_received(data[at:end])
            at = end
            if random.random() < 0.1:
                reader.hold()
            if random.random() < 0.3:
                reader.release()
            await asyncio.sleep(0)
        reader.release()
        for _ in range(len(data) // 5 + 2):
            await asyncio.sleep(0)
        assert under.reads
        return bytes(under.got)

    got = asyncio.run(read())
    assert data.startswith(got)
    assert len(data) - len(got) < 5
    return len(got)


def run_compression(_: Random, data: bytes) -> object:
    outcomes: list[object] = []
    for flag in (0x1, 0x101, 0x201, 0x301, 0x401):
        try:
            outcomes.append(decompress(data, flag, max_length=5000))
            assert len(outcomes[-1]) <= 5000  # type: ignore[arg-type]  # it is bytes
        except ProtocolError as error:
            outcomes.append(type(error))
    return outcomes


PROPERTIES: Final = encode_properties({"TAGS": "TagA", "KEYS": "k1 k2", "K": "v"}).encode()
_OFFSET_ID: Final = encode_offset_id(pack_host("10.0.0.1", 10911), 4096).encode()
_UNIQUE_ID: Final = (
    UniqueIdGenerator(bytes([10, 0, 0, 1]), 7, now_ms=lambda: 1_700_000_000_000, randbytes=bytes)
    .next()
    .encode()
)

TARGETS: Final = [
    Target("stream", _command_corpus(), run_stream, mutate_frames),
    Target("header", _header_corpus(), run_header),
    Target(
        "batch",
        [
            encode_batch([BatchEntry(1, b"one", PROPERTIES), BatchEntry(2, b"", b"")]),
            *golden("batch"),
        ],
        run_batch,
    ),
    Target(
        "properties",
        [PROPERTIES, PROPERTIES[:-1], *golden("properties", "properties-parse")],
        run_properties,
    ),
    Target("ids", [_OFFSET_ID, _UNIQUE_ID], run_ids),
    Target(
        "recall-handle",
        [b"v1 orders broker-a 1700000003001 U1", b"djEgb3JkZXJzIGIgMTcwMDAwMDAwMzAwMSBVMQ=="],
        run_recall_handle,
    ),
    Target(
        "haproxy",
        [
            b"PROXY TCP4 192.0.2.1 192.0.2.2 4567 8081\r\nPRI * HTTP/2.0",
            b"PROXY UNKNOWN\r\nPRI",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\2\1\xc0\0\2\2\x11\xd7\x1f\x91PRI",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x27" + bytes(range(39)) + b"PRI",
            b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0PRI",
        ],
        run_haproxy,
    ),
    Target(
        "traces",
        [
            b"Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01key\x01h:1\x014\x015\x010\x01off\x01true\x02",
            b"SubBefore\x011\x01r\x01g\x01q\x01id\x010\x01k\x02SubAfter\x01q\x01id\x015\x01true\x01k\x010\x02",
            b"EndTransaction\x011\x01r\x01g\x01t\x01id\x01tag\x01k\x01h:1\x012\x01tx\x01COMMIT_MESSAGE\x01true\x02",
            b"Recall\x011\x01r\x01g\x01t\x01id\x01true\x02",
            b"+a=1,-b",
        ],
        run_traces,
    ),
    Target("bodies", _body_corpus(), run_bodies),
    Target(
        "registration",
        [
            encode_register_body(_REGISTRATION),
            encode_register_body(_REGISTRATION, compressed=True),
            zlib.decompress(encode_register_body(_REGISTRATION, compressed=True)),
            *golden("register-body"),
        ],
        run_registration,
    ),
    Target(
        "heartbeat",
        [
            encode_body(_HEARTBEAT),
            encode_body(b.HeartbeatData("client", without_sub=True)),
            b'{clientID:"c",consumerDataSet:[{groupName:"g",subscriptionDataSet:[null]}]}',
        ],
        run_heartbeat,
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
    Target(
        "tls-records",
        [b"".join(bytes((23, 3, 3, 0, size)) + bytes(size) for size in (22, 1, 0, 200, 22))],
        run_tls_records,
        cost=20,
        takes_long=False,
        is_twin=False,
    ),
    Target("compression", [compress(b"body " * 50, t) for t in CompressionType], run_compression),
]

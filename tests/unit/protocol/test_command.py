from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.records import header_records, header_types, texts

from cometmq.errors import ProtocolError
from cometmq.protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from cometmq.protocol.command import (
    MAX_EXT_FIELDS,
    RemotingCommand,
    Request,
    RequestDecoder,
    decode_command,
    encode_answer,
    encode_command,
    encode_header,
    ext_of,
    peek_code,
    request,
    response,
)
from cometmq.protocol.frame import Frame, FrameDecoder, SerializeType
from cometmq.protocol.header import Header, header_from_ext, header_to_ext
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

int32 = st.integers(-(2**31), 2**31 - 1)
both_forms = pytest.mark.parametrize("form", list(SerializeType))

commands = st.builds(
    RemotingCommand,
    st.integers(0, 0xFFFF),
    ext=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50),
    opaque=int32,
    flag=int32,
    remark=st.none() | texts.filter(bool),
    language=st.sampled_from(["JAVA", "CPP", "PYTHON", "GO", "RUST"]),
    version=st.integers(0, 0xFFFF),
)


def frame_of(data: bytes) -> Frame:
    (frame,) = FrameDecoder().feed(data)
    return frame


def json_frame(**fields: object) -> Frame:
    return Frame(SerializeType.JSON, json.dumps(fields).encode(), b"")


def attributes(command: RemotingCommand) -> dict[str, object]:
    names = ("body", "code", "ext", "flag", "language", "opaque", "remark", "version")
    return {name: getattr(command, name) for name in names}


@both_forms
@given(command=commands)
def test_a_command_comes_back_as_it_was_sent(command: RemotingCommand, form: SerializeType) -> None:
    frame = frame_of(encode_command(command, form))
    assert frame.serialize_type == form
    assert peek_code(frame) == command.code
    assert attributes(decode_command(frame)) == attributes(command)


def test_json_header_has_java_s_order_and_no_nulls() -> None:
    command = RemotingCommand(105, ext={"topic": "t"}, opaque=7, language="JAVA", version=479)
    assert encode_header(command) == (
        b'{"code":105,"extFields":{"topic":"t"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_binary_header_layout() -> None:
    command = RemotingCommand(
        105, ext={"topic": "T"}, opaque=7, flag=1, remark="no", language="GO", version=479
    )
    assert encode_header(command, SerializeType.ROCKETMQ) == (
        b"\0\x69\x09\x01\xdf\0\0\0\7\0\0\0\1\0\0\0\2no\0\0\0\x0c\0\5topic\0\0\0\1T"
    )


def test_negative_codes_travel_in_json() -> None:
    frame = frame_of(encode_command(RemotingCommand(-1000)))
    assert peek_code(frame) == decode_command(frame).code == -1000


@pytest.mark.parametrize("code", [-1, 65536, RequestCode.POP_MESSAGE])
def test_a_code_beyond_16_bits_has_no_binary_form(code: int) -> None:
    with pytest.raises(ProtocolError, match="16 bits"):
        encode_command(RemotingCommand(code), SerializeType.ROCKETMQ)


def test_only_code_opaque_and_ext_fields_make_a_request() -> None:
    command = decode_command(json_frame(code=105, opaque=3, extFields={"topic": "t"}))
    assert (command.code, command.opaque, command.ext) == (105, 3, {"topic": "t"})
    assert (command.flag, command.remark, command.language) == (0, None, "OTHER")


def test_the_code_need_not_come_first() -> None:
    assert peek_code(json_frame(opaque=3, code=105)) == 105
    assert peek_code(Frame(0, b' { "code" : 105 }', b"")) == 105
    assert peek_code(Frame(0, b'{"code":105}', b"")) == 105


def test_ext_values_of_other_types_become_their_texts() -> None:
    command = decode_command(json_frame(code=1, extFields={"a": 5, "b": True, "c": None, "d": 1.5}))
    assert command.ext == {"a": "5", "b": "true", "d": "1.5"}


def test_a_language_may_come_as_a_number() -> None:
    assert decode_command(json_frame(code=1, language=9)).language == "GO"
    assert decode_command(json_frame(code=1, language=99)).language == "OTHER"
    assert decode_command(json_frame(code=1, language="ZIG")).language == "ZIG"


@pytest.mark.parametrize("header_type", header_types(), ids=lambda t: t.__name__)
@given(data=st.data())
def test_every_header_record_comes_back(header_type: type[Header], data: st.DataObject) -> None:
    header = data.draw(header_records(header_type))
    assert header_from_ext(header_to_ext(header), header_type) == header
    command = request(310, header, b"body")
    command.opaque = 17
    # In turn for each record: to draw one is what this test takes time for.
    for form in SerializeType:
        frame = frame_of(encode_command(command, form))
        decoder = RequestDecoder()
        decoder.register(310, header_type)
        decoded = decoder.decode(frame, peek_code(frame))
        assert decoded.header == header
        assert (decoded.code, decoded.opaque, decoded.body) == (310, 17, b"body")
        assert (decoded.language, decoded.version) in (
            ("PYTHON", CURRENT_VERSION),
            (3, CURRENT_VERSION),
        )
        assert ext_of(decoded) == command.ext
        assert decode_command(frame).header(header_type) == header


def send_decoder() -> RequestDecoder:
    decoder = RequestDecoder()
    decoder.register(310, SendMessageRequestHeaderV2)
    return decoder


SEND = {"a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1", "h": "0"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"e": "one"}, "extFields.e"),
        ({"e": "1.5"}, "extFields.e"),
        ({"e": ""}, "extFields.e"),
        ({"e": None}, "extFields.e"),
        ({"e": {}}, "extFields.e"),
        ({"e": str(2**31)}, "extFields.e"),
        ({"g": str(-(2**63) - 1)}, "extFields.g"),
        ({"g": "9" * 5000}, "extFields.g"),
        ({"k": "maybe"}, "extFields.k"),
        ({"b": 5}, "extFields.b"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(change: dict[str, object], named: str) -> None:
    frame = json_frame(code=310, extFields={**SEND, **change})
    with pytest.raises(ProtocolError, match=rf"SendMessageRequestHeaderV2.*{named}"):
        send_decoder().decode(frame, 310)


@both_forms
def test_a_missing_field_is_named(form: SerializeType) -> None:
    ext = {key: value for key, value in SEND.items() if key != "b"}
    frame = frame_of(encode_command(RemotingCommand(310, ext=ext), form))
    with pytest.raises(ProtocolError, match=r"SendMessageRequestHeaderV2.*`b`"):
        send_decoder().decode(frame, 310)


def test_a_request_without_ext_fields_has_a_header_only_if_no_field_is_required() -> None:
    decoder = send_decoder()
    with pytest.raises(ProtocolError, match="SendMessageRequestHeaderV2"):
        decoder.decode(json_frame(code=310), 310)


def test_numbers_and_booleans_may_come_unquoted_or_in_capitals() -> None:
    decoder = send_decoder()
    decoder.register(30, GetMaxOffsetRequestHeader)
    header = decoder.decode(
        json_frame(code=30, extFields={"topic": "t", "queueId": 3, "committed": "FALSE"}), 30
    ).header
    assert header == GetMaxOffsetRequestHeader("t", 3, False)


def test_the_text_null_stays_a_text() -> None:
    frame = json_frame(code=310, extFields={**SEND, "b": "null", "i": "null"})
    decoded: Request[SendMessageRequestHeaderV2] = send_decoder().decode(frame, 310)
    assert (decoded.header.topic, decoded.header.properties) == ("null", "null")


def test_unknown_fields_are_ignored_but_kept_as_ext() -> None:
    frame = json_frame(code=310, extFields={**SEND, "n": "b", "AccessKey": "k"}, more=[1])
    decoded: Request[SendMessageRequestHeaderV2] = send_decoder().decode(frame, 310)
    assert decoded.header.broker_name == "b"
    assert ext_of(decoded)["AccessKey"] == "k"


@pytest.mark.parametrize("remark", [None, "FOUND"])
def test_success_made_by_hand_is_what_the_encoder_makes(remark: str | None) -> None:
    header = SendMessageResponseHeader("0A", 3, 77)
    slow = response(ResponseCode.SUCCESS, remark, header=header, body=b"body")
    slow.opaque = 12
    fast = encode_answer(
        12,
        b'"msgId":"0A","queueId":"3","queueOffset":"77"',
        body_length=4,
        remark=remark.encode() if remark else None,
    )
    assert fast + b"body" == encode_command(slow)


deep = b'{"code":310,"extFields":{"a":' + b"[" * 100_000
BROKEN_JSON = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"code"',
    b'{"code":',
    b'{"code":1e99}',
    b'{"code":99999999999}',
    b'{"code":' + b"9" * 5000,
    b'{"code":' + b"9" * 50_000 + b"}",
    b'{"code":"31O"}',
    b'{"code":310,"opaque":2147483648}',
    b'{"code":310,"extFields":[]}',
    b'{"code":310,"extFields":{"b":"\xff\xfe"}}',
    b'{"code":310,"remark":"\xc3"}',
    b'{"code":310,"language":"\\ud800"}',
    b'{"code":310} trailing',
    b'{"x":' + b"[" * 100_000,
    deep,
    b'{"a":' * 100_000,
]


@pytest.mark.parametrize("header", BROKEN_JSON, ids=lambda h: repr(h[:30]))
def test_a_broken_json_header_is_a_protocol_error(header: bytes) -> None:
    frame = Frame(SerializeType.JSON, header, b"")
    with pytest.raises(ProtocolError):
        decode_command(frame)
    with pytest.raises(ProtocolError):
        send_decoder().decode(frame, 310)
    with contextlib.suppress(ProtocolError):
        peek_code(frame)


fixed = b"\0\x69\x09\x01\xdf\0\0\0\7\0\0\0\1"
BROKEN_BINARY = [
    b"",
    fixed[:-1],
    fixed,
    fixed + b"\0\0\0",
    fixed + b"\0\0\0\0",  # no length of the ext fields
    fixed + b"\0\0\0\5abcd",
    fixed + b"\xff\xff\xff\xff\0\0\0\0",  # a negative length
    fixed + b"\x7f\xff\xff\xff\0\0\0\0",
    fixed + b"\0\0\0\1\xff\0\0\0\0",  # a remark that is not UTF-8
    fixed + b"\0\0\0\0\0\0\0\1\0",  # ext fields that break off
    fixed + b"\0\0\0\0\0\0\0\3\0\1a",
    fixed + b"\0\0\0\0\0\0\0\7\0\1a\0\0\0\1",
    fixed + b"\0\0\0\0\0\0\0\7\xff\xffa\0\0\0\0",
]


@pytest.mark.parametrize("header", BROKEN_BINARY)
def test_a_broken_binary_header_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(Frame(SerializeType.ROCKETMQ, header, b""))


def test_an_unknown_serialize_type_is_a_protocol_error() -> None:
    for read in (peek_code, decode_command):
        with pytest.raises(ProtocolError, match="serialize type 7"):
            read(Frame(7, b"{}", b""))


@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_any_bytes_are_a_command_or_a_protocol_error(header: bytes, form: int) -> None:
    frame = Frame(form, header, b"")
    for read in (peek_code, decode_command, lambda f: send_decoder().decode(f, 310)):
        with contextlib.suppress(ProtocolError):
            read(frame)


def test_pull_header_needs_its_nine_fields() -> None:
    with pytest.raises(ProtocolError, match="PullMessageRequestHeader"):
        header_from_ext({}, PullMessageRequestHeader)


@pytest.mark.parametrize("name", ["", " ", "  "])
def test_no_json_stands_for_fields_that_were_not_decoded(name: str) -> None:
    """Access control judges `ext_of`, handlers the typed header: both come from the ext fields."""
    header = b'{"code":105,"extFields":{"topic":"a"},"%b":%b}'
    decoder = RequestDecoder()
    decoder.register(105, GetRouteInfoRequestHeader)
    for value in (b'{"topic":"b","AccessKey":"admin"}', b'[0,"",""]', b'["b"]', b'"b"', b"1"):
        frame = Frame(SerializeType.JSON, header % (name.encode(), value), b"")
        with pytest.raises(ProtocolError, match="Expected `null`"):
            decoder.decode(frame, 105)
    frame = Frame(SerializeType.JSON, header % (name.encode(), b"null"), b"")
    decoded = decoder.decode(frame, 105)
    assert ext_of(decoded) == {"topic": decoded.header.topic} == {"topic": "a"}
    assert decoded.frame is frame


def test_values_for_blank_field_names_are_not_built() -> None:
    """A list of 300,000 lists took 140 ms of the loop when one of our fields had the type `Any`."""
    lists = b",".join([b"[]"] * 300_000)
    frame = Frame(SerializeType.JSON, b'{"code":310,"  ":[%b]}' % lists, b"")
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="Expected `null`"):
        send_decoder().decode(frame, 310)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_a_header_with_too_many_ext_fields_is_decoded_once() -> None:
    fields = {**SEND, **{f"x{number}": "v" for number in range(MAX_EXT_FIELDS)}}
    decoded: Request[Any] = send_decoder().decode(json_frame(code=310, extFields=fields), 310)
    with pytest.raises(ProtocolError, match="the limit MAX_EXT_FIELDS") as refused:
        ext_of(decoded)
    assert refused.value.limit == "MAX_EXT_FIELDS"

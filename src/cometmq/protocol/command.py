"""Encode and decode remoting commands: the header and body of a frame (Java: RemotingCommand).

A header can be decoded in two ways. `decode_command` keeps the ext fields as texts and suits any
command. `RequestDecoder` decodes the header of a known request code straight into its typed record,
in one pass over the JSON; a broker does so for every request it serves.

ROCKETMQ form of a header, big-endian:

    size    field
    2       code
    1       language code
    2       version
    4       opaque
    4       flag
    4+n     remark: length, bytes
    4+n     ext fields: length of all, then per entry key length (2), key, value length (4), value
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.errors import ProtocolError
from cometmq.protocol.codes import CURRENT_VERSION, LanguageCode, RequestCode
from cometmq.protocol.envelope import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    AnyHeader,
    CodeOnly,
    Ext,
    ExtOnly,
    JsonHeader,
    Request,
    Text,
)
from cometmq.protocol.frame import Frame, SerializeType, encode_frame, frame_prefix
from cometmq.protocol.header import Header, HeaderT, header_from_ext, header_to_ext

__all__ = [
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "Ext",
    "RemotingCommand",
    "Request",
    "RequestDecoder",
    "answer_template",
    "decode_command",
    "encode_answer",
    "encode_command",
    "encode_header",
    "encode_parts",
    "ext_of",
    "peek_code",
    "request",
    "response",
]

# Comparing with a plain number takes a third of the time of comparing with an enum's member.
_JSON: Final = int(SerializeType.JSON)
_LANGUAGE_NAMES: Final = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES: Final = {code.name: code.value for code in LanguageCode}
# No header class has even thirty fields; decoding a field takes a microsecond.
MAX_EXT_FIELDS: Final = 1_024
# So long a body is not joined with its header to be sent.
_LONG_BODY: Final = 64 * 1024
# Fields that `repr` does not show: anybody with a signature can repeat the request.
_SECRETS: Final = frozenset({"secretKey", "SecurityToken", "Signature"})
_BINARY: Final = struct.Struct(">HBHii")
assert _BINARY.size == 13


class RemotingCommand:
    """One request or response with its ext fields as texts. `body` is empty if there is none."""

    __slots__ = ("body", "code", "ext", "flag", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        *,
        ext: Ext | None = None,
        body: bytes | memoryview = b"",
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: str = "PYTHON",
        version: int = CURRENT_VERSION,
    ) -> None:
        self.code = code
        self.ext: Ext = {} if ext is None else ext
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    def header(self, header_type: type[HeaderT]) -> HeaderT:
        """Return the ext fields as a typed record. ProtocolError names the field that does not
        fit.
        """
        return header_from_ext(self.ext, header_type)

    def __repr__(self) -> str:
        return (
            f"RemotingCommand(code={self.code}, opaque={self.opaque}, flag={self.flag}, "
            f"remark={self.remark!r}, ext={_without_secrets(self.ext)!r}, "
            f"body=<{len(self.body)} bytes>)"
        )


def _without_secrets(ext: Ext) -> Ext:
    return {name: "***" if name in _SECRETS else text for name, text in ext.items()}


def request(code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """Return a request; the connection that sends it sets its opaque."""
    return RemotingCommand(code, ext=header_to_ext(header) if header else None, body=body)


def response(
    code: int,
    remark: str | None = None,
    *,
    header: Header | None = None,
    ext: Ext | None = None,
    body: bytes | memoryview = b"",
) -> RemotingCommand:
    """Return a response; the connection that answers with it sets its opaque."""
    fields = dict(ext) if ext else {}
    if header is not None:
        fields.update(header_to_ext(header))
    return RemotingCommand(code, ext=fields, body=body, flag=FLAG_RESPONSE, remark=remark)


# Encoding


_encoder = msgspec.json.Encoder()


def encode_header(
    command: RemotingCommand, serialize_type: SerializeType = SerializeType.JSON
) -> bytes:
    """Return the header bytes of a command, in the given form."""
    if serialize_type is SerializeType.ROCKETMQ:
        return _encode_binary(command)
    return _encoder.encode(
        JsonHeader(
            command.code,
            command.ext or None,
            command.flag,
            command.language,
            command.opaque,
            command.remark,
            "JSON",
            command.version,
        )
    )


def encode_command(
    command: RemotingCommand, serialize_type: SerializeType = SerializeType.JSON
) -> bytes:
    """Return the whole frame of a command."""
    return encode_frame(encode_header(command, serialize_type), command.body, serialize_type)


def encode_parts(
    command: RemotingCommand, serialize_type: SerializeType = SerializeType.JSON
) -> tuple[bytes, ...]:
    """Return the whole frame of a command, a long body by itself: copying megabytes takes milliseconds.

    A view of bytes that may change, as of a log's file, is copied.
    """
    body = command.body
    if len(body) < _LONG_BODY or not isinstance(body, bytes):
        return (encode_command(command, serialize_type),)
    header = encode_header(command, serialize_type)
    return frame_prefix(len(header), len(body), serialize_type) + header, body


def encode_answer(
    opaque: int,
    ext_json: bytes,
    *,
    code: int = 0,
    body_length: int = 0,
    remark: bytes | None = None,
) -> bytes:
    """Return prefix and JSON header of a response whose ext fields are JSON text already.

    The broker uses this for its most frequent answers. `ext_json` is the text inside the braces,
    with every value quoted; `remark` is plain ASCII.
    """
    header = b'{"code":%d,"extFields":{%b},"flag":1,"language":"PYTHON","opaque":%d,%b%b' % (
        code,
        ext_json,
        opaque,
        b"" if remark is None else b'"remark":"%b",' % remark,
        _JSON_TAIL,
    )
    return frame_prefix(len(header), body_length) + header


def answer_template(ext_json: bytes) -> bytes:
    """Return the header of a successful answer as a template for `%`: first come the places in
    `ext_json` (itself a template), then the opaque. So an answer takes one formatting step instead
    of two.
    """
    return b'{"code":0,"extFields":{%b},"flag":1,"language":"PYTHON","opaque":%%d,%b' % (
        ext_json,
        _JSON_TAIL,
    )


_JSON_TAIL: Final = b'"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION


def _encode_binary(command: RemotingCommand) -> bytes:
    if not 0 <= command.code <= 0xFFFF:
        raise ProtocolError(f"code {command.code} does not fit the 16 bits of a ROCKETMQ header")
    remark = (command.remark or "").encode()
    entries = bytearray()
    for key, value in command.ext.items():
        name, text = key.encode(), value.encode()
        if len(name) > 0x7FFF:
            raise ProtocolError(f"an ext field name of {len(name)} bytes is too long, limit 32767")
        entries += len(name).to_bytes(2, "big") + name + len(text).to_bytes(4, "big") + text
    fixed = _BINARY.pack(
        command.code,
        _LANGUAGE_CODES.get(command.language, LanguageCode.OTHER),
        command.version,
        command.opaque,
        command.flag,
    )
    return b"".join(
        (
            fixed,
            len(remark).to_bytes(4, "big"),
            remark,
            len(entries).to_bytes(4, "big"),
            entries,
        )
    )


# Decoding

_ext_decoder = msgspec.json.Decoder(ExtOnly)
# Java also reads quoted numbers.
_any_decoder = msgspec.json.Decoder(AnyHeader, strict=False)
# msgspec raises these for bytes that are no JSON or no UTF-8, or are nested a thousand levels deep.
_JSON_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_command(frame: Frame) -> RemotingCommand:
    """Decode any command. Raise ProtocolError when the header is none."""
    if frame.serialize_type == SerializeType.ROCKETMQ:
        return _decode_binary(frame.header, frame.body)
    _check_json(frame)
    try:
        header = _any_decoder.decode(frame.header)
    except _JSON_FAULTS as error:
        raise ProtocolError(f"a JSON header does not decode: {error}") from error
    return RemotingCommand(
        header.code,
        ext=_texts(header.extFields),
        body=frame.body,
        opaque=header.opaque,
        flag=header.flag,
        remark=header.remark,
        language=_language_name(header.language),
        version=header.version,
    )


def ext_of(request: Request[Any]) -> Ext:
    """Return all ext fields of a request as texts, including those that its typed header lacks."""
    if request.texts is not None:
        return request.texts
    frame = request.frame
    if frame.serialize_type == _JSON:
        try:
            ext = _ext_decoder.decode(frame.header).extFields or {}
        except _JSON_FAULTS:
            # A value may be no text, which no client in use sends.
            return decode_command(frame).ext
        if len(ext) > MAX_EXT_FIELDS:
            raise _too_many_fields()
        return ext
    return decode_command(frame).ext


class RequestDecoder:
    """Decodes the requests of registered codes into `Request[H]`."""

    def __init__(self) -> None:
        self._types: dict[int, type[Header]] = {}
        self._decoders: dict[int, msgspec.json.Decoder[Any]] = {}

    def register(self, code: int, header_type: type[Header]) -> None:
        self._types[code] = header_type
        self._decoders[code] = msgspec.json.Decoder(
            # The ext fields may be missing, or null.
            Request[header_type | None],  # type: ignore[valid-type,type-var]  # made at run time
            strict=False,
        )

    def __contains__(self, code: int) -> bool:
        return code in self._types

    def decode(self, frame: Frame, code: int) -> Request[Any]:
        """Decode the request in `frame`, whose code comes from `peek_code` and is registered.

        Raise ProtocolError, which names what does not fit; `decode_command` can then find out whom
        to answer.
        """
        decoded: Request[Any]
        if frame.serialize_type == _JSON:
            try:
                decoded = self._decoders[code].decode(frame.header)
            except _JSON_FAULTS as error:
                raise ProtocolError(f"{self._types[code].__name__}: {error}") from error
            decoded.texts = decoded.typed_body = None
        else:
            decoded = self._decode_binary(frame, code)
        if decoded.header is None:
            decoded.header = header_from_ext({}, self._types[code])
        decoded.frame = frame
        return decoded

    def _decode_binary(self, frame: Frame, code: int) -> Request[Any]:
        command = _decode_binary(frame.header, frame.body)
        return Request(
            code=code,
            header=header_from_ext(command.ext, self._types[code]),
            flag=command.flag,
            language=command.language,
            opaque=command.opaque,
            version=command.version,
            remark=command.remark,
            texts=command.ext,
        )


_code_decoder = msgspec.json.Decoder(CodeOnly, strict=False)
# Every client in use writes the code first, so twelve bytes are enough to read it. A client that
# does not costs a second pass over the JSON.
_CODE_START_LENGTH: Final = 12
_CODES_BY_START: Final = {
    (b'{"code":%d,"' % code)[:_CODE_START_LENGTH]: int(code)
    for code in RequestCode
    if 10 <= code <= 999
}


def peek_code(frame: Frame) -> int:
    """Return the code of a header without decoding the rest. Raise ProtocolError if it has none."""
    header = frame.header
    if frame.serialize_type == _JSON:
        code = _CODES_BY_START.get(header[:_CODE_START_LENGTH])
        if code is not None:
            return code
    if frame.serialize_type == SerializeType.ROCKETMQ:
        if len(header) < _BINARY.size:
            raise ProtocolError(f"a ROCKETMQ header of {len(header)} bytes, at least 21 are needed")
        return int.from_bytes(header[:2], "big")
    _check_json(frame)
    try:
        return _code_decoder.decode(header).code
    except _JSON_FAULTS as error:
        raise ProtocolError(f"a JSON header does not decode: {error}") from error


def _check_json(frame: Frame) -> None:
    if frame.serialize_type != SerializeType.JSON:
        raise ProtocolError(
            f"serialize type {frame.serialize_type} of a header is unknown; 0 is JSON, 1 ROCKETMQ"
        )


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _BINARY.unpack_from(header)
        remark, position = _sized(header, _BINARY.size, 4)
        entries, position = _sized(header, position, 4)
        ext = {}
        at = count = 0
        while at < len(entries):
            count += 1
            if count > MAX_EXT_FIELDS:  # counts entries, as one name may be repeated
                raise _too_many_fields()
            key, at = _sized(entries, at, 2)
            value, at = _sized(entries, at, 4)
            ext[key.decode()] = value.decode()
        text = remark.decode() if remark else None
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a ROCKETMQ header does not decode: {error}") from error
    return RemotingCommand(
        code,
        ext=ext,
        body=body,
        opaque=opaque,
        flag=flag,
        remark=text,
        language=_language_name(language),
        version=version,
    )


def _too_many_fields() -> ProtocolError:
    return ProtocolError(
        f"a header has more than {MAX_EXT_FIELDS} ext fields, the limit MAX_EXT_FIELDS is "
        f"{MAX_EXT_FIELDS}; carry such data in the body",
        limit="MAX_EXT_FIELDS",
    )


def _sized(data: bytes, position: int, width: int) -> tuple[bytes, int]:
    start = position + width
    length = int.from_bytes(data[position:start], "big", signed=True)
    end = start + length
    if length < 0 or end > len(data):
        raise ProtocolError(
            f"a ROCKETMQ header declares {length} bytes at {position} of {len(data)}"
        )
    return data[start:end], end


def _texts(ext: Mapping[str, Text] | None) -> Ext:
    if not ext:
        return {}
    if len(ext) > MAX_EXT_FIELDS:
        raise _too_many_fields()
    return {key: _text(value) for key, value in ext.items() if value is not None}


def _text(value: Text) -> str:
    if isinstance(value, str):
        return value
    return "true" if value is True else "false" if value is False else str(value)


def _language_name(language: str | int | None) -> str:
    if isinstance(language, str):
        return language
    return _LANGUAGE_NAMES.get(language, "OTHER") if language is not None else "OTHER"

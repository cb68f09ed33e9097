"""Decodes one body by a schema, in a process of its own: `python -m cometmq.console.schemas.decoding`.

It reads an order in JSON from its input and writes its answer in JSON. A hostile body can only end this
process, by its limits on processor time and memory. It needs fastavro, or protobuf with
proto-schema-parser; the extra `console` brings them.
"""

from __future__ import annotations

import base64
import io
import json
import resource
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Any, Final

_CPU_S: Final = 3
_MEMORY_BYTES: Final = 512 * 1024 * 1024
_MAX_RECORDS: Final = 1000
_MAX_TEXT: Final = 1024 * 1024
# The prefixes that an Avro value may have: nothing; the marker and schema id of Confluent's registry;
# the marker and fingerprint of Avro's single-object encoding.
_AVRO_PREFIXES: Final = ((b"", 0), (b"\x00", 5), (b"\xc3\x01", 10))
_AVRO_FILE: Final = b"Obj\x01"


def main() -> None:
    """Carry the order of the input out."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    order = json.load(sys.stdin.buffer)
    try:
        answer = _ORDERS[order["kind"], order["do"]](order)
    except ModuleNotFoundError as error:
        answer = {"error": f"{error.name} is missing: pip install 'cometmq[console]'"}
    except MemoryError:
        answer = {"error": "decoding it takes too much memory; look at its bytes"}
    # The libraries raise errors of many kinds for what is wrong in a schema or a body.
    except Exception as error:  # noqa: BLE001 - see above
        answer = {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    json.dump(answer, sys.stdout)


def _check_avro(order: dict[str, Any]) -> dict[str, Any]:
    _avro_schema(order["text"])
    return {}


def _decode_avro(order: dict[str, Any]) -> dict[str, Any]:
    import fastavro

    body = base64.b64decode(order["body"])
    if body.startswith(_AVRO_FILE):
        records = []
        for record in fastavro.reader(io.BytesIO(body)):
            records.append(record)
            if len(records) == _MAX_RECORDS:
                break
        return {"text": _text(records)}
    schema, first_error = _avro_schema(order["text"]), None
    for marker, length in _AVRO_PREFIXES:
        if not body.startswith(marker) or len(body) < length:
            continue
        stream = io.BytesIO(body[length:])
        try:
            value = fastavro.schemaless_reader(stream, schema, None)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - another form may fit
            first_error = first_error or error
            continue
        left = len(body) - length - stream.tell()
        if left == 0:
            return {"text": _text(value)}
        first_error = first_error or ValueError(f"{left} bytes are left after the value")
    raise first_error or ValueError("the body is empty")


def _avro_schema(text: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(text))


def _check_protobuf(order: dict[str, Any]) -> dict[str, Any]:
    from cometmq.console.schemas.protos import compiled, message_names

    descriptor = compiled(order["text"])
    names = message_names(descriptor)
    wanted = order["message"] or (names[0] if len(names) == 1 else "")
    if wanted not in names:
        which = f"has no message {wanted!r}" if wanted else "has several messages"
        raise ValueError(f"the schema {which}: name one of {', '.join(names[:50]) or '(none)'}")
    _message_class(descriptor, wanted)
    return {
        "message": wanted,
        "compiled": base64.b64encode(descriptor.SerializeToString()).decode(),
    }


def _decode_protobuf(order: dict[str, Any]) -> dict[str, Any]:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.json_format import MessageToJson
    from google.protobuf.unknown_fields import UnknownFieldSet

    descriptor = FileDescriptorProto.FromString(base64.b64decode(order["compiled"]))
    message = _message_class(descriptor, order["message"])()
    message.ParseFromString(base64.b64decode(order["body"]))
    text = MessageToJson(message, preserving_proto_field_name=True, ensure_ascii=False)
    unknown = len(UnknownFieldSet(message))
    note = f"{unknown} fields are not in the schema." if unknown else ""
    return {"text": text[:_MAX_TEXT], "note": note}


def _message_class(descriptor: Any, name: str) -> Any:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for needed in descriptor.dependency:
        for file in _google_files(needed):
            pool.Add(file)
    pool.Add(descriptor)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _google_files(name: str) -> list[Any]:
    """Return one of Google's own files and those that it imports, imported files first."""
    from google.protobuf import (
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    # A schema names files; none of its names is imported.
    known = (
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    made = FileDescriptorProto()
    for module in known:
        if module.DESCRIPTOR.name == name:
            module.DESCRIPTOR.CopyToProto(made)
            break
    else:
        raise ValueError(f"the schema imports {name}, which is not known here")
    return [*(file for needed in made.dependency for file in _google_files(needed)), made]


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)[:_MAX_TEXT]


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


_ORDERS: Final[dict[tuple[str, str], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    ("avro", "check"): _check_avro,
    ("avro", "decode"): _decode_avro,
    ("protobuf", "check"): _check_protobuf,
    ("protobuf", "decode"): _decode_protobuf,
}

if __name__ == "__main__":
    main()

"""Decode one body by a schema, in a process of its own: `python -m cometmq.console.schemas.decoding`.

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

from cometmq.payloads.avro import AvroSchema
from cometmq.payloads.framing import CONFLUENT, SINGLE_OBJECT

_CPU_S: Final = 3
_MEMORY_BYTES: Final = 512 * 1024 * 1024
_MAX_RECORDS: Final = 1000
_MAX_TEXT: Final = 1024 * 1024
# The prefixes that an Avro value may have.
_AVRO_PREFIXES: Final = ((b"", 0), CONFLUENT, SINGLE_OBJECT)
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
    # The libraries raise errors of many kinds for faults in a schema or a body.
    except Exception as error:  # noqa: BLE001 - see above
        answer = {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    json.dump(answer, sys.stdout)


def _check_avro(order: dict[str, Any]) -> dict[str, Any]:
    AvroSchema(order["text"])
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
    schema, first_error = AvroSchema(order["text"]), None
    for marker, length in _AVRO_PREFIXES:
        if not body.startswith(marker) or len(body) < length:
            continue
        try:
            return {"text": _text(schema.read(body[length:]))}
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - another form may fit
            first_error = first_error or error
    raise first_error or ValueError("the body is empty")


def _check_protobuf(order: dict[str, Any]) -> dict[str, Any]:
    from cometmq.payloads.protos import compiled, message_class, message_names

    descriptor = compiled(order["text"])
    names = message_names(descriptor)
    wanted = order["message"] or (names[0] if len(names) == 1 else "")
    if wanted not in names:
        which = f"has no message {wanted!r}" if wanted else "has several messages"
        raise ValueError(f"the schema {which}: name one of {', '.join(names[:50]) or '(none)'}")
    message_class(descriptor, wanted)
    return {
        "message": wanted,
        "compiled": base64.b64encode(descriptor.SerializeToString()).decode(),
    }


def _decode_protobuf(order: dict[str, Any]) -> dict[str, Any]:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.json_format import MessageToJson
    from google.protobuf.unknown_fields import UnknownFieldSet

    from cometmq.payloads.protos import message_class

    descriptor = FileDescriptorProto.FromString(base64.b64decode(order["compiled"]))
    message = message_class(descriptor, order["message"])()
    message.ParseFromString(base64.b64decode(order["body"]))
    text = MessageToJson(message, preserving_proto_field_name=True, ensure_ascii=False)
    unknown = len(UnknownFieldSet(message))
    note = f"{unknown} fields are not in the schema." if unknown else ""
    return {"text": text[:_MAX_TEXT], "note": note}


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

"""Turn messages of gRPC clients into those of brokers, and back (Java: SendMessageActivity, GrpcConverter)."""

from __future__ import annotations

import hashlib
import zlib
from typing import Final

from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.sysflag import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError
from cometmq.proxy.wire.times import milliseconds_of

BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31

# Properties that users cannot set, and do not see among their own.
RESERVED: Final = (
    p.RESERVED
    | p.OF_ONE_SENDING
    | {
        p.KEYS,
        p.TAGS,
        p.SHARDING_KEY,
        p.PRIORITY,
        p.FIRST_POP_TIME,
        p.ORIGIN_GROUP,
        BORN_HOST,
        BORN_TIMESTAMP,
        TRACE_CONTEXT,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID,
        "__LITE_TOPIC",
    }
)
_DELAYS: Final = (p.DELAY_TIME_LEVEL, p.TIMER_DELIVER_MS, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS)


def type_of(properties: dict[str, str]) -> str:
    """Return the type of a message by its properties, spelled as in the attribute message.type."""
    if properties.get(p.TRANSACTION_PREPARED) == "true":
        return "TRANSACTION"
    if any(name in properties for name in _DELAYS):
        return "DELAY"
    if p.SHARDING_KEY in properties:
        return "FIFO"
    if p.PRIORITY in properties:
        return "PRIORITY"
    return "NORMAL"


def properties_of(
    message: wire.Message, topic: str, now_ms: int, settings: ProxySettings
) -> dict[str, str]:
    """Return the properties under which a broker stores a message. Raises RefusedError."""
    system = message.system_properties
    properties = dict(message.user_properties)
    _check_user(properties, settings.user_property_max_num)
    if system.lite_topic:
        raise RefusedError(
            wire.UNSUPPORTED,
            "the message names a lite topic, which this proxy does not serve; send it to a topic",
        )
    if not system.message_id.strip():
        raise RefusedError(
            wire.ILLEGAL_MESSAGE_ID, "the message has no id; the client has to set one"
        )
    properties[p.UNIQ_CLIENT_MESSAGE_ID] = _text(system.message_id, wire.ILLEGAL_MESSAGE_ID, "id")
    properties[p.WAIT_STORE_MSG_OK] = "true"
    _set_looked_up(properties, system)
    properties[p.PRODUCER_GROUP] = topic
    if system.HasField("message_group") and system.message_group:
        most = settings.max_message_group_size
        if len(system.message_group) > most:
            raise RefusedError(
                wire.ILLEGAL_MESSAGE_GROUP,
                f"the message group has {len(system.message_group)} characters, the limit "
                f"maxMessageGroupSize is {most}; use a shorter one",
                "maxMessageGroupSize",
            )
        group = _text(system.message_group, wire.ILLEGAL_MESSAGE_GROUP, "message group")
        properties[p.SHARDING_KEY] = group
    if system.HasField("priority"):
        properties[p.PRIORITY] = str(system.priority)
    if system.HasField("delivery_timestamp"):
        properties[p.TIMER_DELIVER_MS] = str(_delivery_ms(system, now_ms, settings))
    if system.message_type == wire.TRANSACTION:
        properties[p.TRANSACTION_PREPARED] = "true"
        if (recovery_s := _recovery_s(system, settings)) > 0:
            properties[p.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(recovery_s)
    _set_origin(properties, system)
    _check_size(properties, message, settings.max_user_property_size)
    return properties


def is_packed(message: wire.Message) -> bool:
    """Return whether a body is stored unchanged, with the flag of compressed bodies: it names the encoding GZIP, but
    is zlib data or something else. Java's proxy looks at no body.
    """
    encoding = message.system_properties.body_encoding
    body = message.body
    return encoding == wire.GZIP and bool(body) and not body.startswith(_GZIP_MAGIC)


def body_of(message: wire.Message, settings: ProxySettings) -> bytes:
    """Return a message's body as it is stored: GZIP is unpacked, for consumers of all kinds. Raises RefusedError."""
    max_bytes = settings.max_message_size
    body = message.body
    if not body and settings.enable_message_body_empty_check:
        raise RefusedError(wire.MESSAGE_BODY_EMPTY, "the body is empty; send at least one byte")
    if message.system_properties.body_encoding == wire.GZIP and not is_packed(message):
        inflating = zlib.decompressobj(_GZIP_WINDOW)
        try:
            body = inflating.decompress(body, max_bytes + 1)
        except zlib.error as error:
            raise RefusedError(
                wire.MESSAGE_CORRUPTED, f"the body is not valid GZIP: {error}"
            ) from error
        if len(body) <= max_bytes and not inflating.eof:
            raise RefusedError(wire.MESSAGE_CORRUPTED, "the GZIP data of the body is cut off")
    if len(body) > max_bytes:
        raise RefusedError(
            wire.MESSAGE_BODY_TOO_LARGE,
            f"the body has more bytes than the limit maxMessageSize of {max_bytes}; send a smaller one",
            "maxMessageSize",
        )
    return body


def to_wire(message: MessageExt, topic: wire.Resource, handle: str | None) -> wire.Message:
    """Return a message as gRPC clients see it; `handle` is the receipt of a popped one."""
    properties = message.properties
    system = wire.SystemProperties(
        keys=properties.get(p.KEYS, "").split(),
        message_id=properties.get(p.UNIQ_CLIENT_MESSAGE_ID, message.msg_id),
        body_encoding=wire.GZIP if message.sys_flag & COMPRESSED else wire.IDENTITY,
        message_type=type_of(properties),
        born_host=properties.get(BORN_HOST, message.born_host),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=message.reconsume_times + 1,
    )
    if message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
        system.message_type = wire.TRANSACTION
    if (tag := properties.get(p.TAGS)) is not None:
        system.tag = tag
    # Clients compare this with the body that they get.
    system.body_digest.type = wire.MD5
    system.body_digest.checksum = (
        hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    )
    born = properties.get(BORN_TIMESTAMP, "")
    is_born = born.isdecimal() and len(born) < 15
    system.born_timestamp.FromMilliseconds(int(born) if is_born else message.born_timestamp_ms)
    system.store_timestamp.FromMilliseconds(message.store_timestamp_ms)
    deliver = properties.get(p.TIMER_OUT_MS) or properties.get(p.TIMER_DELIVER_MS) or ""
    if deliver.isdecimal() and len(deliver) < 15:
        system.delivery_timestamp.FromMilliseconds(int(deliver))
    if handle is not None:
        system.receipt_handle = handle
    if (group := properties.get(p.SHARDING_KEY)) is not None:
        system.message_group = group
    if (trace := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    priority = properties.get(p.PRIORITY, "")
    if priority.isdecimal() and len(priority) < 10:
        system.priority = int(priority)
    if DLQ_ORIGIN_TOPIC in properties:
        system.dead_letter_queue.topic = properties[DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties.get(DLQ_ORIGIN_MESSAGE_ID, "")
    users = {name: value for name, value in properties.items() if name not in RESERVED}
    return wire.Message(
        topic=topic, user_properties=users, system_properties=system, body=message.body
    )


def _set_looked_up(properties: dict[str, str], system: wire.SystemProperties) -> None:
    if system.HasField("tag") and system.tag:
        if "|" in system.tag:
            raise RefusedError(wire.ILLEGAL_MESSAGE_TAG, f"the tag {system.tag[:80]!r} has a |")
        properties[p.TAGS] = _text(system.tag, wire.ILLEGAL_MESSAGE_TAG, "tag")
    if system.keys:
        keys = [_text(key, wire.ILLEGAL_MESSAGE_KEY, "key") for key in system.keys]
        properties[p.KEYS] = p.KEY_SEPARATOR.join(keys)


def _set_origin(properties: dict[str, str], system: wire.SystemProperties) -> None:
    if system.born_host:
        properties[BORN_HOST] = _text(system.born_host, wire.BAD_REQUEST, "born host")
    if system.HasField("born_timestamp"):
        born_ms = milliseconds_of(system.born_timestamp, "born timestamp", wire.BAD_REQUEST)
        properties[BORN_TIMESTAMP] = str(born_ms)
    if system.trace_context:
        properties[TRACE_CONTEXT] = _text(system.trace_context, wire.BAD_REQUEST, "trace context")
    if system.delivery_attempt > 1:
        properties[p.RECONSUME_TIME] = str(system.delivery_attempt - 1)


def _delivery_ms(system: wire.SystemProperties, now_ms: int, settings: ProxySettings) -> int:
    most_ms = settings.max_delay_time_mills
    at_ms = milliseconds_of(
        system.delivery_timestamp, "delivery time of the message", wire.ILLEGAL_DELIVERY_TIME
    )
    if at_ms - now_ms > most_ms:
        raise RefusedError(
            wire.ILLEGAL_DELIVERY_TIME,
            f"the delivery time of the message is {at_ms} ms, the limit maxDelayTimeMills is {most_ms} ms "
            "from now; choose an earlier time",
            "maxDelayTimeMills",
        )
    return max(at_ms, 0)


def _recovery_s(system: wire.SystemProperties, settings: ProxySettings) -> int:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    seconds: int = system.orphaned_transaction_recovery_duration.ToSeconds()
    most_s = settings.max_transaction_recovery_second
    if seconds > most_s:
        raise RefusedError(
            wire.BAD_REQUEST,
            f"the first check of the transaction is set to {seconds} s, the limit "
            f"maxTransactionRecoverySecond is {most_s}; choose a shorter time",
            "maxTransactionRecoverySecond",
        )
    return seconds


def _check_user(properties: dict[str, str], most: int) -> None:
    if len(properties) > most:
        raise RefusedError(
            wire.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(properties)} properties, the limit userPropertyMaxNum is "
            f"{most}; move some into the body",
            "userPropertyMaxNum",
        )
    for name, value in properties.items():
        if not name or name in RESERVED:
            raise RefusedError(
                wire.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property name {name[:80]!r} is reserved for brokers and clients; use another name",
            )
        _text(name, wire.ILLEGAL_MESSAGE_PROPERTY_KEY, "name of a property")
        _text(value, wire.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name[:80]}", blank=True)


def _check_size(properties: dict[str, str], message: wire.Message, most: int) -> None:
    counted = [*message.user_properties.items()]
    size = sum(len(name.encode()) + len(value.encode()) for name, value in counted)
    size += len(properties.get(p.TAGS, "").encode()) + len(properties.get(p.KEYS, "").encode())
    if size > most:
        raise RefusedError(
            wire.MESSAGE_PROPERTIES_TOO_LARGE,
            f"tag, keys and properties of the message take {size} bytes, the limit "
            f"maxUserPropertySize is {most}; move large values into the body",
            "maxUserPropertySize",
        )


def _text(text: str, code: wire.Code, what: str, *, blank: bool = False) -> str:
    """Return `text`. Raises RefusedError if it is blank, or has a control character, which would end the
    property in the record.
    """
    if (not blank and not text.strip()) or any(each < " " for each in text):
        raise RefusedError(code, f"the {what} {text[:80]!r} is blank or has a control character")
    return text

"""Check messages and options before anything is sent (Java: Validators, DefaultMQProducerImpl)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from cometmq.errors import IllegalArgumentError
from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.model.names import (
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    FORBIDDEN_SEND_TOPICS,
    check_group,
    check_topic,
    is_retry_topic,
)
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH

MAX_MESSAGE_SIZE_BYTES: Final = 4 * 1024 * 1024
MAX_ADDRESSES: Final = 64
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
# Bounds instance and unit names: brokers keep client ids in their tables and show them in their
# logs.
MAX_NAME_LENGTH: Final = 200

# Users may pass the unique id: the producer sets it, so a message that is sent again carries it.
_NOT_FOR_USERS: Final = p.RESERVED - {p.UNIQ_CLIENT_MESSAGE_ID}
_MAY_BE_EMPTY: Final = (p.TAGS, p.KEYS)
_DELAYS: Final = (p.DELAY_TIME_LEVEL, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)
# A character takes at most this many bytes in UTF-8, so shorter texts need no encoding.
_UTF8_FACTOR: Final = 4
_NO_HOST: Final = re.compile(r"[^\w.:%\[\]-]")
_DOTTED: Final = re.compile(r"[0-9.]+")


class MessageChecks:
    """Applies one producer's rules to every message, and remembers topics that it found legal."""

    def __init__(self, max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES) -> None:
        check_range("max_message_size_bytes", max_message_size_bytes, 1, 16 * 1024 * 1024)
        self.max_message_size_bytes = max_message_size_bytes
        self._legal_topics: set[str] = set()

    def check(self, message: Message) -> None:
        """Raise IllegalArgumentError for a message that may not be sent.

        The error names the value, the limit and the remedy.
        """
        if not isinstance(message, Message):
            raise IllegalArgumentError(
                f"{message!r:.80} is a {type(message).__name__}; send a Message(topic, body)"
            )
        topic: Any = message.topic  # users may hand over any object, even one without a hash
        if not isinstance(topic, str):
            check_topic(topic)
        if topic not in self._legal_topics:
            self._check_topic(topic)
        self.check_body(message.body, message.topic)
        if message.flag != 0:
            check_range("flag", message.flag, -(2**31), 2**31 - 1)
        if not _NOT_FOR_USERS.isdisjoint(message.properties):
            names = sorted(_NOT_FOR_USERS.intersection(message.properties))
            raise IllegalArgumentError(
                f"the properties {', '.join(names)} belong to brokers and clients; "
                "pass on only properties of your own"
            )

    def check_body(self, body: bytes, topic: str) -> None:
        if not isinstance(body, bytes):
            raise IllegalArgumentError(
                f"the body of a message to {topic} is a {type(body).__name__}; pass bytes, "
                "for text text.encode()"
            )
        if not body:
            raise IllegalArgumentError(
                f"the body of a message to {topic} is empty; it needs at least one byte"
            )
        if len(body) > self.max_message_size_bytes:
            raise IllegalArgumentError(
                f"the body of a message to {topic} has {len(body)} bytes, the limit "
                f"max_message_size_bytes is {self.max_message_size_bytes}; send a smaller body, "
                "or raise the limit here and maxMessageSize at the broker"
            )

    def check_batch(self, batch: Iterable[Message]) -> list[Message]:
        """Return the messages of a batch as a list. Raises IllegalArgumentError unless they have
        one topic, which is no retry topic, agree on WAIT and have no delay (Java: MessageBatch).
        """
        if isinstance(batch, Message) or not isinstance(batch, Iterable):
            raise IllegalArgumentError(
                f"a batch is a list of messages, not {batch!r:.80}; send one message with send"
            )
        messages = list(batch)
        if not messages:
            raise IllegalArgumentError("a batch needs at least one message")
        first = messages[0]
        self.check(first)
        if is_retry_topic(first.topic):
            raise IllegalArgumentError(f"a batch may not go to the retry topic {first.topic}")
        for message in messages:
            self.check(message)
            if message.topic != first.topic:
                raise IllegalArgumentError(
                    f"a batch goes to one topic, this one names {first.topic} and "
                    f"{message.topic}; send one batch for each"
                )
            if message.wait_store_ok != first.wait_store_ok:
                raise IllegalArgumentError(
                    "the messages of a batch must agree on wait_store_ok; send one batch for each"
                )
            for name in _DELAYS:
                if name in message.properties:
                    raise IllegalArgumentError(
                        f"a message of a batch has the property {name}; "
                        "delayed messages cannot be sent in batches"
                    )
        return messages

    def _check_topic(self, topic: str) -> None:
        check_topic(topic)
        if topic in FORBIDDEN_SEND_TOPICS:
            raise IllegalArgumentError(
                f"topic {topic} is the broker's own, clients may not send to it"
            )
        if len(self._legal_topics) >= 10_000:  # a bound, not an expected size
            self._legal_topics.clear()
        self._legal_topics.add(topic)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise IllegalArgumentError unless all are text, and consumers would see them again."""
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise IllegalArgumentError(
                f"the property {name!r:.80} has the value {value!r:.80}; names and values are text"
            )
        # Decoders leave such entries out. Java: MessageAccessor.putUserProperty.
        if not name or (not value and name not in _MAY_BE_EMPTY):
            raise IllegalArgumentError(
                f"the property {name!r:.80} has the value {value!r}; neither may be empty, since "
                "consumers would not see it: leave it out"
            )


def check_properties_text(text: str, topic: str) -> None:
    """Raise IllegalArgumentError when the encoded properties exceed what a record can hold."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise IllegalArgumentError(
                f"the properties of a message to {topic} have the character "
                f"{text[error.start]!a}, which UTF-8 does not know; send text without surrogates"
            ) from None
    if len(text) * _UTF8_FACTOR <= MAX_PROPERTIES_LENGTH:
        return
    length = len(text.encode())
    if length > MAX_PROPERTIES_LENGTH:
        raise IllegalArgumentError(
            f"the properties of a message to {topic} take {length} bytes, the limit is "
            f"{MAX_PROPERTIES_LENGTH}; move large values into the body"
        )


def check_client_group(group: str) -> None:
    """Raise IllegalArgumentError unless `group` may be used by a producer or consumer."""
    check_group(group)
    if group in (DEFAULT_PRODUCER_GROUP, DEFAULT_CONSUMER_GROUP):
        raise IllegalArgumentError(f"the group name {group} is reserved; choose one of your own")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise IllegalArgumentError unless `value` is a whole number, `low` ≤ `value` ≤ `high`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise IllegalArgumentError(
            f"{name} is {value!r}, a {type(value).__name__}; it must be a whole number in {low}..{high}"
            + (" or a timedelta" if name.endswith("_ms") else "")
        )
    if not low <= value <= high:
        raise IllegalArgumentError(f"{name} is {value}, it must lie in {low}..{high}")


def check_flag(name: str, value: bool) -> None:
    """Raise IllegalArgumentError unless `value` is a bool, since the text "false" would be true."""
    if not isinstance(value, bool):
        raise IllegalArgumentError(
            f"{name} is {value!r:.80}, a {type(value).__name__}; it must be True or False"
        )


def check_queue(queue: object) -> None:
    """Raise IllegalArgumentError unless `queue` is a MessageQueue."""
    if not isinstance(queue, MessageQueue):
        raise IllegalArgumentError(
            f"the queue {queue!r:.80} is a {type(queue).__name__}; pass a "
            "MessageQueue(topic, broker_name, queue_id)"
        )


def check_name(name: str, value: object) -> None:
    """Raise IllegalArgumentError unless `value` may stand in a client id: text without blanks."""
    if not isinstance(value, str):
        raise IllegalArgumentError(f"{name} is {value!r}, a {type(value).__name__}; pass text")
    if not value or len(value) > MAX_NAME_LENGTH or any(character.isspace() for character in value):
        raise IllegalArgumentError(
            f"{name} is {value[:80]!r}; it must have 1 to {MAX_NAME_LENGTH} characters and no blanks"
        )


def check_callable(name: str, value: object, what: str) -> None:
    """Raise IllegalArgumentError unless `value` can be called."""
    if not callable(value):
        raise IllegalArgumentError(f"{name} is {value!r}, which cannot be called; pass {what}")


def check_callback(callback: object) -> None:
    """Raise IllegalArgumentError unless `callback` is None or can be called."""
    if callback is not None:
        check_callable("the callback", callback, "a function of (result, error)")


def check_recall_handle(handle: object) -> None:
    """Raise IllegalArgumentError unless `handle` is text: messages without a delay have None."""
    if not isinstance(handle, str):
        raise IllegalArgumentError(
            f"the recall handle is {handle!r:.80}; pass the recall_handle of the SendResult, which "
            "only messages with delay_ms or deliver_at_ms have"
        )


def namesrv_addresses(given: str | Sequence[str] | None) -> list[str]:
    """Return the addresses of the name servers given, else those in the environment.

    Raises IllegalArgumentError if there are none, or if one is not of the form `host:port`.
    """
    if given is None:
        given = os.environ.get(NAMESRV_VARIABLE)
    if given is None:
        raise IllegalArgumentError(
            "no name-server address given; pass namesrv='host:9876' (a command: -n host:9876), or set "
            f"the environment variable {NAMESRV_VARIABLE}"
        )
    return parse_addresses(given)


def parse_addresses(namesrv: str | Sequence[str]) -> list[str]:
    """Return name-server addresses `host:port`, given as a list or as text joined by `;` or `,`.

    Raises IllegalArgumentError for any other value.
    """
    if not isinstance(namesrv, str | Sequence):
        raise IllegalArgumentError(
            f"namesrv is {namesrv!r:.80}, a {type(namesrv).__name__}; pass namesrv='host:9876'"
        )
    parts = namesrv.replace(",", ";").split(";") if isinstance(namesrv, str) else namesrv
    for part in parts:
        if not isinstance(part, str):
            raise IllegalArgumentError(
                f"{part!r} is a {type(part).__name__}, no name-server address of the form host:port"
            )
    addresses = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not addresses:
        raise IllegalArgumentError("no name-server address given; pass namesrv='host:9876'")
    if len(addresses) > MAX_ADDRESSES:
        raise IllegalArgumentError(f"{len(addresses)} name servers, the limit is {MAX_ADDRESSES}")
    for address in addresses:
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) <= 65535:
            raise IllegalArgumentError(
                f"{address!r} is no name-server address of the form host:port"
            )
        fault = _host_fault(host)
        if fault:
            raise IllegalArgumentError(f"{address!r} is no name-server address: {fault}")
    return addresses


def _host_fault(host: str) -> str:
    """Say why a text cannot be the name or address of a host; "" if it can."""
    if "://" in host:
        return f"it has the scheme {host.partition('://')[0]!r}; pass host:port alone"
    if _NO_HOST.search(host):
        return f"{host!r} has characters that no host name has"
    if _DOTTED.fullmatch(host):
        try:
            ip_address(host)
        except ValueError:
            return f"{host} is no IPv4 address"
    return ""

"""Turn messages into send requests (Java: DefaultMQProducerImpl.sendKernelImpl, MessageBatch)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES, check_properties, check_properties_text
from cometmq.client.namespaces import NO_NAMESPACE, Namespace
from cometmq.errors import IllegalArgumentError
from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.model.names import AUTO_CREATE_TOPIC
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.batch import BatchEntry, batch_entry_size, encode_batch
from cometmq.protocol.messages.compression import CompressionType, compress
from cometmq.protocol.messages.ids import UniqueIdGenerator
from cometmq.protocol.messages.properties import encode_properties
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

COMPRESS_OVER_BYTES: Final = 4096
# The message type of replies to requests (Java: MixAll.REPLY_MESSAGE_FLAG); replies are sent with a
# request code of their own.
REPLY: Final = "reply"
# A body this large is compressed in a thread, so that the loop stays free (zlib and its kin release
# the interpreter lock). For a smaller body the way to the thread costs more than the work.
_COMPRESS_IN_THREAD_BYTES: Final = 128 * 1024
_WAIT_TRUE: Final = f"{p.WAIT_STORE_MSG_OK}\x01true\x02"
# The bytes that sending adds to a message's properties: unique id (56 characters with IPv6) and
# WAIT.
_ADDED_PROPERTIES_BYTES: Final = len(p.UNIQ_CLIENT_MESSAGE_ID) + 2 + 56 + len(_WAIT_TRUE)


class Outgoing:
    """Holds an encoded message or batch, which every attempt addresses to a queue.

    `topic` is the name on the wire. `messages` are those that the user gave, several only for a
    batch.
    """

    __slots__ = ("body", "code", "ext", "messages", "topic", "unique_id")

    def __init__(
        self,
        topic: str,
        code: int,
        ext: dict[str, str],
        body: bytes,
        uid: str,
        messages: Sequence[Message],
    ) -> None:
        self.topic = topic
        self.code = code
        self.ext = ext
        self.body = body
        self.unique_id = uid
        self.messages = messages

    def command(self, queue: MessageQueue) -> RemotingCommand:
        ext = self.ext.copy()
        ext["e"] = str(queue.queue_id)
        return RemotingCommand(self.code, ext=ext, body=self.body)

    def renew_properties(self, most_bytes: int) -> None:
        """Encode the messages' properties again, since a hook may have changed them.

        A batch whose body would then take more than `most_bytes` stays as it was.
        """
        if self.code != RequestCode.SEND_BATCH_MESSAGE:
            self.ext["i"] = _properties_text(self.messages[0])
            return
        body = _batch_body(self.messages)
        if len(body) <= most_bytes:
            self.body = body


class MessageEncoder:
    """Encodes the messages of one producer group.

    This class writes the ext fields by their letters (SendMessageRequestHeaderV2) rather than
    through the header record: it is the producer's hot path, and most of the fields never change.
    """

    def __init__(
        self,
        group: str,
        unique_ids: UniqueIdGenerator,
        *,
        default_topic_queue_nums: int = 4,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        compression: CompressionType = CompressionType.ZLIB,
        namespace: Namespace = NO_NAMESPACE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._now_ms = clock.now_ms
        self._namespace = namespace
        self._namespaced = bool(namespace)  # asked for every message
        self._next_id = unique_ids.next
        self._compress_over_bytes = compress_over_bytes
        self._compression = compression
        self._common: Final = {
            "a": group,
            "c": AUTO_CREATE_TOPIC,
            "d": str(default_topic_queue_nums),
            "j": "0",
            "k": "false",
            "m": "false",
        }

    async def encode(self, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        """Encode one message. Gives it a unique id if it has none. `extra` has more ext fields."""
        return self.encode_now(message, extra) or await self._encode_in_thread(message, extra)

    def encode_now(self, message: Message, extra: dict[str, str] | None = None) -> Outgoing | None:
        """Do as `encode` does, or return None if a body takes so long to compress that a thread has to do
        it.
        """
        body = message.body
        sys_flag = 0
        if len(body) >= self._compress_over_bytes:
            if len(body) >= _COMPRESS_IN_THREAD_BYTES:
                return None
            body, sys_flag = self._shorter(body, compress(body, self._compression))
        return self._encoded(message, body, sys_flag, extra)

    async def _encode_in_thread(self, message: Message, extra: dict[str, str] | None) -> Outgoing:
        packed = await asyncio.to_thread(compress, message.body, self._compression)
        return self._encoded(message, *self._shorter(message.body, packed), extra)

    def _encoded(
        self, message: Message, body: bytes, sys_flag: int, extra: dict[str, str] | None
    ) -> Outgoing:
        unique_id = self._identify(message)
        text = _properties_text(message)
        topic = self._namespace.wrap(message.topic) if self._namespaced else message.topic
        ext = self._ext(topic, text, message.flag, sys_flag)
        if extra:
            ext.update(extra)
        code = RequestCode.SEND_MESSAGE_V2
        if message.properties.get(p.MESSAGE_TYPE) == REPLY:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        return Outgoing(topic, code, ext, body, unique_id, (message,))

    def encode_batch(self, messages: Sequence[Message]) -> Outgoing:
        """Encode a batch, without compression. Each of its messages gets a unique id of its own."""
        unique_ids = [self._identify(message) for message in messages]
        first = messages[0]
        body = _batch_body(messages)
        wait = "true" if first.wait_store_ok else "false"
        return self._packed(first.topic, body, wait, ",".join(unique_ids), messages)

    def encode_packed(self, topic: str, body: bytes) -> Outgoing:
        """Wrap a batch whose body is encoded already, with a unique id in each of its messages."""
        return self._packed(topic, body, "true", "", ())

    def encode_ready(
        self, topic: str, body: bytes, properties: str, flag: int, sys_flag: int
    ) -> Outgoing:
        """Wrap one message that is encoded already, with its unique id among its properties."""
        ext = self._ext(self._namespace.wrap(topic), properties, flag, sys_flag)
        return Outgoing(ext["b"], RequestCode.SEND_MESSAGE_V2, ext, body, "", ())

    def _packed(
        self, topic: str, body: bytes, wait: str, ids: str, messages: Sequence[Message]
    ) -> Outgoing:
        # The request has no unique id, like that of a Java 4.x client: a Java 5.3 broker would
        # append the id to the properties of every message, and so hide the message's own id.
        name = self._namespace.wrap(topic)
        ext = self._ext(name, encode_properties({p.WAIT_STORE_MSG_OK: wait}), 0, 0)
        ext["m"] = "true"
        return Outgoing(name, RequestCode.SEND_BATCH_MESSAGE, ext, body, ids, messages)

    def _identify(self, message: Message) -> str:
        properties = message.properties
        unique_id = properties.get(p.UNIQ_CLIENT_MESSAGE_ID)
        if unique_id is None:
            unique_id = properties[p.UNIQ_CLIENT_MESSAGE_ID] = self._next_id()
        if self._namespaced:
            properties[p.INSTANCE_ID] = self._namespace.name
        return unique_id

    def _ext(self, topic: str, properties: str, flag: int, sys_flag: int) -> dict[str, str]:
        ext = self._common.copy()
        ext["b"] = topic
        ext["f"] = str(sys_flag)
        ext["g"] = str(self._now_ms())
        ext["h"] = str(flag)
        ext["i"] = properties
        return ext

    def _shorter(self, body: bytes, packed: bytes) -> tuple[bytes, int]:
        """Return the shorter of both, and the system flag that says which it is."""
        return (body, 0) if len(packed) >= len(body) else (packed, self._compression.sys_flag)


def batch_size(message: Message) -> int:
    """Return the most bytes that `message` can take in the body of a batch."""
    length = len(encode_properties(message.properties).encode()) + _ADDED_PROPERTIES_BYTES
    return batch_entry_size(len(message.body), length)


def split_batches(
    messages: Iterable[Message], max_bytes: int = MAX_MESSAGE_SIZE_BYTES
) -> list[list[Message]]:
    """Cut `messages`, in order, into batches whose encoded bodies take at most `max_bytes` each.

    Raises IllegalArgumentError when a single message takes more.
    """
    batches: list[list[Message]] = []
    room = 0
    for message in messages:
        if not isinstance(message, Message):
            raise IllegalArgumentError(
                f"{message!r:.80} is a {type(message).__name__}; a batch holds Messages"
            )
        if message.is_unencoded and not message.body:
            raise IllegalArgumentError(
                f"a message to {message.topic} has a value and no body yet; have "
                "`await codecs.encode(message)` encode it before it is cut"
            )
        size = batch_size(message)
        if size > max_bytes:
            raise IllegalArgumentError(
                f"a message to {message.topic} takes {size} bytes in a batch, the limit max_bytes "
                f"is {max_bytes}; send it alone"
            )
        if size > room:
            batches.append([])
            room = max_bytes
        batches[-1].append(message)
        room -= size
    return batches


def _batch_body(messages: Iterable[Message]) -> bytes:
    return encode_batch(
        BatchEntry(message.flag, message.body, _properties_text(message).encode())
        for message in messages
    )


def _properties_text(message: Message) -> str:
    properties = message.properties
    check_properties(properties)
    text = encode_properties(properties)
    if p.WAIT_STORE_MSG_OK not in properties:
        text += _WAIT_TRUE
    check_properties_text(text, message.topic)
    return text

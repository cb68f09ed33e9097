"""Find the codec of a topic, and encode and decode messages by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from cometmq.errors import (
    IllegalArgumentError,
    SchemaRegistryError,
    UndecodableError,
    UnencodableError,
)
from cometmq.model import properties as p
from cometmq.model.failure import exception_text
from cometmq.model.message import Message
from cometmq.payloads.by_topic import ByTopic
from cometmq.payloads.codec import Codec

MAX_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
MAX_CODECS: Final = 1000
# A body of this size or more is decoded in a thread, because a loop would wait for it too long.
IN_THREAD_BYTES: Final = 128 * 1024


class Codecs:
    """Holds codecs by topic: a dict from topics, or patterns with `*` and `?`, to codecs.

    An exact topic counts before patterns, and of patterns the first that fits. A body of more than
    `max_payload_bytes` is not decoded. For any thread.
    """

    def __init__(
        self, by_topic: Mapping[str, Codec[Any]], *, max_payload_bytes: int = MAX_PAYLOAD_BYTES
    ) -> None:
        if not isinstance(by_topic, Mapping):
            raise IllegalArgumentError(
                f"codecs are {by_topic!r:.80}; pass a dict from topic to codec, {{'orders': Json(Order)}}"
            )
        if len(by_topic) > MAX_CODECS:
            raise IllegalArgumentError(
                f"{len(by_topic)} codecs, the limit MAX_CODECS is {MAX_CODECS}; use patterns of topics",
                limit="MAX_CODECS",
            )
        self._by_topic = ByTopic(by_topic)
        for topic, codec in by_topic.items():
            if not isinstance(codec, Codec):
                raise IllegalArgumentError(
                    f"the codec of {topic} is {codec!r:.80}; pass a Codec, Json(Order) for instance"
                )
        self._max_payload_bytes = max_payload_bytes

    def of(self, topic: str) -> Codec[Any] | None:
        """Return the codec of a topic, or None."""
        return self._by_topic.of(topic)

    # Encoding

    async def encode(self, message: Message) -> None:
        """Give a message with a `value` its body, and the properties that go with it.

        Raises UnencodableError, and SchemaRegistryError if a schema could not be fetched.
        """
        if not self.encode_now(message):
            codec = self._codec_to_encode(message.topic)
            fetch = codec.missing_to_encode(message.topic)
            if fetch is not None:
                await fetch()
            self._encode(codec, message)

    def encode_now(self, message: Message) -> bool:
        """Encode a message as `encode` does. Return False if something has to be fetched first."""
        if not message.is_unencoded:
            return True
        codec = self._codec_to_encode(message.topic)
        if codec.missing_to_encode(message.topic) is not None:
            return False
        self._encode(codec, message)
        return True

    def _codec_to_encode(self, topic: str) -> Codec[Any]:
        codec = self.of(topic) if isinstance(topic, str) else None
        if codec is None:
            raise UnencodableError(
                f"the message to {topic!r:.100} has a value, and no codec is for this topic; give the "
                f"producer codecs={{{topic!r:.100}: Json(…)}}, or the message a body"
            )
        return codec

    def _encode(self, codec: Codec[Any], message: Message) -> None:
        try:
            encoded = codec.encode(message.topic, message.value)
        # A codec's library or functions raise what they like.
        except Exception as error:
            raise UnencodableError(
                f"a value of type {type(message.value).__name__} for topic {message.topic} does not fit {codec!r}: "
                f"{type(error).__name__}: {exception_text(error)[:1000]}"
            ) from error
        message.body = encoded.body
        message.properties.update(encoded.properties)

    # Decoding

    async def decode(self, message: Message, topic: str | None = None) -> None:
        """Decode a message. From then on its `value` returns the result, or raises the error.

        The codec is that of `topic`: by default the message's topic, for a retry the topic that it was
        first sent to. Without a codec nothing happens. Raises UndecodableError, and SchemaRegistryError if
        the schema could not be fetched: nothing is wrong with the message then, and a later `decode` may
        succeed.
        """
        await self.prepare(message, topic)
        if self.of(topic or _topic(message)) is None:
            return
        if len(message.body) >= IN_THREAD_BYTES:
            await asyncio.to_thread(getattr, message, "value")
        else:
            _ = message.value

    async def prepare(self, message: Message, topic: str | None = None) -> None:
        """Have the `value` of a message decode it when it is asked for. Raises SchemaRegistryError."""
        if not self.prepare_now(message, topic):
            codec = self.of(topic or _topic(message))
            fetch = None if codec is None else codec.missing_to_decode(message)
            if fetch is not None:
                try:
                    await fetch()
                except UndecodableError as error:
                    reason = error

                    def refuse(_message: Message) -> Any:
                        raise reason

                    message.decode_by(refuse)

    def prepare_now(self, message: Message, topic: str | None = None) -> bool:
        """Prepare a message as `prepare` does, and return whether nothing has to be fetched first."""
        topic = topic or _topic(message)
        codec = self.of(topic)
        if codec is None or message.is_unencoded:
            return True
        chosen = codec

        def decode(decoded: Message) -> Any:
            return self._decode(chosen, topic, decoded)

        message.decode_by(decode)
        try:
            return codec.missing_to_decode(message) is None
        except Exception:  # noqa: BLE001 - decoding meets the same fault, and says it
            return True

    def _decode(self, codec: Codec[Any], topic: str, message: Message) -> Any:
        schema_id = message.properties.get(p.SCHEMA_ID, "")[:100]
        where = f"topic {topic}" + (f", schema {schema_id}" if schema_id else "")
        size = len(message.body)
        if size > self._max_payload_bytes:
            raise UndecodableError(
                f"{where}: the body has {size} bytes, the limit max_payload_bytes is "
                f"{self._max_payload_bytes}",
                topic=topic,
                schema_id=schema_id,
                limit="max_payload_bytes",
            )
        try:
            return codec.decode(message)
        except RecursionError as error:
            raise UndecodableError(
                f"{where}: the body is nested deeper than Python's recursion limit allows",
                topic=topic,
                schema_id=schema_id,
                limit="recursion limit",
            ) from error
        except (UndecodableError, SchemaRegistryError):
            raise
        # A codec's library or functions raise what they like.
        except Exception as error:
            raise UndecodableError(
                f"{where}: does not fit {codec!r}: {type(error).__name__}: {exception_text(error)[:1000]}",
                topic=topic,
                schema_id=schema_id,
            ) from error


def codecs_of(given: object) -> Codecs | None:
    """Return the codecs of an option: Codecs, a dict from topic to codec, or None."""
    if given is None or isinstance(given, Codecs):
        return given
    if isinstance(given, Mapping):
        return Codecs(given)
    raise IllegalArgumentError(
        f"codecs is {given!r:.80}; pass a dict from topic to codec, {{'orders': Json(Order)}}"
    )


def _topic(message: Message) -> str:
    topic: str = getattr(message, "origin_topic", message.topic)
    return topic
